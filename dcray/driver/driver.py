"""The one loop that trains what a state makes ready: for `train`, `search` and `quickstart`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from dcray.driver.recorder import RunRecorder
from dcray.driver.resources import place_run
from dcray.driver.session import Session
from dcray.driver.tune import NOT_STARTED
from dcray.errors import ConfigError
from dcray.search.cell import ListedRuns
from dcray.search.state import StudyState
from dcray.track.locks.corpus_binding import check_corpus, hold_corpus
from dcray.track.locks.lease import CellHeldError
from dcray.track.rows import Row
from dcray.track.store import Store
from dcray.types import RunResult, RunSpec

REPEATS = (
    "(on record: the same run diverges again. Lower optim.lr or change another field; to train "
    "this one anew all the same, delete its run {run_id} in MLflow)"
)


def drive(
    state: StudyState,
    session: Session,
    recorder: RunRecorder,
    on_result: Callable[[RunResult], None] = lambda result: None,
) -> None:
    """Run what the state makes ready until nothing is left, or until a person stops it.

    on_result is called with every result that is on record, before the view shows it.
    """
    while (
        (chain := state.next(session.has_room))
        or session.busy()
        or session.waits_for(state.awaited())
    ):
        if chain:
            session.submit(chain)
        for event in session.events():
            event = recorder.write(event)
            state.apply(event)
            if isinstance(event, RunResult):
                on_result(event)
            session.view.show(event)


def train_runs(specs: Sequence[RunSpec], session: Session) -> list[RunResult]:
    """Train each run, or answer it from the record; return results in the order of `specs`.

    Raises ConfigError if the study on record has another corpus, or another driver holds a cell.
    """
    store, corpus = session.store, session.corpus
    reads = {spec.config.data.unique_tokens: spec.reads for spec in specs}
    check_corpus(store, corpus, reads)
    cells = dict.fromkeys(spec.key.cell for spec in specs)
    listed = {cell: ListedRuns(tuple(s for s in specs if s.key.cell == cell)) for cell in cells}
    state = StudyState(store.study, listed)
    for spec in specs:
        row = store.find(spec.key)
        if row is not None and row.state in ("complete", "diverged"):
            result = answered(spec, row)
            state.apply(result)
            session.view.show(result)
    missing = [spec for spec in specs if spec.key not in state.ended]
    if missing:
        corpus.verify(max(spec.config.data.unique_tokens for spec in missing))
        on_gpu = any(spec.config.runtime.device == "cuda" for spec in missing)
        with session.open(needs_gpu=on_gpu):
            for spec in missing:  # a run that cannot be placed is refused before any begins
                place_run(spec.config, session.machine, session.view.note)
            hold_corpus(store, corpus, reads)
            recorder = RunRecorder(store, corpus, session.machine)
            with _claimed(store, missing), session.trials([spec.config for spec in missing]):
                drive(state, session, recorder)
    return [
        state.ended.get(spec.key) or spec.ended("stopped", reason=NOT_STARTED) for spec in specs
    ]


def answered(spec: RunSpec, row: Row) -> RunResult:
    """Return the result on record; a divergence is as final as a loss: the run is deterministic."""
    if row.state == "diverged":
        reason = f"{row.reason or 'it diverged'} {REPEATS.format(run_id=row.run_id)}"
        return spec.ended("diverged", run_id=row.run_id, reason=reason)
    return spec.ended("answered", row.val_loss, val_bpb=row.val_bpb, run_id=row.run_id)


@contextmanager
def _claimed(store: Store, specs: Sequence[RunSpec]) -> Iterator[None]:
    with ExitStack() as stack:
        for cell in dict.fromkeys(spec.key.cell for spec in specs):
            try:
                stack.enter_context(store.claim(cell))
            except CellHeldError as error:
                raise ConfigError(f"{error}; {error.advice}") from None
        yield
