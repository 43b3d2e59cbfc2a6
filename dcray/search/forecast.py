"""What a study will take: its searches played to their end with made-up losses. Pure.

No corpus, no cluster and no record is needed. Nothing depends on the made-up losses but who goes on
and who wins: the dearest candidate, or the winner that the study file ships.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dcray.config import RunConfig, override
from dcray.errors import ConfigError
from dcray.search.budget import Budget
from dcray.search.cells import CellSearch, Found, Slot, State
from dcray.search.grid import Study
from dcray.search.modes import in_mode
from dcray.search.plan import planned_device, planned_vocab_size
from dcray.search.propose import seed_of
from dcray.search.reach import folders_of, nowhere
from dcray.search.request import Reading, Request
from dcray.search.study import StudyFile, files_named
from dcray.search.wish import CellWish
from dcray.sizes import num_params
from dcray.track.points import Cell
from dcray.track.rows import Row
from dcray.train.cost import CHECKPOINT_BYTES, WEIGHT_BYTES

RECORD, PUBLISHED, DEAREST, ONLY = "record", "published", "dearest", "only"  # whence a winner comes

Price = Callable[[Request], float]  # the device-seconds of what a request trains itself
Recorded = Mapping[Cell, Mapping[str, Any]]  # what the winners on record changed


@dataclass(frozen=True)
class Bill:
    """What a set of runs takes."""

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
    """One cell, searched to its end."""

    cell: Cell
    search: Bill
    confirmations: Bill
    winner: RunConfig
    winner_from: str  # record, published, dearest; only: there is no other candidate
    forks: int  # states of trunks that are kept at once, at most
    state_bytes: int  # of one checkpoint
    kept_bytes: int  # of the winner and of each run under way


@dataclass(frozen=True)
class Forecast:
    """The cells that were asked for, and the winners that they were given."""

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
    """The cells of `wanted`, searched in one of modes.MODES or as written ("").

    Cells that they start from are played too, and not counted. vocab_size: the corpus's, None where
    there is none yet. Raises ConfigError where the files
    of the study cannot be searched so.
    """
    player = _Player(study, mode, price, recorded or {}, vocab_size)
    chosen = [wish for wish in player.wishes.values() if wish.cell in set(wanted)]
    cells = tuple(player.play(wish) for wish in chosen)
    needs = dict.fromkeys(cell for wish in chosen for cell in wish.needs)
    return Forecast(cells, {cell: player.winner(cell)[1] for cell in needs})


class _Player:
    """Plays cells, and those that they start from first; each once."""

    def __init__(
        self, study: Study, mode: str, price: Price, recorded: Recorded, vocab_size: int | None
    ) -> None:
        self.mode, self.price, self.recorded = mode, price, recorded
        self.vocab_size = vocab_size
        self.folders = folders_of(study)
        self.wishes = _wishes([wish.file for wish in study.wishes], mode)
        self.others: dict[str, dict[Cell, CellWish]] = {}
        self.played: dict[Cell, CellForecast] = {}

    def play(self, wish: CellWish) -> CellForecast:
        """A cell to its end."""
        if wish.cell not in self.played:
            needs = {cell: self.winner(cell)[0] for cell in wish.needs}
            one = play_cell(wish, needs, self.price, self.vocab_size)
            if one.search.runs == 1 and one.winner_from == DEAREST:  # it had no choice
                whence = self.winner(wish.inherits)[1] if wish.inherits else ONLY
                one = replace(one, winner_from=whence)
            self.played[wish.cell] = one
        return self.played[wish.cell]

    def winner(self, cell: Cell) -> tuple[RunConfig, str]:
        """The winner that a cell counts with, and whence it comes."""
        wish = self._wish(cell)
        if cell in self.recorded:  # also where its file is gone: then as one of ours of its size
            near = wish or next(one for one in self.wishes.values() if one.size == cell.size)
            here = {"data.unique_tokens": cell.unique_tokens, **self.recorded[cell]}
            return override(near.base(), here), RECORD
        if wish is None:
            raise ConfigError(nowhere(cell, self.folders))
        played = self.play(wish)
        return played.winner, played.winner_from

    def _wish(self, cell: Cell) -> CellWish | None:
        if cell in self.wishes:
            return self.wishes[cell]
        if cell.study not in self.others:
            files, _ = files_named(cell.study, self.folders)
            self.others[cell.study] = _wishes(files, self.mode)
        return self.others[cell.study].get(cell)


def play_cell(
    wish: CellWish, needs: Mapping[Cell, RunConfig], price: Price, of_corpus: int | None = None
) -> CellForecast:
    """One cell from nothing to its confirmed winner."""
    config = wish.base()
    vocab_size, _ = planned_vocab_size(config, of_corpus)
    count = num_params(config.shape, vocab_size)
    best = WEIGHT_BYTES if config.objective.build().keeps_best else 0
    search = CellSearch(wish, Reading(vocab_size, "plan"))
    known: dict[Slot, Found] = {}
    bills = {False: Bill(), True: Bill()}  # by whether it confirms
    forks = 0
    while (state := search.state(known, needs)).ready:
        losses = _losses(state, wish)
        for one in (one for chain in state.ready for one in chain):
            confirms = one.key.kind == "confirmation"
            loss, epochs = losses.get(one.slot, 0.0), one.config.num_epochs
            known[one.slot] = Found("complete", loss, epochs, confirmation=confirms)
            bills[confirms] += Bill(1, one.flops, price(one))
        forks = max(forks, _forks(state, known))
    winner = state.winner
    assert winner is not None, f"{wish.cell.name} came to no end"
    return CellForecast(
        wish.cell,
        bills[False],
        bills[True],
        winner.config,
        PUBLISHED if _is_published(winner.config, wish) else DEAREST,
        forks,
        CHECKPOINT_BYTES * count,
        (CHECKPOINT_BYTES * config.runtime.keep_checkpoints + best) * count,
    )


def _losses(state: State, wish: CellWish) -> dict[Slot, float]:
    """Made-up losses of all that is planned: more epochs are better, and the published winner best.

    Between trunks that are alike otherwise the lot decides: who goes on from a generation is luck.
    """
    last: dict[str, int] = {}  # of a trunk: its last rung
    for one in state.planned:
        last[one.trunk or one.name] = one.config.num_epochs
    found = {}
    for one in state.planned:
        trunk, epochs = one.trunk or one.name, one.config.num_epochs
        lot = seed_of(trunk) / 2**31
        loss = 1 + 1 / epochs + 1e-4 / last[trunk] + 1e-7 * lot
        if _same_trunk(one.config, wish):
            loss -= 2 if _is_published(one.config, wish) else 0.5
        found[one.slot] = loss
    return found


def _forks(state: State, known: Collection[Slot]) -> int:
    """The states of trunks on disk: what the next branch starts from, and what it leaves."""
    out = {one.trunk for one in state.planned if one.slot in state.dropped}
    kept = Counter(
        one.trunk
        for one in state.planned
        if one.save_at_fork and one.trunk not in out and one.slot in known
    )
    return sum(min(number, 2) for number in kept.values())


def _same_trunk(config: RunConfig, wish: CellWish) -> bool:
    best, optim = wish.published, config.optim
    return best is not None and (optim.weight_decay, optim.lr) == (best.weight_decay, best.lr)


def _is_published(config: RunConfig, wish: CellWish) -> bool:
    best = wish.published
    return best is not None and _same_trunk(config, wish) and config.num_epochs == best.num_epochs


def _wishes(files: Sequence[StudyFile], mode: str) -> dict[Cell, CellWish]:
    """Every cell of a study's files, searched in this mode."""
    once = {id(file): file for file in files}.values()
    if not once:
        return {}
    return {wish.cell: wish for wish in Study.of([in_mode(file, mode) for file in once]).wishes}


def prices(measured: Sequence[Row] = (), *, with_gpus: bool = False) -> Price:
    """The device-seconds of a request: as measured, else the table's of search/plan.py.

    with_gpus: where a configuration leaves the device open, it is a GPU.
    """
    budget = Budget(measured=measured)
    return lambda one: budget.device_seconds(
        replace(one, config=placed(one.config, with_gpus=with_gpus))
    )


def placed(config: RunConfig, *, with_gpus: bool = False) -> RunConfig:
    """The configuration with the kind of device decided."""
    device = planned_device(config)
    if with_gpus and config.runtime.device == "auto":
        device = "cuda"
    runtime = config.runtime.model_copy(update={"device": device})
    return config.model_copy(update={"runtime": runtime})
