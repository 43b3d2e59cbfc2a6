"""A comparison of two runs on the same documents: which is better, and whether it may be chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dcray.evals.tasks.results import TaskScore

WEIGHTED = ("word_perplexity", "byte_perplexity", "bits_per_byte")  # (nats, weight) a document
FLIPS = 20_000  # sign flips, and resamples of documents


@dataclass(frozen=True)
class Comparison:
    """The second run minus the first on one metric, over the documents that both have.

    For accuracies `difference` is of the metric, with the exact McNemar p value; else it is of the
    mean value a document (the log-likelihood behind a perplexity), with a sign-flip p value.
    low, high: the 95 % bootstrap interval over documents.
    """

    task: str
    metric: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    p: float
    num_documents: int
    first_only: int | None  # documents that the first run alone has right
    second_only: int | None
    test: str


def compare(first: Sequence[TaskScore], second: Sequence[TaskScore]) -> list[Comparison]:
    """Compare two runs on every metric that both have, in the first's order.

    Metrics without a value for each document (f1 and mcc, computed over all of them) are left out.
    """
    theirs = {(score.task, score.metric): score for score in second}
    pairs = [(a, theirs[a.task, a.metric]) for a in first if (a.task, a.metric) in theirs]
    return [_compared(a, b) for a, b in pairs if _of_documents(a)]


def _of_documents(score: TaskScore) -> bool:
    values = score.documents.values()
    return score.metric in WEIGHTED or not any(isinstance(v, (tuple, list)) for v in values)


def _compared(a: TaskScore, b: TaskScore) -> Comparison:
    common = [name for name in a.documents if name in b.documents]
    values = [(_number(a.documents[n]), _number(b.documents[n])) for n in common]
    array = np.array(values, float).reshape(-1, 2)
    gaps = array[:, 1] - array[:, 0]
    first_only = second_only = None
    if bool(np.isin(array, (0.0, 1.0)).all()):
        first_only, second_only = int((gaps < 0).sum()), int((gaps > 0).sum())
        p, test = mcnemar(first_only, second_only), "McNemar"
    else:
        p, test = sign_flip(gaps), "sign flip"
    low, high = bootstrap(gaps)
    mean = float(gaps.mean()) if len(gaps) else 0.0
    return Comparison(
        task=a.task,
        metric=a.metric,
        first=a.value,
        second=b.value,
        difference=mean,
        low=low,
        high=high,
        p=p,
        num_documents=len(common),
        first_only=first_only,
        second_only=second_only,
        test=test,
    )


def mcnemar(first_only: int, second_only: int) -> float:
    """Compute the exact two-sided McNemar p value of the documents that only one run has right."""
    from scipy.stats import binomtest

    total = first_only + second_only
    return float(binomtest(first_only, total, 0.5).pvalue) if total else 1.0


def sign_flip(gaps: np.ndarray[Any, Any]) -> float:
    """Estimate the two-sided p value of a mean gap from random signs, the observed among them."""
    if not len(gaps):
        return 1.0
    rng, seen, count = np.random.default_rng(0), abs(gaps.mean()), 1
    for start in range(0, FLIPS, 500):
        signs = rng.integers(0, 2, (min(500, FLIPS - start), len(gaps)), dtype=np.int8) * 2 - 1
        count += int((np.abs(signs @ gaps / len(gaps)) >= seen - 1e-12).sum())
    return count / (FLIPS + 1)


def bootstrap(gaps: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Compute the 95 % bootstrap interval (low, high) of the mean gap over resampled documents."""
    if not len(gaps):
        return 0.0, 0.0
    rng, means = np.random.default_rng(0), []
    for _ in range(40):
        drawn = rng.integers(0, len(gaps), (50, len(gaps)))
        means.append(gaps[drawn].mean(1))
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return float(low), float(high)


def _number(value: Any) -> float:
    """Return a document's value as a number; for a pair (nats, words) the first over the second."""
    if isinstance(value, (tuple, list)):
        return float(value[0]) / float(value[1])
    return float(value)


def as_dict(found: Comparison) -> Mapping[str, Any]:
    """Return the fields of a comparison as plain JSON types."""
    return vars(found)
