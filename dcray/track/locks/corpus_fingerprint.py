"""A study has one corpus: losses on two of them are not on one scale.

The record keeps a mark of the corpus: hashes of the tokenizer, of the validation tokens, and of
the stream up to each budget. A folder is the same corpus if tokenizer and validation set are equal
and the shorter stream begins the longer one: so budgets may be added. A study that was made before
there were marks is judged by the manifests that its results keep.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dcray.config.counts import count_label
from dcray.corpus.manifest import VALIDATION, Corpus
from dcray.errors import ConfigError
from dcray.track.mlflow.connection import connect
from dcray.track.mlflow.retry import waiting_helps
from dcray.track.rows import Row

TAG = "dcray.corpus"  # of the experiment
MANIFEST = "manifest.json"  # the artifact of a result
DIGITS = 16
PATIENCE_SECONDS = 20.0  # of a reader: a person waits for the answer
MAX_BUDGETS = 100  # that a mark lists: a tag is 5,000 characters at most


class MixedCorporaError(ConfigError):
    """A study holds results of two corpora."""


@dataclass(frozen=True)
class Mark:
    """The hashes that the record keeps of a corpus, cut to 16 digits. path: where the corpus was.

    The owner that bound the study to it is in the same tag, so that both are written at once.
    """

    path: str
    tokenizer: str
    validation: str
    budgets: Mapping[int, str]  # of the stream's first so many tokens
    owner: str = field(default="", compare=False)  # Owner.to_json
    bound_at: float = field(default=0.0, compare=False)  # in Unix seconds

    @classmethod
    def of(cls, corpus: Corpus) -> Mark:
        """Make the mark of an opened corpus."""
        return cls.of_manifest(corpus.manifest.model_dump(mode="json"), str(corpus.path.absolute()))

    @classmethod
    def of_manifest(cls, manifest: Mapping[str, Any], path: str) -> Mark:
        """Make the mark of a manifest as a result keeps it."""
        budgets = {one["tokens"]: one["sha256"][:DIGITS] for one in manifest["budgets"]}
        return cls(
            path,
            manifest["tokenizer"]["sha256"][:DIGITS],
            manifest["files"][VALIDATION][:DIGITS],
            budgets,
        )

    @classmethod
    def from_json(cls, text: str) -> Mark:
        """Parse the mark that to_json wrote."""
        fields = json.loads(text)
        budgets = {int(tokens): sha for tokens, sha in fields["budgets"].items()}
        return cls(**fields | {"budgets": budgets})

    def to_json(self) -> str:
        """Format the mark for a tag; of many budgets it keeps the largest MAX_BUDGETS."""
        kept = dict(sorted(self.budgets.items())[-MAX_BUDGETS:])
        return json.dumps(vars(self) | {"budgets": kept})

    def __str__(self) -> str:
        """Format the folder, and the first digits of the validation set and the tokenizer."""
        return f"{self.path} (validation {self.validation[:8]}, tokenizer {self.tokenizer[:8]})"

    def with_budgets(self, other: Mark) -> Mark:
        """Return the same corpus with the budgets that `other` knows of its longer stream."""
        return Mark(self.path, self.tokenizer, self.validation, {**other.budgets, **self.budgets})

    def difference(self, other: Mark, corpus: Corpus | None = None) -> str:
        """Say in what `other` is another corpus, "" if it is the same.

        corpus: the other's folder, to hash its stream up to a budget that it does not list.
        """
        found, settled = self.compared(other, corpus)
        return found if settled else self._shorter(other)

    def compared(self, other: Mark, corpus: Corpus | None = None) -> tuple[str, bool]:
        """Compare by what both marks know: (the difference, whether that settles it).

        It is settled if they differ, or the shorter stream was compared to its end.
        """
        if other.tokenizer != self.tokenizer:
            return "another tokenizer", True
        if other.validation != self.validation:
            return "another validation set", True
        for tokens in sorted(self.budgets, reverse=True):
            theirs = other.budgets.get(tokens) or _prefix(corpus, tokens)
            if theirs is not None:  # what is equal up to here is equal up to each smaller budget
                if theirs != self.budgets[tokens]:
                    return _other_tokens(tokens), True
                return "", tokens >= min(max(self.budgets), max(other.budgets))
        return "", False

    def _shorter(self, other: Mark) -> str:
        """Compare a stream that ends before every budget of this mark, by the mark's own folder.

        The folder counts only if it still holds the budget that this mark knows.
        """
        longest, ours = max(other.budgets), None
        try:
            folder = Corpus.open(self.path)
            known = min(b for b in self.budgets if longest <= b <= folder.num_tokens)
            if _prefix(folder, known) == self.budgets[known]:
                ours = _prefix(folder, longest)
        except ValueError:  # a ConfigError, or no such budget
            pass
        if ours is None:
            return f"only {count_label(longest)} tokens, which cannot be compared with the first's"
        return "" if ours == other.budgets[longest] else _other_tokens(longest)


def _other_tokens(before: int) -> str:
    return f"other training tokens, before {count_label(before)}"


def _prefix(corpus: Corpus | None, tokens: int) -> str | None:
    if corpus is None or not 0 < tokens <= corpus.num_tokens:
        return None
    return corpus.prefix_sha256(tokens)[:DIGITS]


def refuse_two(study: str, experiment: Any, rows: Sequence[Row], client: Any) -> Mark | None:
    """Read the mark of a study, None if nothing tells it.

    Raises MixedCorporaError if the results of a study were measured on different data.

    The hashes of what was read must be equal for one budget; a study that has no mark is also
    compared across its budgets, by the manifests of its results.
    """
    by_budget: dict[int, Row] = {}
    for row in rows:
        read = row.tags.get("corpus_hash")
        first = by_budget.setdefault(row.unique_tokens, row) if read else row
        if read and read != first.tags["corpus_hash"]:
            raise MixedCorporaError(
                f'the study "{study}" holds results of two corpora (or of two data.val_tokens): at '
                f"{count_label(row.unique_tokens)} tokens of {_place(first)} and of {_place(row)}; "
                f"their losses cannot be compared. {CURE}"
            )
    if TAG in experiment.tags:
        return Mark.from_json(experiment.tags[TAG])
    return marks_of(study, by_budget.values(), client)


CURE = (
    "Search one of them again under another name (--study), or delete the runs of the other in "
    "MLflow"
)


def _place(row: Row) -> str:
    return f"{row.tags.get('corpus', 'a corpus')} (hash {row.tags['corpus_hash'][:8]})"


def marks_of(study: str, rows: Iterable[Row], client: Any) -> Mark | None:
    """Join the marks of these results' manifests into one, None if none can be read.

    Leaves out the budgets of a stream that was not compared with the first's to its end.
    Raises MixedCorporaError if there are two corpora.
    """
    found: Mark | None = None
    for row in rows:
        mark = _marks.get(row.run_id) or _mark_of(client, row)
        if mark is None:
            continue
        _marks[row.run_id] = mark
        if found is None:
            found = mark
            continue
        other, settled = found.compared(mark)
        if other:
            raise MixedCorporaError(
                f'the study "{study}" holds results of two corpora: {found} and {mark}, which has '
                f"{other}; their losses cannot be compared. {CURE}"
            )
        found = found.with_budgets(mark) if settled else found
    return found


_marks: dict[str, Mark] = {}  # by run id: readers ask again and again


def manifest_of(client: Any, run_id: str) -> dict[str, Any] | None:
    """Load the manifest that a result keeps, None if it keeps none that can be read.

    Raises the error as it came if the artifacts are only out of reach for now.
    """
    with tempfile.TemporaryDirectory() as place:
        try:
            if MANIFEST not in {one.path for one in client.list_artifacts(run_id)}:
                return None  # a result of a test, or artifacts that were not copied along
            path = client.download_artifacts(run_id, MANIFEST, place)
            found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        except Exception as error:
            if waiting_helps(error):
                raise
            return None
    return found


def study_manifest(
    directory: Path, run_ids: Iterable[str], *, tracking_uri: str | None = None
) -> dict[str, Any] | None:
    """Load the first manifest that these results of one study keep, None if none does."""
    connection = connect(directory, tracking_uri, create=False)
    for run_id in run_ids:
        read = partial(manifest_of, connection.client, run_id)
        found = connection.patiently(read, seconds=PATIENCE_SECONDS)
        if found is not None:
            return found
    return None


def _mark_of(client: Any, row: Row) -> Mark | None:
    """Make the mark of a result's manifest; raises if the record is away: never mix corpora."""
    found = manifest_of(client, row.run_id)
    if found is None or not {"budgets", "tokenizer", "files"} <= found.keys():
        return None
    return Mark.of_manifest(found, row.tags.get("corpus", "a corpus"))
