"""Data sets of the Hugging Face hub, streamed; the revision is pinned and recorded.

    huggingface:dclm            the paper's: konwoo's 164k documents, topped up from DCLM-baseline
    huggingface:stack_v2        gated, and ids without contents: the error says what is needed
    huggingface:OWNER/NAME      any data set with a column of text; or a local folder of its files

Documents are read in the data set's own order. `num_documents` takes the first so many: that makes
a corpus of a stream too large to be read to its end, and the same corpus every time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pyarrow as pa

from dcray.config.sections import TokenCount
from dcray.errors import ConfigError, did_you_mean
from dcray.sources import Document, SourceOptions, content, tables, text_of, valid_text

if TYPE_CHECKING:
    import ray.data

STACK_V2 = (
    "stack_v2 (bigcode/the-stack-v2) is gated and holds ids without contents: accept its terms on "
    "its page, set HF_TOKEN, and fetch the contents of its blobs from Software Heritage under "
    "their terms; then prepare files:FOLDER of what was fetched, or huggingface:NAME of a subset "
    "that has contents (its column: --option text_column=content)"
)


class Part(NamedTuple):
    """One data set of a source: its name, its commit, and how many of its documents."""

    name: str
    revision: str | None
    num_documents: int | None


DCLM = (  # the released scripts' revisions
    Part("konwoo/dclm-164k-docs-train", "c4f5716", None),
    Part("mlfoundations/dclm-baseline-1.0", "a3b142c", 250_000),
)
PRESETS = ("dclm", "stack_v2")


class HuggingFace(SourceOptions):
    """A data set by name, a preset, or a local folder in a form that `datasets` loads."""

    ARGUMENT: ClassVar[str] = "dataset"

    dataset: str
    revision: str | None = None  # branch, tag or commit; resolved to a commit
    config: str | None = None  # the data set's configuration
    split: str = "train"
    text_column: str = "text"
    num_documents: TokenCount | None = None  # the first so many; of dclm: of its topping up

    def request(self) -> dict[str, Any]:
        """Return the options, and a local folder's content: an edit makes another request."""
        folder = Path(self.dataset)
        if self.dataset in PRESETS or not folder.is_dir():
            return super().request()
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        return {**super().request(), "content": content(folder, found)}

    def parts(self) -> list[Part]:
        """List the data sets that are read, in order, each at the commit that is recorded.

        Raises ConfigError for stack_v2, and if a revision cannot be resolved.
        """
        if self.dataset == "stack_v2":
            raise ConfigError(STACK_V2)
        if self.dataset == "dclm":
            chosen = [DCLM[0], DCLM[1]._replace(num_documents=self.num_documents or 250_000)]
        elif "/" not in self.dataset and not Path(self.dataset).exists():
            raise ConfigError(
                f'no preset or folder is called "{self.dataset}"'
                f"{did_you_mean(self.dataset, PRESETS)}; a data set is OWNER/NAME"
            )
        else:
            chosen = [Part(self.dataset, self.revision, self.num_documents)]
        return [part._replace(revision=resolve(part.name, part.revision)) for part in chosen]

    def describe(self) -> dict[str, Any]:
        parts = self.parts()
        return {
            **self.request(),
            "revision": {part.name: part.revision for part in parts},
            "licence": {part.name: licence(part.name, part.revision) for part in parts},
        }

    def documents(self) -> ray.data.Dataset:
        import ray.data

        _needs_datasets()
        rows = [row for part in self.parts() for row in self._reads(part)]
        listed = ray.data.from_items(rows, override_num_blocks=len(rows))
        options = {"config": self.config, "split": self.split, "text_column": self.text_column}
        return listed.map_batches(
            read_shards, batch_size=None, batch_format="pyarrow", fn_kwargs=options
        )

    def _reads(self, part: Part) -> list[dict[str, Any]]:
        """List the reads: one a shard; the first n documents are one, as they count in order."""
        base = {"name": part.name, "revision": part.revision, "limit": part.num_documents}
        if part.num_documents is not None:
            return [{**base, "shard": None}]
        stream = open_stream(part.name, part.revision, self.config, self.split)
        return [{**base, "shard": shard} for shard in range(stream.num_shards)]


def read_shards(
    reads: pa.Table, config: str | None, split: str, text_column: str
) -> Iterator[pa.Table]:
    """Yield the documents of each read, ids NAME/SHARD/ROW in whole and partial reads alike."""
    for read in reads.to_pylist():
        stream = open_stream(read["name"], read["revision"], config, split)
        yield from tables(_documents(stream, read, text_column))


def open_stream(name: str, revision: str | None, config: str | None, split: str) -> Any:
    """Open the data set as a stream; raises ConfigError if it cannot be opened."""
    import datasets

    try:
        return datasets.load_dataset(name, config, revision=revision, split=split, streaming=True)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"the data set {name} cannot be opened ({reason}); a gated one needs HF_TOKEN and "
            "its terms accepted; without a network give a local folder of its files"
        ) from None


def _documents(stream: Any, read: dict[str, Any], text_column: str) -> Iterator[Document]:
    name = Path(read["name"]).name if Path(read["name"]).exists() else read["name"]
    left = read["limit"]
    shards = range(stream.num_shards) if read["shard"] is None else [read["shard"]]
    for shard in shards:
        for number, row in enumerate(stream.shard(stream.num_shards, shard)):
            if left == 0:
                return
            text = text_of(row, text_column)
            if text is None:
                raise ConfigError(
                    f'{read["name"]} has no text in "{text_column}"; name the column by '
                    f"text_column{did_you_mean(text_column, row)}"
                )
            left = None if left is None else left - 1
            yield Document(f"{name}/{shard}/{number}", *valid_text(text))


def _needs_datasets() -> None:
    try:
        import datasets  # noqa: F401
    except ImportError:
        raise ConfigError('huggingface needs `datasets`: pip install "dcray[hf]"') from None


def resolve(name: str, revision: str | None) -> str | None:
    """Find the commit that `revision` (None: the newest) names; None for a local folder.

    A full commit needs no network. Raises ConfigError if the revision cannot be resolved.
    """
    if Path(name).exists():
        return None
    if revision and re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    return str(_info(name, revision).sha)


def licence(name: str, revision: str | None) -> str | None:
    """Find the licence on the data set's card; None if it states none or is out of reach."""
    if Path(name).exists():
        return None
    try:
        card = _info(name, revision).card_data
    except ConfigError:
        return None
    stated = card.get("license") if card else None
    return str(stated) if stated else None


@lru_cache
def _info(name: str, revision: str | None) -> Any:
    _needs_datasets()
    import huggingface_hub

    try:
        return huggingface_hub.HfApi().dataset_info(name, revision=revision)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"the revision of {name} cannot be resolved ({reason}); without a network give its "
            "full commit (--option revision=40 hex digits), or a local folder of its files"
        ) from None


PLUGIN = HuggingFace
