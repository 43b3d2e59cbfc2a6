"""The cost of a study: its searches played to their end with made-up losses. Pure.

No corpus, no cluster and no record is needed. The made-up losses decide only which trunks go on and
which run wins: the costliest candidate, or the winner that the study file ships.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dcray.config.run import RunConfig, override
from dcray.config.sizes import num_params
from dcray.cost import WEIGHT_BYTES, checkpoint_bytes
from dcray.errors import ConfigError
from dcray.plan.estimate import planned_device, planned_vocab_size
from dcray.plan.prices import Prices
from dcray.plan.variants import in_mode
from dcray.search.cell import CellSearch, CellState
from dcray.search.sampler import seed_of
from dcray.search.specs import Fingerprint
from dcray.study.dependencies import folders_of, nowhere
from dcray.study.schema import StudyFile, files_named
from dcray.study.spec import CellSpec
from dcray.study.study import Study
from dcray.track.rows import Row
from dcray.types import Cell, RunKey, RunResult, RunSpec

RECORD, PUBLISHED, COSTLIEST, ONLY = "record", "published", "costliest", "only"  # winners' origins

Price = Callable[[RunSpec], float]  # the device-seconds of what a run trains itself
Recorded = Mapping[Cell, Mapping[str, Any]]  # what the winners on record changed


@dataclass(frozen=True)
class Bill:
    """The cost of a set of runs."""

    runs: int = 0
    flops: float = 0.0  # exact training FLOPs
    device_seconds: float = 0.0

    def __add__(self, other: Bill) -> Bill:
        return Bill(
            self.runs + other.runs,
            self.flops + other.flops,
            self.device_seconds + other.device_seconds,
        )


@dataclass(frozen=True)
class CellForecast:
    """The forecast of one cell, searched to its end."""

    cell: Cell
    search: Bill
    confirmations: Bill
    winner: RunConfig
    winner_from: str  # record, published, costliest; only: there is no other candidate
    forks: int  # states of trunks that are kept at once, at most
    state_bytes: int  # of one checkpoint
    kept_bytes: int  # of the winner and of each run under way
    kept_runs: int = 1  # the winner, and the members of ensembles


@dataclass(frozen=True)
class Forecast:
    """The cells that were asked for, and where the winners that they start from come from."""

    cells: tuple[CellForecast, ...]
    given: Mapping[Cell, str] = field(default_factory=dict)  # winners that cells start from

    @property
    def search(self) -> Bill:
        return sum((one.search for one in self.cells), Bill())

    @property
    def confirmations(self) -> Bill:
        return sum((one.confirmations for one in self.cells), Bill())


def forecast(
    study: Study,
    wanted: Collection[Cell],
    mode: str,
    price: Price,
    recorded: Recorded | None = None,
    *,
    vocab_size: int | None = None,
) -> Forecast:
    """Forecast the cells of `wanted`, searched in one of modes.MODES or as written ("").

    Cells that they start from are played too, and not counted. vocab_size: the corpus's, None if
    there is none yet. Raises ConfigError if the files of the study cannot be searched so.
    """
    player = _Player(study, mode, price, recorded or {}, vocab_size)
    chosen = [
        cell_spec for cell_spec in player.cell_specs.values() if cell_spec.cell in set(wanted)
    ]
    cells = tuple(player.play(cell_spec) for cell_spec in chosen)
    needs = dict.fromkeys(cell for cell_spec in chosen for cell in cell_spec.needs)
    return Forecast(cells, {cell: player.winner(cell)[1] for cell in needs})


class _Player:
    """Plays cells, those that they start from first, each once."""

    def __init__(
        self, study: Study, mode: str, price: Price, recorded: Recorded, vocab_size: int | None
    ) -> None:
        self.mode, self.price, self.recorded = mode, price, recorded
        self.vocab_size = vocab_size
        self.folders = folders_of(study)
        self.cell_specs = _wishes([cell_spec.file for cell_spec in study.cell_specs], mode)
        self.others: dict[str, dict[Cell, CellSpec]] = {}
        self.played: dict[Cell, CellForecast] = {}

    def play(self, cell_spec: CellSpec) -> CellForecast:
        """Play a cell to its end."""
        if cell_spec.cell not in self.played:
            needs = {cell: self.winner(cell)[0] for cell in cell_spec.needs}
            one = play_cell(cell_spec, needs, self.price, self.vocab_size)
            if one.search.runs <= 1 and one.winner_from == COSTLIEST:  # there was no choice
                source = self.winner(cell_spec.inherits)[1] if cell_spec.inherits else ONLY
                one = replace(one, winner_from=source)
            self.played[cell_spec.cell] = one
        return self.played[cell_spec.cell]

    def winner(self, cell: Cell) -> tuple[RunConfig, str]:
        """Return the winner that a cell counts with, and where it comes from."""
        cell_spec = self._cell_spec(cell)
        if cell in self.recorded:  # if its file is gone: with our base of its size
            near = cell_spec or next(
                one for one in self.cell_specs.values() if one.size == cell.size
            )
            here = {"data.unique_tokens": cell.unique_tokens, **self.recorded[cell]}
            return override(near.base(), here), RECORD
        if cell_spec is None:
            raise ConfigError(nowhere(cell, self.folders))
        played = self.play(cell_spec)
        return played.winner, played.winner_from

    def _cell_spec(self, cell: Cell) -> CellSpec | None:
        if cell in self.cell_specs:
            return self.cell_specs[cell]
        if cell.study not in self.others:
            files, _ = files_named(cell.study, self.folders)
            self.others[cell.study] = _wishes(files, self.mode)
        return self.others[cell.study].get(cell)


def play_cell(
    cell_spec: CellSpec, needs: Mapping[Cell, RunConfig], price: Price, of_corpus: int | None = None
) -> CellForecast:
    """Play one cell from nothing to its confirmed winner."""
    if cell_spec.member_seeds:  # an ensemble: its members are runs of another cell, and cost there
        (config,) = needs.values()
        return CellForecast(cell_spec.cell, Bill(), Bill(), config, COSTLIEST, 0, 0, 0, 0)
    config = cell_spec.base()
    vocab_size, _ = planned_vocab_size(config, of_corpus)
    count, saved = num_params(config.shape, vocab_size), checkpoint_bytes(config, vocab_size)
    best = WEIGHT_BYTES if config.objective.build().keeps_best else 0
    search = CellSearch(cell_spec, Fingerprint(vocab_size, "plan"))
    known: dict[RunKey, RunResult] = {}
    bills = {False: Bill(), True: Bill()}  # by whether it confirms
    forks = 0
    for state in played(search, known, needs):
        for one in (one for chain in state.ready for one in chain):
            bills[one.key.kind == "confirmation"] += Bill(1, one.flops, price(one))
        forks = max(forks, _forks(state, known))
    winner = search.state(known, needs).winner
    assert winner is not None, f"{cell_spec.cell.name} came to no end"
    return CellForecast(
        cell_spec.cell,
        bills[False],
        bills[True],
        winner.config,
        PUBLISHED if _is_published(winner.config, cell_spec) else COSTLIEST,
        forks,
        saved,
        saved * config.runtime.keep_checkpoints + best * count,
        1 + len(cell_spec.kept_seeds),
    )


def played(
    search: CellSearch, known: dict[RunKey, RunResult], needs: Mapping[Cell, RunConfig]
) -> Iterator[CellState]:
    """Yield each state of a cell on its way to its end; made-up results go into `known`.

    What is ready in a state runs side by side, and has all its results when the state is yielded.
    """
    while (state := search.state(known, needs)).ready:
        losses = _losses(state, search.cell_spec)
        if search.cell_spec.search.sampler != "grid":
            losses = _at_par(losses, state, known)
        for one in (one for chain in state.ready for one in chain):
            if one.key not in known:
                known[one.key] = one.ended("complete", losses.get(one.key, 0.0))
        yield state


def _at_par(
    made_up: Mapping[RunKey, float], state: CellState, known: Mapping[RunKey, RunResult]
) -> dict[RunKey, float]:
    """Draw made-up losses from the real ones at the same epochs: a new trunk is no better.

    A sampler's generation is judged beside all before it.
    """
    found = dict(made_up)
    for one in state.planned:
        epochs = one.config.num_epochs
        real = sorted(
            result.val_loss
            for result in known.values()
            if result.num_epochs == epochs and result.run_id and result.val_loss is not None
        )
        if real:
            lot = seed_of(one.trunk or one.name) / 2**31
            found[one.key] = real[int(lot * len(real))] + 1e-7 * lot
    return found


def _losses(state: CellState, cell_spec: CellSpec) -> dict[RunKey, float]:
    """Make up losses of all that is planned: more epochs are better, the published winner is best.

    Between trunks that are otherwise alike a pseudo-random lot decides, since which of them go on
    from a generation is chance.
    """
    last: dict[str, int] = {}  # of a trunk: its last rung
    for one in state.planned:
        last[one.trunk or one.name] = one.config.num_epochs
    found = {}
    for one in state.planned:
        trunk, epochs = one.trunk or one.name, one.config.num_epochs
        lot = seed_of(trunk) / 2**31
        loss = 1 + 0.1 / epochs + 1e-5 / last[trunk] + 1e-8 * lot  # positive, as a loss is
        if _same_trunk(one.config, cell_spec):
            loss -= 0.2 if _is_published(one.config, cell_spec) else 0.05
        found[one.key] = loss
    return found


def _forks(state: CellState, known: Collection[RunKey]) -> int:
    """Count the states of trunks on disk: what the next branch starts from, and what it leaves."""
    out = {one.trunk for one in state.planned if one.key in state.dropped}
    kept = Counter(
        one.trunk
        for one in state.planned
        if one.save_at_fork and one.trunk not in out and one.key in known
    )
    return sum(min(number, 2) for number in kept.values())


def _same_trunk(config: RunConfig, cell_spec: CellSpec) -> bool:
    best, optim = cell_spec.published, config.optim
    return best is not None and (optim.weight_decay, optim.lr) == (best.weight_decay, best.lr)


def _is_published(config: RunConfig, cell_spec: CellSpec) -> bool:
    best = cell_spec.published
    return (
        best is not None and _same_trunk(config, cell_spec) and config.num_epochs == best.num_epochs
    )


def _wishes(files: Sequence[StudyFile], mode: str) -> dict[Cell, CellSpec]:
    """Build every cell of a study's files, searched in this mode."""
    once = {id(file): file for file in files}.values()
    if not once:
        return {}
    return {
        cell_spec.cell: cell_spec
        for cell_spec in Study.of([in_mode(file, mode) for file in once]).cell_specs
    }


def prices(measured: Sequence[Row] = (), *, with_gpus: bool = False) -> Price:
    """Make the price of a run (device-seconds): as measured, else by the table of plan/estimate.py.

    with_gpus: if a configuration leaves the device open, it is a GPU.
    """
    known = Prices(measured)
    return lambda one: known.device_seconds(
        replace(one, config=placed(one.config, with_gpus=with_gpus))
    )


def placed(config: RunConfig, *, with_gpus: bool = False) -> RunConfig:
    """Return the configuration with the kind of device decided."""
    device = planned_device(config)
    if with_gpus and config.runtime.device == "auto":
        device = "cuda"
    runtime = config.runtime.model_copy(update={"device": device})
    return config.model_copy(update={"runtime": runtime})
