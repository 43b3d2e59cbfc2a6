"""The training curve as it is recorded: sums stay on the device until a report needs them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dcray.config.sections import ABSURD_NATS
from dcray.reports import Point
from dcray.train.shard import RankContext
from dcray.train.step import StepSums


@dataclass
class _Pending:
    """A point whose sums are still on the device."""

    step: int
    epoch: float
    tokens_seen: int
    at: float
    lr: float
    tokens: int
    nats: dict[str, Tensor]
    weights: dict[str, float]
    grad_norm: Tensor


@dataclass
class Meter:
    """Sums of the steps since the last point, and the points since the last report."""

    nats: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    pending: list[_Pending] = field(default_factory=list)

    def add(self, sums: StepSums, tokens: int) -> None:
        """Add one step: this rank's nats, the whole batch's tokens."""
        for name, nats in sums.nats.items():
            self.nats[name] = self.nats[name] + nats if name in self.nats else nats
        self.weights = sums.weights
        self.tokens += tokens

    def close(self, *, step: int, epoch: float, tokens_seen: int, lr: float, norm: Tensor) -> None:
        """Close the current point and begin the next."""
        self.pending.append(
            _Pending(
                step,
                epoch,
                tokens_seen,
                time.time(),
                lr,
                self.tokens,
                self.nats,
                self.weights,
                norm,
            )
        )
        self.nats, self.tokens = {}, 0

    def flush(self, place: RankContext, flags: list[float]) -> tuple[list[Point], list[float], str]:
        """Return the points since the last flush, rank 0's flags, and a fault of the losses ("").

        The one place where training waits for the device: all ranks meet in one all-reduce.
        """
        open_sums = list(self.nats.values())
        columns = [sum_ for point in self.pending for sum_ in point.nats.values()] + open_sums
        first = place.rank == 0
        norms = [point.grad_norm.double() if first else torch.zeros(()) for point in self.pending]
        sent = torch.tensor(flags if first else [0.0] * len(flags), dtype=torch.float64)
        vector = torch.stack([v.to(place.device, torch.float64) for v in [*columns, *norms, *sent]])
        values = iter(place.total(vector).tolist())
        sums = [{name: next(values) for name in point.nats} for point in self.pending]
        finite = all(abs(v) < float("inf") for point in sums for v in point.values())
        finite &= all(abs(next(values)) < float("inf") for _ in open_sums)
        points = [self._point(p, s, next(values)) for p, s in zip(self.pending, sums, strict=True)]
        self.pending = []
        absurd = any(point.values["train/loss"] > ABSURD_NATS for point in points)
        fault = f"above {ABSURD_NATS:g} nats per token" if absurd else ""
        return points, list(values), fault if finite else "not finite"

    @staticmethod
    def _point(point: _Pending, sums: dict[str, float], grad_norm: float) -> Point:
        means = {name: total / point.tokens for name, total in sums.items()}
        values = {"train/loss": sum(point.weights[name] * mean for name, mean in means.items())}
        values |= {f"train/{name}_loss": mean for name, mean in means.items()}  # comparable ones
        values |= {"optim/lr": point.lr, "optim/grad_norm": grad_norm}
        return Point(point.step, point.epoch, point.tokens_seen, values, point.at)

    def state(self, place: RankContext) -> dict[str, Any]:
        """Return what a checkpoint must keep of an open point: sums over all ranks."""
        sums = {name: float(place.total(nats.clone())) for name, nats in self.nats.items()}
        return {"nats": sums, "weights": self.weights, "tokens": self.tokens}

    def restore(self, state: dict[str, Any], place: RankContext) -> None:
        """Restore `state`; rank 0 holds the sums of all ranks from here on."""
        own = 1.0 if place.rank == 0 else 0.0
        self.nats = {
            name: torch.tensor(nats * own, dtype=torch.float64, device=place.device)
            for name, nats in state["nats"].items()
        }
        self.weights, self.tokens = state["weights"], state["tokens"]
