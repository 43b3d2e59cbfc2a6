"""`dcray analyze`: from the record to the folder DIR/STUDY/analysis, and back into the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dcray.errors import ConfigError, RecordAwayError
from dcray.report import data, figures, tables
from dcray.report.analysis import Analysis, Asked, analyze
from dcray.report.cells import Left
from dcray.report.folder import replaced
from dcray.report.page import page
from dcray.report.style import Picture
from dcray.toml import read_toml
from dcray.track import runs
from dcray.track.analysis import keep
from dcray.track.store import Store

CURVE = "val/loss"


@dataclass(frozen=True)
class Written:
    """What was written where; `unlogged` says why it is not among the study's artifacts."""

    folder: Path
    pictures: tuple[Picture, ...]
    absent: dict[str, str]  # figure: why it is not there
    unlogged: str | None = None


def study_name(text: str) -> str:
    """The name of a study: as written, or as its TOML file has it.

    Raises ConfigError for a file that cannot be read or names no study.
    """
    if not text.endswith(".toml"):
        return text
    try:
        name = read_toml(text).get("study")
    except ConfigError as error:
        raise ConfigError(f"STUDY: {text} cannot be read ({error})") from None
    if not isinstance(name, str):
        raise ConfigError(f'STUDY: {text} must say study = "NAME"')
    return name


def read(
    directory: Path,
    study: str,
    asked: Asked,
    *,
    against: str | None = None,
    tracking_uri: str | None = None,
) -> Analysis:
    """The study's analysis, with the curves of its winners; beside another study's if asked.

    Raises ConfigError where the record or the study is not there, or has nothing complete, and
    where the other study is this one.
    """
    if against == study:
        raise ConfigError(
            f"--against {against} is the study itself, which differs from itself by nothing: "
            "name another study"
        )
    rows, exclusions = runs.results(directory, study=study, tracking_uri=tracking_uri)
    places = {
        (cell.size, cell.unique_tokens, cell.recipe): cell.tags
        for cell in runs.cells(directory, study=study, tracking_uri=tracking_uri)
    }
    left = [Left(*exclusion) for exclusion in exclusions]
    found = analyze(study, rows, left, asked, tags=places)
    winners = [cell.winner.run_id for cell in found.cells]
    found.curves = runs.curves(directory, winners, CURVE, tracking_uri=tracking_uri)
    if against is not None:
        try:
            found.other = read(directory, against, asked, tracking_uri=tracking_uri)
        except ConfigError as error:  # what is true of the other study alone
            raise ConfigError([f"--against {against}: {one}" for one in error.problems]) from None
    return found


def write(found: Analysis, directory: Path, *, tracking_uri: str | None = None) -> Written:
    """The folder DIR/STUDY/analysis, whole or as it was; then its files as artifacts.

    Raises ConfigError where the folder cannot be written. A record that cannot take the artifacts
    is no failure: the sentence is in `unlogged`.
    """
    folder = Path(directory).absolute() / found.study / "analysis"
    pictures, absent = figures.of_study(found)
    with replaced(folder) as draft:
        (draft / "runs.csv").write_text(data.runs_csv(found), encoding="utf-8")
        (draft / "cells.csv").write_text(data.cells_csv(found), encoding="utf-8")
        (draft / "fit.json").write_text(data.fit_json(found), encoding="utf-8")
        (draft / "tables.md").write_text(tables_md(found, pictures, absent), encoding="utf-8")
        figures.save_all(pictures, draft)
        (draft / "page.html").write_text(page(found, pictures, absent), encoding="utf-8")
    try:
        with Store.open(directory, study=found.study, tracking_uri=tracking_uri) as store:
            keep(store, folder)
    except (RecordAwayError, ConfigError) as error:
        return Written(folder, tuple(pictures), absent, str(error))
    return Written(folder, tuple(pictures), absent)


def tables_md(found: Analysis, pictures: Sequence[Picture], absent: dict[str, str]) -> str:
    """All tables under their titles, and the figures with their text alternatives."""
    parts = [f"# {found.study}"]
    if found.no_law:
        parts.append(found.no_law)
    for title, make in tables.TABLES.values():
        made = make(found)
        parts += [f"## {title}", *(table.markdown() for table in made)] if made else []
    parts.append("## Figures")
    parts += [f"![{one.alt}]({one.name}.svg)" for one in pictures]
    for names, reason in figures.why_absent(absent):
        parts.append(f"- {names} {'are' if ',' in names else 'is'} not here: {reason}")
    return "\n\n".join(parts) + "\n"
