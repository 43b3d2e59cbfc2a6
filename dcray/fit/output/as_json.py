"""The answer as plain values: the content of --json and of fit.json."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dcray.fit.output.headline import headline, null_note, sensitivity
from dcray.fit.ranking import lines, standings_of
from dcray.fit.uncertainty.diagnose import model_gap
from dcray.laws._law import Points

if TYPE_CHECKING:
    from dcray.fit.answer import Answer
    from dcray.fit.compare import Comparison


def as_json(found: Answer) -> dict[str, Any]:
    """Convert the answer to plain values for --json: full precision, missing numbers as null."""
    own = found.grids[found.baseline]
    return {
        "baseline": found.baseline,
        "laws": _laws_json(found, found.baseline),
        "recipes": {
            recipe: {"bound": found.grids[recipe].bound or None, "laws": _laws_json(found, recipe)}
            for recipe in found.fits
            if recipe != found.baseline
        },
        "comparisons": [_comparison_json(one) for one in found.comparisons],
        "by_worth": lines(standings_of(found)),
        "not_told": found.untold,
        "efficiency": [
            {**_names(one), **asdict(answer), "like_for_like": answer.like_for_like}
            for one in found.comparisons
            for answer in one.equivalences
        ],
        "paired": [
            {**_names(one), **asdict(pair)} for one in found.comparisons for pair in one.pairs
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
        "notes": found.notes,
    }


def _names(one: Comparison) -> dict[str, str]:
    return {"baseline": one.baseline.recipe, "recipe": one.recipe.recipe}


def _comparison_json(one: Comparison) -> dict[str, Any]:
    """Convert a comparison to plain values: the leading law and method, and the sentences."""
    return {
        **_names(one),
        "floor": one.floor is not None,
        "law": one.lead,
        "method": one.method,
        "draws": one.draws,
        "laws_that_describe_both": one.describing,
        "headline": headline(one),
        "sensitivity": sensitivity(one) or None,
        "null": null_note(one) or None,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


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
            "aic": _finite(one.aic),
            "aicc": _finite(one.aicc),
            "num_starts": one.num_starts,
            "agreeing_frac": one.agreeing_frac,
            "flags": list(one.flags),
            "not_identified": dict(one.not_identified),
        }
        if found.resamples:
            laws[name]["intervals"] = found.resamples[recipe][name].parameters()
    return laws
