"""Paired tests and what a guess gets, against closed forms."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from dcray.evals import compare as c
from dcray.evals.tasks.results import TaskScore, _of_task, guesses, published, standard_error


def score(values, metric="acc", **more):
    fields = {
        "task": "t", "metric": metric, "value": float(np.mean(values)), "stderr": 0.1,
        "higher_is_better": True, "num_documents": len(values), "chance": None, "majority": None,
        "truncated": 0.0, "documents": {str(i): v for i, v in enumerate(values)},
    }  # fmt: skip
    return TaskScore(**fields | more)


@pytest.mark.parametrize(("a", "b"), [(0, 0), (1, 0), (3, 9), (12, 30), (7, 7)])
def test_mcnemar_is_the_exact_binomial(a, b):
    n, few = a + b, min(a, b)
    tail = sum(math.comb(n, k) for k in range(few + 1)) / 2**n
    assert c.mcnemar(a, b) == pytest.approx(min(1.0, 2 * tail))


def test_sign_flips_meet_their_enumeration():
    gaps = np.array([0.9, 0.4, -0.1, 0.7, 1.1, 0.3, 0.5, -0.2, 0.6, 0.8])
    means = [abs(np.dot(s, gaps)) for s in itertools.product([1, -1], repeat=len(gaps))]
    exact = np.mean(np.array(means) >= abs(gaps.sum()) - 1e-12)
    assert c.sign_flip(gaps) == pytest.approx(exact, abs=0.002)
    assert c.sign_flip(np.zeros(5)) == 1.0


def test_the_bootstrap_interval_is_the_normal_one_for_many_documents():
    gaps = np.random.default_rng(1).normal(0.2, 1.0, 4000)
    low, high = c.bootstrap(gaps)
    half = 1.96 * gaps.std(ddof=1) / math.sqrt(len(gaps))
    assert (low, high) == pytest.approx((gaps.mean() - half, gaps.mean() + half), abs=0.004)


def test_two_runs_are_paired_by_document():
    first, second = score([1.0, 0.0, 0.0, 1.0]), score([1.0, 1.0, 1.0, 0.0])
    (found,) = c.compare([first], [second])
    assert (found.first_only, found.second_only, found.num_documents) == (1, 2, 4)
    assert found.difference == pytest.approx(0.25)
    assert found.p == 1.0
    (shorter,) = c.compare([first], [score([1.0, 1.0])])
    assert shorter.num_documents == 2
    nats = [score([1.0], "bits_per_byte", documents={"0": (sum_, 3)}) for sum_ in (-6.0, -3.0)]
    (weighted,) = c.compare(nats[:1], nats[1:])
    assert weighted.difference == pytest.approx(1.0)
    assert weighted.test == "sign flip"


def test_the_papers_boolq_is_flagged():
    assert published()["boolq/acc"]["ar"] == 0.4511
    said = score([1.0], value=0.4511, stderr=0.0087, chance=0.5, majority=0.6217).flags
    assert said == ["below chance by 5.6 stderr", "below the majority class by 19.6 stderr"]
    fine = score([1.0], value=0.6, chance=0.25, truncated=0.031)
    assert fine.flags == ["3.1% of the requests truncated"]


def samples(choices, targets):
    return [
        {"arguments": [("q", choice) for choice in each], "target": target}
        for each, target in zip(choices, targets, strict=True)
    ]


def test_guesses_are_uniform_and_of_the_commonest_label():
    task = SimpleNamespace(OUTPUT_TYPE="multiple_choice")
    fixed = samples([(" no", " yes")] * 10, [1] * 6 + [0] * 4)
    assert guesses(fixed, task) == (0.5, 0.6)
    differing = samples([("a", "b", "c", "d"), ("e", "f")], [3, 3])
    assert guesses(differing, task) == (0.375, None)  # sciq: always the last is no class
    assert guesses([], SimpleNamespace(OUTPUT_TYPE="loglikelihood")) == (0.0, None)
    assert guesses([], SimpleNamespace(OUTPUT_TYPE="generate_until")) == (None, None)


def test_answers_that_two_filters_read_are_two_scores():
    """gsm8k's strict and lax readers see the same documents: their mean is nobody's score."""
    task = SimpleNamespace(
        OUTPUT_TYPE="generate_until",
        aggregation=lambda: {"exact_match": np.mean},
        higher_is_better=lambda: {"exact_match": True},
    )

    def read(by, hits):
        return [
            {"filter": by, "doc_id": i, "doc_hash": "a" * 64, "exact_match": hit}
            for i, hit in enumerate(hits)
        ]

    strict, lax = read("strict-match", [0.0, 0.0, 1.0]), read("flexible-extract", [1.0, 0.0, 1.0])
    found = _of_task("gsm8k", task, [*strict, *lax], 0.0)
    said = [(one.metric, one.value, one.num_documents) for one in found]
    assert said == [
        ("exact_match/strict-match", pytest.approx(1 / 3), 3),
        ("exact_match/flexible-extract", pytest.approx(2 / 3), 3),
    ]
    (alone,) = _of_task("gsm8k", task, lax, 0.0)
    assert alone.metric == "exact_match"


def test_standard_errors():
    def mean(items):
        return float(np.mean(items))

    def perplexity(items):
        return math.exp(-float(np.mean(items)))

    def spread(items):
        return float(np.mean(items)) * 2

    values = list(np.random.default_rng(0).normal(-4, 1, 500))
    expected = np.std(values, ddof=1) / math.sqrt(500)
    assert standard_error(values, mean) == pytest.approx(expected)
    assert standard_error(values, perplexity) == pytest.approx(expected * perplexity(values))
    assert standard_error(values, spread) == pytest.approx(2 * expected, rel=0.1)
    assert standard_error([1.0], mean) is None
