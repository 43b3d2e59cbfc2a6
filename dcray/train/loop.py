"""Training one run on one rank; knows no Ray, no MLflow and no objective by name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcray.config import RunConfig
from dcray.corpus.order import Order, Slice, tee_ids
from dcray.train.checkpoint import Checkpoints
from dcray.train.cost import validation_epochs
from dcray.train.evaluate import FINAL_DRAW, Evaluation, ValidationRows, evaluate, microbatches
from dcray.train.meter import Meter, Point
from dcray.train.optim import build_optimizer, set_lr
from dcray.train.progress import Outcome, Progress, Report
from dcray.train.schedule import fork_step, lr_factor
from dcray.train.shard import Place, blank_model, init_weights
from dcray.train.step import train_step

REPORT_SPACING = 150  # reports lie so many times their own cost apart: they take under 1 %

Fetch = Callable[[Iterable[NDArray[np.int64]]], Iterator[NDArray[Any]]]


@dataclass(frozen=True)
class Data:
    """What a run reads: rows by their ids, in the order asked for, and the validation rows."""

    fetch: Fetch  # an iterable of row ids (n,) -> for each of them rows (n, T + 1)
    validation: ValidationRows
    mask_id: int


class _Run:
    """The state of `train` while it runs."""

    def __init__(
        self,
        config: RunConfig,
        data: Data,
        place: Place,
        *,
        microbatch_size: int,
        report: Callable[[Report], None],
        checkpoints: Checkpoints | None,
        should_stop: Callable[[], bool],
    ) -> None:
        self.config, self.data, self.place, self.report = config, data, place, report
        self.microbatch_size, self.checkpoints = microbatch_size, checkpoints
        self.should_stop = should_stop
        self.objective = config.objective.build()
        self.order = Order(config)
        self._build()
        self.meter, self.progress = Meter(), Progress()
        self.fork = fork_step(config.num_steps, config.schedule)
        self.validation_epochs = validation_epochs(config, num_rows=len(data.validation))
        self.point_every = max(1, math.ceil(config.num_steps / config.runtime.num_points))
        self.report_every, self.next_report = 1, 1
        self.new_points: list[Point] = []
        self.notes: tuple[str, ...] = ()
        self.mark = self.drained = self.saved_at = time.perf_counter()
        self.mark_step, self.idle, self.report_cost, self.earlier_seconds = 0, 0.0, 0.0, 0.0

    def _build(self) -> None:
        self.model = blank_model(self.config, self.place)
        self.optimizer = build_optimizer(self.model, self.config.optim)

    def restore(self) -> None:
        """Go on from the newest checkpoint that can be read, else from initial weights."""
        held = self.checkpoints
        state = held.load(self.model, self.optimizer) if held else None
        self.notes = tuple(held.damaged) if held else ()
        if state is None:
            if self.notes:  # what could not be read may have left half of itself
                del self.model, self.optimizer
                self._build()
            init_weights(self.model, seed=self.config.seed)
            return
        self.meter.restore(state.pop("meter"), self.place)
        points = [Point(*point) for point in state.pop("points")]
        self.progress = Progress(**state, points=points)
        self.new_points = list(points)  # a dead driver may have missed the last of them
        self.mark_step, self.earlier_seconds = self.progress.step, self.progress.seconds
        self.next_report = self.progress.step + 1

    def steps(self) -> Iterator[Outcome]:
        """Train to the end; yields an outcome early where the run stops or diverges."""
        world = self.place.world_size
        first, num_steps = self.progress.step, self.config.num_steps
        mine = (
            whole.part(self.place.rank, world, self.microbatch_size)
            for whole in self.order.batches(first)
        )
        slices, ids = tee_ids(mine)
        rows_of_steps = self.data.fetch(ids)
        for step, rows in zip(range(first, num_steps), rows_of_steps, strict=True):
            self._step(step, next(slices), rows)
            done = self.progress.step
            if self.validation_epochs & {*self.order.epochs_ended(done)} or done == num_steps:
                outcome = self._validate()
                if outcome:
                    yield outcome
                    return
            if done >= self.next_report or done in (self.fork, num_steps):
                outcome = self._report()
                if outcome:
                    yield outcome
                    return

    def finish(self) -> Outcome:
        """The result of a complete schedule: the last loss, or the best epoch's, scored again."""
        progress = self.progress
        assert progress.last is not None
        if self.new_points:  # restored behind the last step: a dead driver may have missed them
            self.report(self._message(0.0))
        _, loss, bpb = progress.last
        best_epoch = stderr = None
        if self.objective.keeps_best and self.checkpoints is not None:
            best_epoch = progress.best_epoch
            self.checkpoints.load_best(self.model)
            final = self._evaluate(self.objective.final(), FINAL_DRAW)
            loss, bpb, stderr = final.loss, final.bpb, final.stderr
        found = {"val_loss": loss, "val_loss_stderr": stderr, "val_bpb": bpb}
        return self._outcome("complete", best_epoch=best_epoch, **found)

    def _step(self, step: int, part: Slice, rows: NDArray[Any]) -> None:
        config = self.config
        count = self.order.rows_after(step + 1) - self.order.rows_after(step)
        lr = config.optim.lr * lr_factor(step, config.num_steps, config.schedule)
        set_lr(self.optimizer, lr)
        tokens = count * config.data.seq_len
        sums = train_step(
            self.model,
            self.optimizer,
            self.objective,
            microbatches(
                part,
                rows,
                self.place,
                size=self.microbatch_size,
                seed=config.seed,
                mask_id=self.data.mask_id,
            ),
            step_tokens=tokens,
            world_size=self.place.world_size,
            max_grad_norm=config.optim.max_grad_norm,
        )
        self.meter.add(sums, tokens)
        self.progress.step = step + 1
        if (step + 1) % self.point_every == 0 or step + 1 == config.num_steps:
            self.meter.close(
                step=step + 1,
                epoch=self._epoch(),
                tokens_seen=self._tokens_seen(),
                lr=lr,
                norm=sums.grad_norm,
            )

    def _validate(self) -> Outcome | None:
        self.place.wait()  # steps still under way are training time
        began = time.perf_counter()
        progress = self.progress
        result = self._evaluate(self.objective, progress.step)
        progress.last = (progress.step, result.loss, result.bpb)
        values = {"val/loss": result.loss}
        if result.bpb is not None:
            values["val/bpb"] = result.bpb
        self._record(Point(progress.step, self._epoch(), self._tokens_seen(), values, time.time()))
        self.idle += time.perf_counter() - began
        if not math.isfinite(result.loss):
            self._report()
            return self._diverged(f"the validation loss is {result.loss}")
        if self.objective.keeps_best and result.loss < progress.best_loss:
            progress.best_loss = result.loss
            progress.best_epoch = self.order.rows_after(progress.step) // self.config.usable_rows
            if self.checkpoints is not None:
                self.checkpoints.save_best(self.model, {"step": progress.step})
        return None

    def _evaluate(self, objective: Any, draw: int) -> Evaluation:
        return evaluate(
            self.model,
            objective,
            self.data.validation,
            self.place,
            mask_id=self.data.mask_id,
            microbatch_size=self.microbatch_size,
            draw=draw,
        )

    def _report(self) -> Outcome | None:
        """Meet the other ranks, hand on the points, save when due; rank 0's clock decides."""
        runtime, done = self.config.runtime, self.progress.step == self.config.num_steps
        now = time.perf_counter()
        step_seconds = (now - self.mark - self.idle) / max(1, self.progress.step - self.mark_step)
        spacing = max(runtime.report_seconds, REPORT_SPACING * self.report_cost)
        every = max(1, math.floor(spacing / max(step_seconds, 1e-9)))
        due = now - self.saved_at >= runtime.checkpoint_seconds or done
        flags = [float(due), float(self.should_stop()), float(every), now - self.mark]
        points, (save, stop, interval, elapsed), fault = self.meter.flush(self.place, flags)
        steps, drained = self.progress.step - self.mark_step, time.perf_counter()
        tokens = steps * self.config.batch_size * self.config.data.seq_len
        # From when the device had done the steps before: it works behind the clock of the host.
        rate = tokens / max(drained - self.drained - self.idle, 1e-9)
        self.drained = drained
        if self.checkpoints is not None:
            self.checkpoints.poll()
        for point in points:
            self._record(point)
        self.progress.seconds += elapsed
        self.mark, self.mark_step, self.idle = now, self.progress.step, 0.0
        self.report_every = min(int(interval), 2 * self.report_every + 1)
        self.next_report = self.progress.step + self.report_every
        said = time.perf_counter()
        self.report(self._message(rate))  # may wait for whoever listens
        self.report_cost = time.perf_counter() - said
        self.idle += self.report_cost
        if fault:
            return self._diverged(f"the training loss is {fault}")
        if self.checkpoints is not None:
            self._keep(self.checkpoints, due=bool(save or stop))
        if stop and not done:
            return self._outcome("stopped")
        return None

    def _keep(self, held: Checkpoints, *, due: bool) -> None:
        """The trunk's state at its fork, then an own checkpoint where one is due."""
        began, step = time.perf_counter(), self.progress.step
        if step == self.fork:
            held.save_fork(self.model, self.optimizer, self._state(), step=step)
        if due:
            held.save(self.model, self.optimizer, self._state(), step=step)
            self.saved_at = time.perf_counter()
        self.idle += time.perf_counter() - began

    def _state(self) -> dict[str, Any]:
        return asdict(self.progress) | {"meter": self.meter.state(self.place)}

    def _message(self, rate: float) -> Report:
        progress, points, notes = self.progress, self.new_points, self.notes
        self.new_points, self.notes = [], ()
        where = progress.step, self.config.num_steps, self._epoch(), self._tokens_seen()
        spent = progress.seconds, progress.first_step
        return Report(*where, *spent, rate, points, self.earlier_seconds, notes)

    def _epoch(self) -> float:
        return self.order.epoch_after(self.progress.step)

    def _tokens_seen(self) -> int:
        return self.order.rows_after(self.progress.step) * self.config.data.seq_len

    def _diverged(self, reason: str) -> Outcome:
        return self._outcome("diverged", reason=f"{reason} at step {self.progress.step}")

    def _outcome(self, state: str, **more: Any) -> Outcome:
        progress = self.progress
        rows = self.order.rows_after(progress.step) - self.order.rows_after(progress.first_step)
        trained = rows * self.config.data.seq_len
        spent = progress.seconds, self.earlier_seconds
        return Outcome(state, progress.step, *spent, trained_tokens=trained, **more)

    def _record(self, point: Point) -> None:
        self.progress.points.append(point)
        self.new_points.append(point)


def train(
    config: RunConfig,
    data: Data,
    place: Place,
    *,
    microbatch_size: int,
    report: Callable[[Report], None],
    checkpoints: Checkpoints | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train a resolved configuration, from its newest checkpoint on where there is one.

    Every rank calls it with the same configuration; `report` is called equally often on each.
    """
    run = _Run(
        config,
        data,
        place,
        microbatch_size=microbatch_size,
        report=report,
        checkpoints=checkpoints,
        should_stop=should_stop,
    )
    with checkpoints or nullcontext():
        run.restore()
        return next(run.steps(), None) or run.finish()
