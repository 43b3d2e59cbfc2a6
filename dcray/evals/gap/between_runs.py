"""`dcray gap`: both runs on the validation set, the figures, the tokens of the largest gaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dcray.corpus.manifest import VALIDATION, VALIDATION_OFFSETS
from dcray.errors import ConfigError
from dcray.evals.evaluate import pick_device, row_batch
from dcray.evals.gap import token_gap, token_kinds
from dcray.evals.gap.token_gap import Gap
from dcray.evals.gap.token_kinds import Token
from dcray.evals.run import FoundRun, find_run
from dcray.fit.paper.published import figures
from dcray.track.evaluations import remark

SAMPLE = 10_000  # random targets, whose shares of kinds the top tokens are compared with


@dataclass(frozen=True)
class Found:
    """The result of comparing two runs token by token."""

    first: FoundRun
    second: FoundRun
    summary: dict[str, Any]
    favors_b: list[Token]  # the top 0.1 %, the largest gap first
    favors_a: list[Token]
    kinds: dict[str, dict[str, float]]  # "b", "a", "all": shares of kinds

    @property
    def paper(self) -> dict[str, Any]:
        """Return the paper's figures for its 1.4B models, A the baseline and B MIR."""
        found: dict[str, Any] = figures()["token_gap_1.4b"]
        return found


def token_gap_of(
    names: tuple[str, str],
    *,
    directory: Path,
    corpus: Path | None = None,
    tracking_uri: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    batch_size: int | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Found:
    """Compute the token gap of two causal runs and write its figures to the second run's record.

    Raises ConfigError if the runs cannot be compared token by token: another tokenizer, another
    validation set, or a loss that is only a bound.
    """
    place = pick_device(device)
    if batch_size is not None and batch_size < 1:
        raise ConfigError(f"--batch-size must be at least 1, got {batch_size}")
    first, second = (
        find_run(directory, name, corpus=corpus, tracking_uri=tracking_uri) for name in names
    )
    _check_comparable(first, second)
    nats, lengths, val_tokens = [], [], []
    for found in (first, second):
        note(f"{found.label}: weights from {found.place}")
        run = found.load(place, precision=precision, compiled=place.type == "cuda")
        tokens, _ = first.corpus.validation(run.config.data.val_tokens)
        rows = row_batch(run.seq_len, batch_size)
        nats.append(
            token_gap.token_nats(
                run.model, tokens, seq_len=run.seq_len, batch_size=rows, device=place
            )
        )
        lengths.append(run.seq_len)
        val_tokens.append(tokens)
    count = min(map(len, nats))
    offsets = np.load(first.corpus.path / VALIDATION_OFFSETS)
    same = lengths[0] if lengths[0] == lengths[1] else None
    gap = Gap(nats[0][:count], nats[1][:count], offsets, same)
    result = describe(gap, val_tokens[0], first, second)
    name = f"gap/{first.row.run_id[:8]}"
    metrics = token_gap.as_metrics(result.summary).items()
    remark(
        directory,
        second.row,
        {f"{name}/{key}": value for key, value in metrics},
        tracking_uri=tracking_uri,
    )
    return result


def describe(gap: Gap, tokens: Any, first: FoundRun, second: FoundRun) -> Found:
    """Describe a gap: its figures, its top tokens in context, and the shares of their kinds."""
    tokenizer, d = first.corpus.tokenizer, gap.difference()
    drawn = np.random.default_rng(0).permutation(len(gap))[:SAMPLE]
    tops = [token_gap.top(d, favors_b=favors_b) for favors_b in (True, False)]
    b, a, usual = (
        token_kinds.in_context(tokenizer, tokens, targets, gap.first, gap.second)
        for targets in (*tops, drawn)
    )
    kinds = {"b": token_kinds.shares(b), "a": token_kinds.shares(a),
             "all": token_kinds.shares(usual)}  # fmt: skip
    return Found(first, second, token_gap.summary(gap), b, a, kinds)


def _check_comparable(first: FoundRun, second: FoundRun) -> None:
    for found in (first, second):
        if found.row.tags.get("bound"):
            raise ConfigError(
                f"{found.name} has no loss of single tokens, only an upper bound on it "
                f"({found.row.tags.get('objective')}): dcray gap compares causal runs"
            )
    a, b = first.corpus.manifest, second.corpus.manifest
    if a.tokenizer.sha256 != b.tokenizer.sha256:
        raise ConfigError(
            f"{second.name} is a checkpoint of another tokenizer ({b.tokenizer.name}) than "
            f"{first.name} ({a.tokenizer.name}): their tokens cannot be compared"
        )
    if a.files[VALIDATION] != b.files[VALIDATION]:
        raise ConfigError(
            f"{first.corpus.path} and {second.corpus.path} have different validation sets; "
            "--corpus names the one on which both are to be compared"
        )
