"""A study as a search leaves it: real MLflow in a real SQLite file, losses of a known law."""

from __future__ import annotations

import numpy as np

from dcray.track.points import Point
from dcray.track.store import Store
from dcray.types import Cell, RunKey

STUDY = "planted"
SIZES = {"60k": 59_616, "226k": 225_824, "431k": 430_848, "984k": 984_320}
BUDGETS = (16_000, 32_000, 64_000, 128_000)
GAIN = 1.2  # what mir is worth in unique data, by construction
THETA = (2.0, 2e-6, 4e-5, 0.5, 1.3)  # E, A, B, alpha, rho of SoftQ, N and U in billions
NOISE = 0.002


def truth(size, budget, recipe):
    """The planted loss: mir at U is ar at GAIN * U."""
    E, A, B, alpha, rho = THETA
    U = budget * (GAIN if recipe == "mir" else 1) / 1e9
    N = SIZES[size] / 1e9
    return E + (A * N**-rho + B * U ** (-rho / (1 + alpha))) ** (alpha / rho)


def plant(store, cell, *, loss, seed=42, epochs=16, decay=0.8, lr=5e-3, kind="branch", name="a",
          curve=(), end="finish", objective=None, bound=None, reads=None,
          manifest=None, config=None, **options):  # fmt: skip
    """One result, ended as asked; its run id."""
    key = RunKey(cell, f"{name}{epochs}{decay}{lr}".replace(".", ""), seed, kind)
    params = {
        "objective": objective or cell.recipe, "num_epochs": epochs, "weight_decay": decay,
        "lr": lr, "tau": 1.0, "num_params": SIZES.get(cell.size, 1000), **options,
    }  # fmt: skip
    tags = {"objective": objective or cell.recipe, "bound": bound, "corpus_hash": reads}
    result = store.begin(key, config=config or {}, params=params, tags=tags, manifest=manifest)
    result.log([Point(i + 1, 1000 * i, e, {"val/loss": v}) for i, (e, v) in enumerate(curve)])
    if end == "finish":
        result.finish({"val_loss": loss, "val_bpb": loss / 2, "device_seconds": 3.0})
    elif end == "diverge":
        result.diverge("the loss was inf")
    else:
        result.interrupt("stopped")
    return result.run_id


def plant_study(directory, *, seeds=(1, 2), sizes=tuple(SIZES), budgets=BUDGETS, study=STUDY):
    """ar and mir in every cell with three candidates and `seeds` fresh seeds each."""
    random = np.random.default_rng(3)
    with Store.open(directory, study=study) as store:
        for budget in budgets:
            for size in sizes:
                shared = random.normal(0, NOISE, 8)
                for recipe in ("ar", "mir"):
                    cell, loss = Cell(study, size, budget, recipe), truth(size, budget, recipe)
                    for i, epochs in enumerate((8, 16, 32)):
                        worse = (0.15, 0.0, 0.06)[i]
                        final = loss + worse + shared[i]
                        curve = [(e, final + 0.9 * 0.8**e) for e in range(1, epochs)]
                        plant(
                            store, cell, loss=final, epochs=epochs, curve=[*curve, (epochs, final)]
                        )
                    for j, seed in enumerate(seeds):
                        own = random.normal(0, NOISE / 3)
                        fresh = loss + shared[4 + j] + own
                        plant(store, cell, loss=fresh, seed=seed, kind="confirmation")
        weak = Cell(study, sizes[-1], budgets[0], "weak")
        curve = [(e, 4.2 + 0.02 * (e - 6) ** 2) for e in range(1, 17)]
        plant(store, weak, loss=curve[-1][1], decay=0.1, curve=curve, objective="ar", name="w")
        tuned = Cell(study, sizes[-1], budgets[0], "mir-tuning")
        lowest = truth(sizes[-1], budgets[0], "mir")
        for high in (0.3, 0.5, 0.8):
            for weight in (0.1, 0.2, 0.4, 0.8):
                loss = lowest + (weight - 0.4) ** 2 / 8 + (high - 0.5) ** 2 / 4
                mir = {"mask_ratio_min": 0.0, "mask_ratio_max": high, "weight": weight}
                options = {f"objective.{name}": value for name, value in mir.items()}
                name = f"t{weight}{high}"
                plant(store, tuned, loss=loss, name=name, objective="mir", **options)
