"""Task scores of one run, each metric beside the value that guessing reaches."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from lm_eval import evaluator

from dcray.evals.tasks.catalog import quiet
from dcray.evals.tasks.harness import RunLM

RESAMPLES = 1_000  # for the standard error of a metric that is not a mean
PAPER_METRICS = {  # paper tab:downstream_evals; other tasks show every metric
    "arc_easy": ("acc_norm",),
    "boolq": ("acc",),
    "hellaswag": ("acc_norm",),
    "piqa": ("acc_norm",),
    "race": ("acc",),
    "sciq": ("acc_norm",),
    "lambada_openai": ("acc", "perplexity"),
}
ACCURACIES = ("acc", "acc_norm", "acc_bytes", "exact_match")


@dataclass(frozen=True)
class TaskScore:
    """One metric of one task over its documents.

    chance: of a uniform guess among the choices. majority: of always giving the commonest label,
    if every document has the same choices. truncated: the share of requests that lost tokens.
    """

    task: str
    metric: str
    value: float
    stderr: float | None
    higher_is_better: bool
    num_documents: int
    chance: float | None
    majority: float | None
    truncated: float
    documents: Mapping[str, Any]  # document's number and hash: its value of the metric

    @property
    def flags(self) -> list[str]:
        """List the reasons to doubt that the value shows skill, such as "below chance"."""
        found = []
        for name, guess in (("chance", self.chance), ("the majority class", self.majority)):
            if guess is not None and self.value < guess:
                by = f" by {(guess - self.value) / self.stderr:.1f} stderr" if self.stderr else ""
                found.append(f"below {name}{by}")
        if self.truncated:
            found.append(f"{self.truncated:.1%} of the requests truncated")
        return found


def score_tasks(lm: RunLM, tasks: Any, *, limit: int | None = None) -> list[TaskScore]:
    """Score every loaded task by its metrics; limit: documents a task, for a quick look."""
    for task in tasks["tasks"].values():
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=1234)
    with quiet():
        found = evaluator.evaluate(lm, tasks, limit=limit, bootstrap_iters=0)
    return [
        score
        for name, task in tasks["tasks"].items()
        for score in _of_task(name, task, found["samples"][name], lm.truncation.share(name))
    ]


def _of_task(
    name: str, task: Any, samples: Sequence[Mapping[str, Any]], truncated: float
) -> list[TaskScore]:
    """Score a task by each metric, and by each filter that reads the answers (gsm8k has two)."""
    by_filter = dict[str, list[Mapping[str, Any]]]()
    for sample in samples:
        by_filter.setdefault(sample["filter"], []).append(sample)
    wanted = PAPER_METRICS.get(name) or tuple(task.aggregation())
    return [
        _of_metric(name, f"/{reader}" if len(by_filter) > 1 else "", metric, task, its, truncated)
        for metric in wanted
        for reader, its in by_filter.items()
        if any(metric in sample for sample in its)
    ]


def _of_metric(
    name: str,
    reader: str,
    metric: str,
    task: Any,
    samples: Sequence[Mapping[str, Any]],
    truncated: float,
) -> TaskScore:
    values = [sample[metric] for sample in samples if metric in sample]
    chance, majority = guesses(samples, task) if metric in ACCURACIES else (None, None)
    aggregate = task.aggregation()[metric]
    return TaskScore(
        name,
        f"{metric}{reader}",
        float(aggregate(values)),
        standard_error(values, aggregate),
        bool(task.higher_is_better()[metric]),
        len(values),
        chance,
        majority,
        truncated,
        {_document(s): _plain(s[metric]) for s in samples if metric in s},
    )


def guesses(samples: Sequence[Mapping[str, Any]], task: Any) -> tuple[float | None, float | None]:
    """Compute (chance, majority) of a task's accuracy; None for one that does not exist.

    If the choices differ between documents there is no majority class: sciq's right answer is
    always the fourth, but no model is told so.
    """
    if task.OUTPUT_TYPE == "loglikelihood":
        return 0.0, None  # a guess among all words
    if task.OUTPUT_TYPE != "multiple_choice":
        return None, None
    choices = [tuple(pair[1] for pair in sample["arguments"]) for sample in samples]
    chance = sum(1 / len(each) for each in choices) / len(choices)
    if len(set(choices)) > 1:
        return chance, None
    labels = Counter(json.dumps(sample["target"]) for sample in samples)
    return chance, max(labels.values()) / len(samples)


def standard_error(values: Sequence[Any], aggregate: Callable[[Any], float]) -> float | None:
    """Compute the standard error of an aggregate over documents; None for fewer than two.

    It is sd / sqrt(n) for a mean, by the delta method for exp(-mean), else by a bootstrap.
    """
    if len(values) < 2:
        return None
    name = getattr(aggregate, "__name__", "")
    if name in ("mean", "perplexity"):
        numbers = np.asarray(values, float)
        error = float(numbers.std(ddof=1)) / math.sqrt(len(values))
        return error if name == "mean" else error * float(aggregate(values))
    rng = np.random.default_rng(0)
    with warnings.catch_warnings(action="ignore"):  # from resamples with one label alone
        again = [
            aggregate([values[i] for i in rng.integers(0, len(values), len(values))])
            for _ in range(RESAMPLES)
        ]
    return float(np.std(again, ddof=1))


@cache
def published() -> dict[str, dict[str, float | None]]:
    """Load the paper's 1.4B models on 100M tokens: {"arc_easy/acc_norm": {"ar": .., "mir": ..}}."""
    text = (files("dcray.fit.paper") / "data" / "published.json").read_text(encoding="utf-8")
    table = json.loads(text)["downstream_1.4b_100m"]
    columns = table["columns"]
    return {
        name.replace("lambada/", "lambada_openai/"): dict(zip(columns, values, strict=True))
        for name, values in table.items()
        if name not in ("source", "columns")
    }


def as_metrics(scores: Sequence[TaskScore]) -> dict[str, float]:
    """Return the metrics for the record: TASK/METRIC, and TASK/METRIC_stderr if there is one."""
    metrics = {f"{s.task}/{s.metric}": s.value for s in scores}
    errors = {f"{s.task}/{s.metric}_stderr": s.stderr for s in scores if s.stderr is not None}
    shares = {f"{s.task}/truncated_frac": s.truncated for s in scores}
    return metrics | errors | shares


def as_artifacts(scores: Sequence[TaskScore]) -> dict[str, Any]:
    """Return every document's values for the record, so that other runs can be paired with them."""
    return {f"{s.task}/{s.metric}": dict(s.documents) for s in scores}


def _plain(value: Any) -> Any:
    """Convert a document's value to plain JSON types: lm-eval leaves numpy numbers in pairs."""
    if isinstance(value, (tuple, list, np.ndarray)):
        return [_plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def _document(sample: Mapping[str, Any]) -> str:
    return f"{sample['doc_id']}-{sample['doc_hash'][:16]}"
