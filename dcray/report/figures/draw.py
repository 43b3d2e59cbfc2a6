"""All figures by one rule: each is drawn if the study holds its data, else a sentence says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dcray.fit.answer import Answer
from dcray.progress import counted
from dcray.report.analysis import Analysis
from dcray.report.figures import fits as fit_figures
from dcray.report.figures import runs as run_figures
from dcray.report.figures.ranking import by_worth
from dcray.report.figures.style import AbsentError, Picture, drawing, head, save
from dcray.report.figures.worth import worth

OF_RUNS: dict[str, Callable[[Analysis], fit_figures.Drawn]] = {
    "recipes-by-worth": by_worth,
    "loss-by-size": run_figures.by_size,
    "validation-over-epochs": run_figures.over_epochs,
    "loss-against-epochs": run_figures.by_epochs,
    "mir-tuning": run_figures.mir_tuning,
}
OF_FITS: dict[str, Callable[[Answer], fit_figures.Drawn]] = {
    "worth": worth,
    "gap": fit_figures.gap,
    "fits": fit_figures.absolute,
    "against-data": fit_figures.against_data,
    "asymptotes": fit_figures.asymptotes,
    "residuals": fit_figures.residuals,
}


def of_answer(found: Answer) -> tuple[list[Picture], dict[str, str]]:
    """Draw the figures of an answer; return them, and why the others are absent {name: reason}."""
    return _draw(OF_FITS, found)


def of_study(found: Analysis) -> tuple[list[Picture], dict[str, str]]:
    """Draw the figures of a study, those of its fits among them; the one named "worth" comes first.

    Returns them, and why the others are absent {name: reason}.
    """
    pictures, absent = _draw(OF_RUNS, found)
    if found.answer is None:
        reason = "; ".join(found.why_no_fit)
        return pictures, absent | dict.fromkeys(OF_FITS, f"there is no fit: {reason}")
    more, missing = of_answer(found.answer)
    whole = sorted(pictures + more, key=lambda picture: picture.name != "worth")  # the answer first
    return whole, absent | missing


def _draw(
    functions: Mapping[str, Callable[[Any], fit_figures.Drawn]], found: Any
) -> tuple[list[Picture], dict[str, str]]:
    pictures, absent = [], {}
    with drawing():
        for name, function in functions.items():
            try:
                title, alt, figure = function(found)
                head(figure, title)
                pictures.append(Picture(name, title, alt, figure))
            except AbsentError as error:
                absent[name] = str(error)
    return pictures, absent


def why_absent(absent: Mapping[str, str]) -> list[tuple[str, str]]:
    """Group the absent figures as (their names, the reason), each reason once."""
    reasons = dict.fromkeys(absent.values())
    return [
        (", ".join(name for name, reason in absent.items() if reason == one), one)
        for one in reasons
    ]


def save_all(pictures: list[Picture], folder: Path) -> None:
    """Save each figure as PNG and SVG in the folder."""
    for picture in counted("figures", pictures):
        save(picture, folder)
