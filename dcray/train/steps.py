"""The steps of a run: plain ones, or on one GPU from fixed buffers, as CUDA graphs."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from dcray.config.run import RunConfig
from dcray.corpus.order import Slice
from dcray.model.transformer import Transformer
from dcray.objectives import Objective
from dcray.optimizers import Optimizer
from dcray.rng import keyed
from dcray.train.average import Average
from dcray.train.batching import HostBatch, batch_of, microbatches
from dcray.train.evaluate import Score, score_plainly, sums_of
from dcray.train.launch.graphed import CudaGraphs, GraphedFunction, Graphs
from dcray.train.launch.low_precision import LowPrecisionWeights
from dcray.train.launch.staging import Fields, StagingBuffer
from dcray.train.optim import set_lr
from dcray.train.shard import RankContext
from dcray.train.step import StepSums, device_step, train_step


class Steps(Protocol):
    """The interface that the loop uses: optimizer steps, and the score of validation batches."""

    def train(
        self, part: Slice, rows: NDArray[Any], *, lr: float, tokens: int, share: float
    ) -> StepSums:
        """Take one step over this rank's rows; `tokens`: targets of the whole batch, all ranks.

        share: of the new weights in their average, if one is kept.
        """
        ...

    def scorer(self, objective: Objective) -> Score:
        """Return a function that scores batches with the current weights."""
        ...

    def close(self) -> None:
        """Free what the steps hold on the device."""
        ...


def build_steps(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    config: RunConfig,
    place: RankContext,
    *,
    microbatch_size: int,
    mask_id: int,
    average: Average | None = None,
) -> Steps:
    """Build the steps of a run on this rank; each also updates `average`, if there is one."""
    run = model, optimizer, objective, config
    more: Any = {"microbatch_size": microbatch_size, "mask_id": mask_id, "average": average}
    if place.device.type != "cuda" or place.mesh is not None:
        return PlainSteps(*run, place, **more)
    return DeviceSteps(*run, place, CudaGraphs(), **more)


class PlainSteps:
    """Steps launched one operation at a time, on any device and any number of ranks."""

    def __init__(
        self,
        model: Transformer,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        config: RunConfig,
        place: RankContext,
        *,
        microbatch_size: int,
        mask_id: int,
        average: Average | None = None,
    ) -> None:
        self.model, self.optimizer, self.objective = model, optimizer, objective
        self.config, self.place, self.average = config, place, average
        self.microbatch_size, self.mask_id = microbatch_size, mask_id

    def train(
        self, part: Slice, rows: NDArray[Any], *, lr: float, tokens: int, share: float
    ) -> StepSums:
        set_lr(self.optimizer, lr)
        batches = microbatches(
            part,
            rows,
            self.place,
            size=self.microbatch_size,
            seed=self.config.seed,
            mask_id=self.mask_id,
        )
        sums = train_step(
            self.model,
            self.optimizer,
            self.objective,
            batches,
            step_tokens=tokens,
            world_size=self.place.world_size,
            max_grad_norm=self.config.optim.max_grad_norm,
        )
        if self.average is not None:
            self.average.update(share)
        return sums

    def scorer(self, objective: Objective) -> Score:
        return score_plainly(self.model, objective, self.place.device, self.mask_id)

    def close(self) -> None:
        pass


class DeviceSteps:
    """Steps of one device alone that read fixed buffers, so that they can become graphs.

    All that changes from step to step is in the buffers: rows, keys, the learning rate, the number
    of targets, the share in an average. A last step of fewer micro-batches is launched as it is.
    """

    def __init__(
        self,
        model: Transformer,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        config: RunConfig,
        place: RankContext,
        graphs: Graphs,
        *,
        microbatch_size: int,
        mask_id: int,
        average: Average | None = None,
    ) -> None:
        self.model, self.optimizer, self.objective = model, optimizer, objective
        self.config, self.place, self.graphs, self.average = config, place, graphs, average
        self.size, self.mask_id = microbatch_size, mask_id
        halved = model.dtype.itemsize < model.embed.weight.dtype.itemsize
        self.halves = LowPrecisionWeights(model, model.dtype) if halved else None
        self.count = -(-config.batch_size // microbatch_size)  # micro-batches of a whole step
        fields: Fields = {"lr": (torch.float32, ()), "step_tokens": (torch.float64, ())}
        if average is not None:
            fields = {**fields, "share": (average.dtype, ())}
        rows = self._row_fields(self.count * self.size)
        self.mail = StagingBuffer({**fields, **rows}, place.device)
        self._names: tuple[str, ...] = ()
        self._weights: dict[str, float] = {}
        self.plugin: Optimizer = config.optimizer.build()
        capture = config.runtime.capture if self.plugin.capturable else False
        self._step = GraphedFunction(partial(self._train, self.count), graphs, capture=capture)
        self._scorers: list[tuple[Objective, _Scorer]] = []

    def train(
        self, part: Slice, rows: NDArray[Any], *, lr: float, tokens: int, share: float
    ) -> StepSums:
        set_lr(self.optimizer, lr)  # for the record: the step reads the buffer
        keys = keyed.row_keys(self.config.seed, part.epochs, part.row_ids)
        shares = {} if self.average is None else {"share": share}
        self.mail.send(lr=lr, step_tokens=tokens, tokens=rows, real=part.real, keys=keys, **shares)
        count = len(part) // self.size
        sums = self._step() if count == self.count else self._train(count)
        *nats, norm = sums.unbind()
        return StepSums(dict(zip(self._names, nats, strict=True)), self._weights, norm)

    def scorer(self, objective: Objective) -> Score:
        if self.halves is not None:
            self.halves.cast()
        for known, scorer in self._scorers:
            if known is objective:
                return scorer
        self._scorers.append((objective, _Scorer(self, objective)))
        return self._scorers[-1][1]

    def close(self) -> None:
        for replayed in (self._step, *(scorer.replayed for _, scorer in self._scorers)):
            if replayed is not None:
                replayed.release()

    def _train(self, count: int) -> Tensor:
        """Do a step over the first `count` micro-batches: each term's nats, then the norm."""
        fields = self.mail.fields
        parts = [slice(i * self.size, (i + 1) * self.size) for i in range(count)]
        sums = device_step(
            self.model,
            self.optimizer,
            self.plugin,
            self.objective,
            [(batch_of(fields, part, self.mask_id), fields["keys"][part]) for part in parts],
            step_tokens=fields["step_tokens"],
            lr=fields["lr"],
            max_grad_norm=self.config.optim.max_grad_norm,
            halves=self.halves,
        )
        if self.average is not None:
            self.average.update(fields["share"])
        self._names, self._weights = tuple(sums.nats), sums.weights
        return torch.stack([*sums.nats.values(), sums.grad_norm.double()])

    def _row_fields(self, num_rows: int) -> dict[str, Any]:
        width = self.config.data.seq_len + 1
        return {
            "keys": (torch.int64, (num_rows,)),
            "real": (torch.float32, (num_rows,)),
            "tokens": (torch.int32, (num_rows, width)),
        }


class _Scorer:
    """Scores batches of one objective; the first batch tells whether there are bytes of text."""

    def __init__(self, steps: DeviceSteps, objective: Objective) -> None:
        self.steps, self.objective = steps, objective
        self.mail: StagingBuffer | None = None
        self.replayed: GraphedFunction | None = None

    def __call__(self, host: HostBatch) -> Tensor:
        steps, arrays = self.steps, {k: v for k, v in host._asdict().items() if v is not None}
        if self.mail is None or self.replayed is None:
            fields: Fields = steps._row_fields(len(host.real))
            if host.text_bytes is not None:
                fields = {**fields, "text_bytes": (torch.int32, host.text_bytes.shape)}
            self.mail = StagingBuffer(fields, steps.place.device)
            capture = steps.config.runtime.capture
            self.replayed = GraphedFunction(self._score, steps.graphs, capture=capture)
        self.mail.send(**arrays)
        return self.replayed()

    @torch.no_grad()
    def _score(self) -> Tensor:
        assert self.mail is not None
        fields = self.mail.fields
        batch = batch_of(fields, slice(None), self.steps.mask_id)
        return sums_of(self.objective.validation(self.steps.model, batch, fields["keys"]))
