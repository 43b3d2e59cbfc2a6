"""The answer as plain values, as --json and fit.json have it."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dcray.fit.diagnose import model_gap
from dcray.laws._law import Points

if TYPE_CHECKING:
    from dcray.fit.answer import Answer


def as_json(found: Answer) -> dict[str, Any]:
    """What --json prints: plain values, full precision, missing numbers as null."""
    own = found.grids[found.baseline]
    return {
        "baseline": found.baseline,
        "laws": _laws_json(found, found.baseline),
        "recipes": {
            recipe: {"bound": found.grids[recipe].bound or None, "laws": _laws_json(found, recipe)}
            for recipe in found.equivalences
        },
        "efficiency": [
            {"recipe": recipe, **asdict(one), "like_for_like": one.like_for_like}
            for recipe, answers in found.equivalences.items()
            for one in answers
        ],
        "paired": [
            {"recipe": recipe, **asdict(one)}
            for recipe, pairs in found.pairs.items()
            for one in pairs
        ],
        "held_out": [
            {
                "law": one.fit.name,
                "held_out": one.left_out,
                "rmse": one.rmse,
                "mae": one.mae,
                "residuals": one.residual.tolist(),
            }
            for one in found.held_out
        ],
        "leave_one_out_rmse": found.left_out_rmse,
        "predictions": [asdict(one) for one in found.predictions],
        "model_gap": _gap_json(own.points),
        "seed_noise": own.seed_noise,
        "cells": len(own.losses),
        "excluded": found.excluded,
    }


def _gap_json(points: Points) -> list[dict[str, float]]:
    return [
        {"unique_tokens": U * 1e9, "num_params": N * 1e9, "gap": gap}
        for U, by_size in model_gap(points).items()
        for N, gap in by_size.items()
    ]


def _laws_json(found: Answer, recipe: str) -> dict[str, Any]:
    laws = {}
    for name, one in found.fits[recipe].items():
        laws[name] = {
            "theta": dict(zip(one.law.names, one.theta, strict=True)),
            "rmse": one.rmse,
            "mae": one.mae,
            "aic": one.aic if math.isfinite(one.aic) else None,
            "num_starts": one.num_starts,
            "agreeing_frac": one.agreeing_frac,
            "flags": list(one.flags),
            "not_identified": dict(one.not_identified),
        }
        if found.resamples:
            laws[name]["intervals"] = found.resamples[recipe][name].parameters()
    return laws
