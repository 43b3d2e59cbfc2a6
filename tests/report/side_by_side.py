"""Studies of several recipes of known worth, as rows in memory with real configurations."""

from __future__ import annotations

import numpy as np

from dcray.config.run import RunConfig, override
from tests.report.planted import BUDGETS, SIZES, THETA
from tests.report.rows import row

WORTHS = {"better": 1.35, "mir": 1.2, "same": 1.0, "worse": 0.75}
NOISE = 0.003  # of a seed, relative


def softq(size, budget, worth=1.0):
    """The loss of a recipe that is worth `worth` times the data, whatever it costs."""
    E, A, B, alpha, rho = THETA
    N, U = SIZES[size] / 1e9, budget * worth / 1e9
    return E + (A * N**-rho + B * U ** (-rho / (1 + alpha))) ** (alpha / rho)


def config(size, budget, objective="ar", epochs=16, **more):
    """The configuration of a run, resolved."""
    fields = {"size": size, "data.unique_tokens": budget, "data.seq_len": 64, "batch_size": 8,
              "objective.name": objective, "num_epochs": epochs, **more}  # fmt: skip
    return override(RunConfig(), fields).resolved(vocab_size=512)


def configs(rows):
    """A reader of configurations, {run id: plain values} behind a call."""
    found = {
        one.run_id: config(
            one.size, one.unique_tokens, one.tags["objective"], one.num_epochs or 16
        ).to_dict()
        for one in rows
    }
    return found.__getitem__


def study(worths=None, *, seeds=(1, 2, 3), sizes=tuple(SIZES), budgets=BUDGETS, random=None):
    """Rows of ar and of recipes {name: worth}: a winner in each cell, and its fresh seeds."""
    random, rows = random or np.random.default_rng(0), []
    for recipe, worth in {"ar": 1.0, **(WORTHS if worths is None else worths)}.items():
        objective = "mir" if recipe == "mir" else "ar"
        for size in sizes:
            for budget in budgets:
                truth = softq(size, budget, worth)
                tokens = str(config(size, budget).train_tokens)
                for seed in (42, *seeds):
                    loss = truth * np.exp(NOISE * random.standard_normal())
                    kind = "branch" if seed == 42 else "confirmation"
                    rows.append(row(loss, size=size, N=SIZES[size], U=budget, recipe=recipe,
                                    seed=seed, kind=kind, objective=objective,
                                    train_tokens=tokens))  # fmt: skip
    return rows
