"""The validation set scored again: exact for a causal run, else an upper bound with its error."""

from __future__ import annotations

from collections.abc import Mapping

from dcray.corpus.manifest import Corpus
from dcray.corpus.order import cut_rows
from dcray.corpus.validation_rows import ValidationRows
from dcray.evals.run import LoadedRun
from dcray.train.evaluate import FINAL_DRAW, Evaluation, evaluate
from dcray.train.shard import RankContext

AGAIN = FINAL_DRAW - 1  # other draws than the last scoring in training, which is thus checked


def rows_of(corpus: Corpus, seq_len: int, val_tokens: int | None) -> ValidationRows:
    """Cut the validation stream into rows as training does; val_tokens None takes all of it."""
    tokens, text_bytes = corpus.validation(val_tokens)
    return ValidationRows(
        cut_rows(tokens, seq_len, seq_len),
        None if text_bytes is None else cut_rows(text_bytes, seq_len, seq_len),
    )


def score_validation(run: LoadedRun, *, batch_size: int, draws: int | None = None) -> Evaluation:
    """Compute the loss over all validation rows; draws: masks a row, if the objective draws."""
    objective = run.objective.final() if run.objective.keeps_best else run.objective
    if draws is not None:
        objective = type(objective)(**objective.options() | {"draws": draws})
    corpus = run.found.corpus
    return evaluate(
        run.model,
        objective,
        rows_of(corpus, run.seq_len, run.config.data.val_tokens),
        RankContext(run.model.embed.weight.device),
        mask_id=corpus.mask_id,
        microbatch_size=batch_size,
        draw=AGAIN,
    )


def as_metrics(found: Evaluation) -> Mapping[str, float]:
    """Return the loss, its standard error and bits per byte for the record, those that exist."""
    named = {"val_loss": found.loss, "val_loss_stderr": found.stderr, "val_bpb": found.bpb}
    return {name: value for name, value in named.items() if value is not None}
