"""What a study will take: its searches played to their end with made-up losses. Pure.

No corpus, no cluster and no record is needed. Nothing depends on the made-up losses but who goes on
and who wins: the dearest candidate, or the winner that the study file ships.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dcray.config import RunConfig
from dcray.errors import ConfigError
from dcray.search.cells import CellSearch, Found, Slot, State
from dcray.search.grid import Study
from dcray.search.modes import in_mode
from dcray.search.propose import seed_of
from dcray.search.request import Reading, Request
from dcray.search.study import StudyFile, files_named
from dcray.search.wish import CellWish
from dcray.sizes import num_params, usual_vocab_size
from dcray.track.points import Cell

STATE_BYTES = 12  # a parameter in a checkpoint: its weight and two moments, in float32
RECORD, PUBLISHED, DEAREST = "record", "published", "dearest"  # whence a winner comes

Price = Callable[[Request], float]  # the device-seconds of what a request trains itself
Recorded = Callable[[Cell], RunConfig | None]  # the winner that a record has


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
    winner_from: str  # record, published, dearest
    forks: int  # states of trunks that are kept at once, at most
    state_bytes: int  # of one checkpoint
    kept_states: int  # of the winner and of each run under way


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
    recorded: Recorded = lambda cell: None,
) -> Forecast:
    """The cells of `wanted`, searched in one of modes.MODES or as written ("").

    Cells that they start from are played too, and not counted. Raises ConfigError where the files
    of the study cannot be searched so.
    """
    wishes = _wishes(study, mode)
    others: dict[str, dict[Cell, CellWish]] = {}
    played: dict[Cell, CellForecast] = {}
    winners: dict[Cell, tuple[RunConfig, str]] = {}

    def wish_of(cell: Cell) -> CellWish | None:
        if cell in wishes:
            return wishes[cell]
        if cell.study not in others:
            folders = dict.fromkeys(path.parent for path in study.paths)
            others[cell.study] = _elsewhere(cell.study, list(folders), mode)
        return others[cell.study].get(cell)

    def win(cell: Cell) -> RunConfig:
        if cell not in winners:
            known, wish = recorded(cell), wish_of(cell)
            if known is not None:
                winners[cell] = known, RECORD
            elif wish is not None:
                one = play(wish)
                winners[cell] = one.winner, one.winner_from
            else:
                raise ConfigError(_unknown(cell))
        return winners[cell][0]

    def play(wish: CellWish) -> CellForecast:
        if wish.cell not in played:
            needs = {cell: win(cell) for cell in wish.needs}
            played[wish.cell] = play_cell(wish, needs, price)
        return played[wish.cell]

    cells = tuple(play(wishes[wish.cell]) for wish in study.wishes if wish.cell in set(wanted))
    asked = {cell for cell in wanted for cell in wishes[cell].needs}
    return Forecast(cells, {cell: winners[cell][1] for cell in winners if cell in asked})


def play_cell(wish: CellWish, needs: Mapping[Cell, RunConfig], price: Price) -> CellForecast:
    """One cell from nothing to its confirmed winner."""
    config = wish.base()
    vocab_size = config.model.vocab_size or usual_vocab_size(config.size_name)
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
    assert winner is not None and state.done, f"{wish.cell.name} came to no end"
    return CellForecast(
        wish.cell,
        bills[False],
        bills[True],
        winner.config,
        PUBLISHED if _is_published(winner.config, wish) else DEAREST,
        forks,
        STATE_BYTES * num_params(config.shape, vocab_size),
        config.runtime.keep_checkpoints,
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
    """The states of trunks on disk: one for each branch with a longer one to follow."""
    out = {one.trunk for one in state.planned if one.slot in state.dropped}
    return sum(
        one.save_at_fork and one.trunk not in out and one.slot in known for one in state.planned
    )


def _same_trunk(config: RunConfig, wish: CellWish) -> bool:
    best, optim = wish.published, config.optim
    return best is not None and (optim.weight_decay, optim.lr) == (best.weight_decay, best.lr)


def _is_published(config: RunConfig, wish: CellWish) -> bool:
    best = wish.published
    return best is not None and _same_trunk(config, wish) and config.num_epochs == best.num_epochs


def _wishes(study: Study, mode: str) -> dict[Cell, CellWish]:
    """Every cell of the study, searched in this mode."""
    files: dict[int, StudyFile] = {id(wish.file): wish.file for wish in study.wishes}
    again = Study.of([in_mode(file, mode) for file in files.values()], study.paths)
    return {wish.cell: wish for wish in again.wishes}


def _elsewhere(name: str, folders: Sequence[Path], mode: str) -> dict[Cell, CellWish]:
    """The cells of another study, or of another file of this one, where its files are found."""
    files = files_named(name, folders)
    return _wishes(Study.of(files), mode) if files else {}


def _unknown(cell: Cell) -> str:
    return (
        f"the winner of {cell.study}:{cell.name} is not known: put the study file of "
        f'"{cell.study}" beside this one, or name a --dir whose record has it'
    )
