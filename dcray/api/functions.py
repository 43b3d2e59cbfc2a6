"""The functions behind the commands, as a notebook calls them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcray.api.results import Fitted, Planned, StudyReport

if TYPE_CHECKING:
    import pandas as pd

    from dcray.config.run import RunConfig
    from dcray.types import Event, RunResult

RECORD = "dcray-runs"
_log = logging.getLogger("dcray")


def fit(
    losses: pd.DataFrame | str | Path,
    *,
    baseline: str | None = None,
    recipe: str | Sequence[str] = (),
    floor: str | Sequence[str] = (),
    laws: Sequence[str] = (),
    hold_out: Sequence[str] = (),
    predict: Sequence[str] = (),
    bootstrap: int = 0,
    seed: int = 0,
    columns: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    keep: str | None = None,
) -> Fitted:
    """Fit scaling laws to a frame or a file of losses, as `dcray fit` does.

    losses: num_params, unique_tokens, val_loss and, to compare, recipe; a row for each cell.
    baseline and recipe may name any recipe, recipe several; (): all that have enough cells.
    columns: {field: column} and units: {field: unit} if the names are no known aliases.
    keep: "lowest" takes the lowest loss of each cell of a sweep. bootstrap: resamples for intervals
    and nulls; 0: none.

    Raises ConfigError with one sentence for each problem of the table or the options.
    """
    from dcray.fit.answer import Question, answer_table
    from dcray.fit.compare import Floor
    from dcray.fit.table.reader import read_frame, read_table

    if isinstance(losses, str | Path):
        table = read_table(losses, columns=columns, units=units, keep=keep)
    else:
        table = read_frame(losses, columns=columns, units=units, keep=keep)
    question = Question(
        baseline=baseline,
        recipes=_names(recipe),
        floors=tuple(Floor(name) for name in _names(floor)),
        laws=_names(laws),
        hold_out=_names(hold_out),
        bootstrap=bootstrap,
        predict=_names(predict),
        seed=seed,
    )
    return Fitted(answer_table(table, question))


def read_study(
    name: str,
    *,
    dir: str | Path = RECORD,
    baseline: str | None = None,
    recipe: str | Sequence[str] = (),
    source: str | None = None,
    against: str | None = None,
    bootstrap: int = 0,
    tracking_uri: str | None = None,
) -> StudyReport:
    """Read a study from its record and analyze it; nothing is written.

    baseline and recipe may name any recipe, recipe several; (): all that have enough cells.
    source: "search" or "confirmed"; None: chosen for each comparison. against: another study to set
    beside this one. bootstrap: resamples for intervals; 0: none.

    Raises ConfigError if the record or the study is not there, or has nothing complete.
    """
    from dcray.report import study as studies
    from dcray.report.analysis import Asked

    asked = Asked(baseline, _names(recipe), source, bootstrap)
    found = studies.read(
        Path(dir), studies.study_name(name), asked, against=against, tracking_uri=tracking_uri
    )
    return StudyReport(found, Path(dir), tracking_uri)


def analyze(name: str, *, bootstrap: int = 200, **options: Any) -> StudyReport:
    """Analyze a study with intervals and write its folder, as `dcray analyze` does.

    options: those of `read_study`.
    """
    found = read_study(name, bootstrap=bootstrap, **options)
    found.write()
    return found


def plan(
    study: str | Path,
    *,
    sizes: Sequence[str] = (),
    budgets: Sequence[str] = (),
    recipes: Sequence[str] = (),
    price: float | None = None,
    vocab_size: int | None = None,
    cluster: str | Path | None = None,
    dir: str | Path = RECORD,
    tracking_uri: str | None = None,
) -> Planned:
    """Plan a study file, or a study that ships with dcray, as `dcray plan` does.

    vocab_size: of the corpus, if there is one; None: the usual one of each size. price: of one
    device-hour, in any currency.

    Raises ConfigError for a study file with problems, each a sentence.
    """
    from dcray.plan.study_plan import plan_study
    from dcray.study.study import Study

    asked = Study.read(str(study))
    chosen = asked.select(
        sizes=list(_names(sizes)), budgets=list(_names(budgets)), recipes=list(_names(recipes))
    )
    found = plan_study(
        asked,
        chosen,
        Path(dir),
        vocab_size=vocab_size,
        cluster=Path(cluster) if cluster else None,
        tracking_uri=tracking_uri,
        tell=_log.warning,
    )
    return Planned(found, price)


def train(
    config: RunConfig | Mapping[str, Any],
    corpus: str | Path,
    *,
    study: str = "train",
    recipe: str | None = None,
    dir: str | Path = RECORD,
    tracking_uri: str | None = None,
) -> RunResult:
    """Train one configuration, or answer it from the record, as `dcray train` does.

    config: {"size": "60k", "optim.lr": 5e-3, ...}, or a RunConfig. recipe: its name in the record;
    None: "ar", "mir", "ar-muon". The result has state, val_loss, val_bpb, run_id and reason; notes
    on the way go to the logger "dcray".

    Raises ConfigError with one sentence for each problem of the configuration or the corpus.
    """
    from dcray.config.run import RunConfig, override
    from dcray.corpus.manifest import Corpus
    from dcray.driver.driver import train_runs
    from dcray.driver.session import Session
    from dcray.search.specs import single_run
    from dcray.track.store import Store

    run = config if isinstance(config, RunConfig) else override(RunConfig(), dict(config))
    opened = Corpus.open(Path(corpus))
    spec = single_run(run, opened, study=study, recipe=recipe or run.recipe_name)
    with Store.open(Path(dir), study=study, tracking_uri=tracking_uri) as store:
        return train_runs([spec], Session(opened, store, Path(dir), _Logged()))[0]


class _Logged:
    """The view of a notebook: notes go to the log, and no picture is drawn."""

    def note(self, text: str) -> None:
        _log.info(text)

    def show(self, event: Event) -> None:
        pass


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
