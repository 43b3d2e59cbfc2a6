"""Training one run on one rank, without Ray, MLflow or any objective by name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from dcray.config.run import RunConfig
from dcray.corpus.order import Order, tee_ids
from dcray.corpus.validation_rows import ValidationRows
from dcray.cost import validation_epochs
from dcray.reports import Outcome, Point, Report
from dcray.train.average import build_average, in_place
from dcray.train.checkpoint.manager import Checkpoints
from dcray.train.evaluate import FINAL_DRAW, Evaluation, evaluate
from dcray.train.optim import build_optimizer
from dcray.train.reporting.clock import ReportClock
from dcray.train.reporting.metrics import Meter
from dcray.train.reporting.progress import Progress
from dcray.train.schedule import average_share, fork_step, lr_factor
from dcray.train.shard import RankContext, blank_model, init_weights
from dcray.train.step import StepSums
from dcray.train.steps import build_steps

Fetch = Callable[[Iterable[NDArray[np.int64]]], Iterator[NDArray[Any]]]


@dataclass(frozen=True)
class Data:
    """The data of a run: rows by their ids, in the order asked for, and the validation rows."""

    fetch: Fetch  # an iterable of row ids (n,) -> for each of them rows (n, T + 1)
    validation: ValidationRows
    mask_id: int


class _Run:
    """The state of `train` while it runs."""

    def __init__(
        self,
        config: RunConfig,
        data: Data,
        place: RankContext,
        *,
        microbatch_size: int,
        report: Callable[[Report], None],
        checkpoints: Checkpoints | None,
        should_stop: Callable[[], bool],
        on_result: Callable[[nn.Module], None],
    ) -> None:
        self.config, self.data, self.place, self.report = config, data, place, report
        self.microbatch_size, self.checkpoints = microbatch_size, checkpoints
        self.should_stop, self.on_result = should_stop, on_result
        self.objective, self.order = config.objective.build(), Order(config)
        self._build()
        self.meter, self.progress = Meter(), Progress()
        self.fork = fork_step(config.num_steps, config.schedule)
        self.validation_epochs = validation_epochs(config, num_rows=len(data.validation))
        self.point_every = max(1, math.ceil(config.num_steps / config.runtime.num_points))
        self.clock, self.earlier_seconds = ReportClock(config.runtime), 0.0
        self.new_points, self.notes = list[Point](), tuple[str, ...]()

    def _build(self) -> None:
        self.model = blank_model(self.config, self.place)
        self.optimizer = build_optimizer(self.model, self.config)
        self.average = build_average(self.model, self.config)
        self.stepper = build_steps(
            self.model,
            self.optimizer,
            self.objective,
            self.config,
            self.place,
            microbatch_size=self.microbatch_size,
            mask_id=self.data.mask_id,
            average=self.average,
        )

    def restore(self) -> None:
        """Restore the newest checkpoint that can be read, else draw initial weights."""
        held = self.checkpoints
        state = held.load(self.model, self.optimizer, self.average) if held else None
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
        self.clock.resume(self.progress.step)
        self.earlier_seconds = self.progress.seconds

    def steps(self) -> Iterator[Outcome]:
        """Train to the end; yield an outcome early if the run stops or diverges."""
        config, world = self.config, self.place.world_size
        first, num_steps = self.progress.step, config.num_steps
        mine = (
            whole.part(self.place.rank, world, self.microbatch_size)
            for whole in self.order.batches(first)
        )
        slices, ids = tee_ids(mine)
        rows_of_steps = self.data.fetch(ids)
        for step, rows in zip(range(first, num_steps), rows_of_steps, strict=True):
            lr = config.optim.lr * lr_factor(step, num_steps, config.schedule)
            tokens = self._tokens_seen(step + 1) - self._tokens_seen(step)
            share = average_share(step + 1, config)
            sums = self.stepper.train(next(slices), rows, lr=lr, tokens=tokens, share=share)
            self._count(sums, tokens, lr)
            done = self.progress.step
            if self.validation_epochs & {*self.order.epochs_ended(done)} or done == num_steps:
                outcome = self._validate()
                if outcome:
                    yield outcome
                    return
            if done >= self.clock.next_report or done in (self.fork, num_steps):
                outcome = self._report()
                if outcome:
                    yield outcome
                    return

    def finish(self) -> Outcome:
        """Return the result of a complete schedule: the last loss, or the best epoch's anew."""
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
        with in_place(None if best_epoch else self.average):
            self.stepper.scorer(
                self.objective
            )  # from here on the model computes with these weights
            self.on_result(self.model)
        found = {"val_loss": loss, "val_loss_stderr": stderr, "val_bpb": bpb}
        raw = None if best_epoch else progress.raw_loss
        return self._outcome("complete", best_epoch=best_epoch, val_loss_raw=raw, **found)

    def _count(self, sums: StepSums, tokens: int, lr: float) -> None:
        """Count a step of `tokens` targets, and close the point of the curve that it ends."""
        self.meter.add(sums, tokens)
        self.progress.step += 1
        step = self.progress.step
        if step % self.point_every == 0 or step == self.config.num_steps:
            epoch, seen = self._epoch(), self._tokens_seen(step)
            self.meter.close(step=step, epoch=epoch, tokens_seen=seen, lr=lr, norm=sums.grad_norm)

    def _validate(self) -> Outcome | None:
        self.place.wait()  # steps still under way are training time
        progress = self.progress
        with self.clock.aside():
            with in_place(self.average):  # the average is what counts, if one is kept
                result = self._evaluate(self.objective, progress.step)
            progress.last = (progress.step, result.loss, result.bpb)
            values = {"val/loss": result.loss}
            if self.average is not None:
                values["val/raw_loss"] = self._evaluate(self.objective, progress.step).loss
            if result.bpb is not None:
                values["val/bpb"] = result.bpb
            seen = self._tokens_seen(progress.step)
            self._record(Point(progress.step, self._epoch(), seen, values, time.time()))
        if not math.isfinite(result.loss):
            self._report()
            return self._diverged(f"the validation loss is {result.loss}")
        if self.objective.keeps_best and result.loss < progress.best_loss:
            progress.best_loss = result.loss
            progress.best_epoch = self.order.rows_after(progress.step) // self.config.usable_rows
            if self.checkpoints is not None:
                with in_place(self.average):
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
            score=self.stepper.scorer(objective),
        )

    def _report(self) -> Outcome | None:
        """Sync with the other ranks, report points, save if due; rank 0's clock decides."""
        progress, held = self.progress, self.checkpoints
        done = progress.step == self.config.num_steps
        flags = [*self.clock.look(progress.step), float(self.should_stop())]
        points, (every, elapsed, due, stop), fault = self.meter.flush(self.place, flags)
        steps_per_second = self.clock.close(progress.step, int(every))
        if held is not None:
            held.poll()
        for point in points:
            self._record(point)
        progress.seconds += elapsed
        with self.clock.reporting():
            step_tokens = self.config.batch_size * self.config.data.seq_len
            self.report(self._message(steps_per_second * step_tokens))
        if fault:
            return self._diverged(f"the training loss is {fault}")
        if held is not None:
            with self.clock.aside():
                self._keep(held, due=bool(due or stop) or done)
        if stop and not done:
            return self._outcome("stopped")
        return None

    def _keep(self, held: Checkpoints, *, due: bool) -> None:
        """Save the trunk's state at its fork, then an own checkpoint if one is due."""
        step, parts = self.progress.step, (self.model, self.optimizer)
        if step == self.fork:
            held.save_fork(*parts, self._state(), step=step, average=self.average)
        if due:
            held.save(*parts, self._state(), step=step, average=self.average)
            self.clock.saved()

    def _state(self) -> dict[str, Any]:
        return asdict(self.progress) | {"meter": self.meter.state(self.place)}

    def _message(self, rate: float) -> Report:
        progress, points, notes = self.progress, self.new_points, self.notes
        self.new_points, self.notes = [], ()
        seen = self._tokens_seen(progress.step)
        where = progress.step, self.config.num_steps, self._epoch(), seen
        spent = progress.seconds, progress.first_step
        return Report(*where, *spent, rate, points, self.earlier_seconds, notes)

    def _epoch(self) -> float:
        return self.order.epoch_after(self.progress.step)

    def _tokens_seen(self, step: int) -> int:
        """Count the targets of the first `step` steps, all ranks."""
        return self.order.rows_after(step) * self.config.data.seq_len

    def _diverged(self, reason: str) -> Outcome:
        return self._outcome("diverged", reason=f"{reason} at step {self.progress.step}")

    def _outcome(self, state: str, **more: Any) -> Outcome:
        progress = self.progress
        trained = self._tokens_seen(progress.step) - self._tokens_seen(progress.first_step)
        spent = progress.seconds, self.earlier_seconds
        return Outcome(state, progress.step, *spent, trained_tokens=trained, **more)

    def _record(self, point: Point) -> None:
        self.progress.points.append(point)
        self.new_points.append(point)


def train(
    config: RunConfig,
    data: Data,
    place: RankContext,
    *,
    microbatch_size: int,
    report: Callable[[Report], None],
    checkpoints: Checkpoints | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_result: Callable[[nn.Module], None] = lambda model: None,
) -> Outcome:
    """Train a resolved configuration, from its newest checkpoint if there is one.

    Every rank calls it with the same configuration; `report` is called equally often on each.
    on_result: is called on every rank with the model whose loss is the result, if there is one.
    """
    with place.own_stream(), checkpoints or nullcontext():
        run = _Run(
            config,
            data,
            place,
            microbatch_size=microbatch_size,
            report=report,
            checkpoints=checkpoints,
            should_stop=should_stop,
            on_result=on_result,
        )
        try:
            run.restore()
            return next(run.steps(), None) or run.finish()
        finally:
            run.stepper.close()
