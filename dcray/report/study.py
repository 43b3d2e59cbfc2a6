"""`dcray analyze`: from the record to the folder DIR/STUDY/analysis, and back into the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dcray.config.toml import read_toml
from dcray.errors import ConfigError, RecordAwayError
from dcray.fit.paper import published
from dcray.report import data
from dcray.report.analysis import Analysis, Asked, analyze
from dcray.report.cells import Left
from dcray.report.figures import draw as figures
from dcray.report.figures.style import Picture
from dcray.report.folder import replaced
from dcray.report.page import page
from dcray.report.tables.contents import TABLES
from dcray.track import runs
from dcray.track.artifacts import keep
from dcray.track.locks.corpus_fingerprint import study_manifest
from dcray.track.mlflow.connection import connect
from dcray.track.store import Store

CURVE = "val/loss"


@dataclass(frozen=True)
class Written:
    """The folder that was written; `unlogged` says why it is not among the study's artifacts."""

    folder: Path
    pictures: tuple[Picture, ...]
    absent: dict[str, str]  # figure: why it is not there
    unlogged: str | None = None


def study_name(text: str) -> str:
    """Return the name of a study: as given, or as its TOML file has it.

    Raises ConfigError if the file cannot be read or names no study.
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
    """Analyze a study on record, with the curves of its winners; beside another study if asked.

    Raises ConfigError if the record or the study is not there or has nothing complete, and if the
    other study is this one.
    """
    if against == study:
        raise ConfigError(
            f"--against {against} is the study itself, which differs from itself by nothing: "
            "name another study"
        )
    rows, exclusions = runs.results(directory, study=study, tracking_uri=tracking_uri)
    connection = connect(directory, tracking_uri, create=False)
    places = {
        (cell.size, cell.unique_tokens, cell.recipe): cell.tags
        for cell in runs.cells(directory, study=study, tracking_uri=tracking_uri)
    }
    left = [Left(*exclusion) for exclusion in exclusions]
    found = analyze(
        study, rows, left, asked, tags=places,
        config_of=lambda run_id: runs.artifact(connection, run_id, "config.json"),
    )  # fmt: skip
    winners = [cell.winner.run_id for cell in found.cells]
    found.curves = runs.curves(directory, winners, CURVE, tracking_uri=tracking_uri)
    found.corpus = _corpus(found, directory, tracking_uri)
    if against is not None:
        try:
            found.other = read(directory, against, asked, tracking_uri=tracking_uri)
        except ConfigError as error:  # the problem is the other study's alone
            raise ConfigError([f"--against {against}: {one}" for one in error.problems]) from None
    return found


def _corpus(found: Analysis, directory: Path, tracking_uri: str | None) -> str | None:
    """Find the paper's name of the study's corpus; None for another corpus.

    Only a study with cells of the paper is looked up. A study has one corpus, so one manifest
    suffices.
    """
    sizes = published.sizes().values()
    if not any(c.unique_tokens == published.BUDGET and c.num_params in sizes for c in found.cells):
        return None
    winners = (cell.winner.run_id for cell in found.cells)
    manifest = study_manifest(directory, winners, tracking_uri=tracking_uri)
    return published.corpus_of(manifest) if manifest else None


def write(found: Analysis, directory: Path, *, tracking_uri: str | None = None) -> Written:
    """Write the folder DIR/STUDY/analysis, whole or not at all; then keep its files as artifacts.

    Raises ConfigError if the folder cannot be written. A record that cannot take the artifacts is
    no failure: the sentence is in `unlogged`.
    """
    folder = Path(directory).absolute() / found.study / "analysis"
    pictures, absent = figures.of_study(found)
    with replaced(folder) as draft:
        (draft / "runs.csv").write_text(data.runs_csv(found), encoding="utf-8")
        for name, text in data.cells_csvs(found).items():
            (draft / name).write_text(text, encoding="utf-8")
        (draft / "recipes.csv").write_text(data.recipes_csv(found), encoding="utf-8")
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
    """Format all tables under their titles, and the figures with their text alternatives."""
    parts = [f"# {found.study}"]
    if found.no_law:
        parts.append(found.no_law)
    for title, make in TABLES.values():
        made = make(found)
        parts += [f"## {title}", *(table.markdown() for table in made)] if made else []
    parts.append("## Figures")
    parts += [f"![{one.alt}]({one.name}.svg)" for one in pictures]
    for names, reason in figures.why_absent(absent):
        parts.append(f"- {names} {'are' if ',' in names else 'is'} not here: {reason}")
    return "\n\n".join(parts) + "\n"
