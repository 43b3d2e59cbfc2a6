"""The output of `dcray eval`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dcray.evals.compare import Comparison
from dcray.evals.evaluate import Answer
from dcray.evals.tasks.results import TaskScore, published
from dcray.fit.output.text import table


def answer_text(answer: Answer) -> str:
    """Format one run: a line for its validation loss, or a table of its tasks."""
    if answer.validation is not None:
        return _validation_line(answer)
    with_paper = any(f"{s.task}/{s.metric}" in published() for s in answer.scores)
    header = ["task", "metric", "value", "stderr", "documents", "chance", "majority"]
    header += ["paper AR", "paper MIR"] if with_paper else []
    rows = [[*_cells(score, with_paper), "; ".join(score.flags)] for score in answer.scores]
    lines = [answer.found.label, table([*header, ""], rows)]
    if answer.bound:
        lines.append(
            "ranked by a lower bound on the log-likelihood (the ELBO): not comparable "
            "with a causal model's accuracies, and its perplexities are upper bounds"
        )
    if with_paper:
        lines.append("paper: its 1.4B models on 100M unique tokens, tab:downstream_evals")
    return "\n".join(lines)


def comparison_text(found: Sequence[Comparison], first: str, second: str) -> str:
    """Format the comparison of two runs, A and B, as a table."""
    rows = [
        [
            one.task, one.metric, _number(one.first), _number(one.second),
            f"{one.difference:+.4f}", f"[{one.low:+.4f}, {one.high:+.4f}]",
            "-" if one.first_only is None else f"{one.first_only} : {one.second_only}",
            f"{one.p:.3g}", one.test,
        ]
        for one in found
    ]  # fmt: skip
    header = ["task", "metric", "A", "B", "B - A", "95 %", "A only : B only", "p", "test"]
    notes = (
        "B - A: of the mean over documents, up is better; for perplexities and bits it is of the "
        "log-likelihood"
    )
    if len(found) > 1:
        notes += f"; of {len(found)} tests, one in twenty is below 0.05 by chance"
    return f"A {first}\nB {second}\n{table(header, rows)}\n{notes}"


def as_dict(answers: Sequence[Answer], pairs: Sequence[Comparison]) -> dict[str, Any]:
    """Return answers and comparisons as plain JSON types, without values of single documents."""
    return {
        "runs": [_run_dict(answer) for answer in answers],
        "comparison": [vars(one) for one in pairs],
    }


def _run_dict(answer: Answer) -> dict[str, Any]:
    row = answer.found.row
    scores = [
        {name: value for name, value in vars(s).items() if name != "documents"} | {"flags": s.flags}
        for s in answer.scores
    ]
    validation = None if answer.validation is None else vars(answer.validation)
    return {
        "run_id": row.run_id, "key": row.key, "study": row.study, "bound": answer.bound,
        "tasks": scores, "validation": validation, "recorded_val_loss": row.val_loss,
    }  # fmt: skip


def _validation_line(answer: Answer) -> str:
    found, row = answer.validation, answer.found.row
    assert found is not None
    error = f" +- {found.stderr:.4f} (standard error of its draws)" if found.stderr else ""
    bound = f" ({answer.bound})" if answer.bound else ""
    bpb = f", {found.bpb:.4f} bits per byte{bound}" if found.bpb is not None else ""
    before = f"; on record {row.val_loss:.4f}" if row.val_loss is not None else ""
    noted = row.metrics.get("val_loss_stderr")
    before += f" +- {noted:.4f}" if noted is not None else ""
    return (
        f"{answer.found.label}: {found.loss:.4f}{error} nats per token{bound}{bpb}, over "
        f"{found.num_tokens:,} tokens{before}"
    )


def _cells(score: TaskScore, with_paper: bool) -> list[Any]:
    paper = published().get(f"{score.task}/{score.metric}", {})
    shown = [_number(paper.get("ar")), _number(paper.get("mir"))] if with_paper else []
    guesses = [_number(score.chance), _number(score.majority)]
    error = _number(score.stderr)
    return [score.task, score.metric, _number(score.value), error, score.num_documents,
            *guesses, *shown]  # fmt: skip


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.5g}"
