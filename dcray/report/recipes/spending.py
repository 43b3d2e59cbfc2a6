"""Compute what a recipe's runs cost, from configurations: FLOPs of training and of a token read.

A recipe's runs at one size share one forward pass and one number of passes; so the configuration of
one of them, and each run's tokens, give the exact FLOPs of all. What an optimizer itself computes
is counted with the training. An ensemble of K counts K times, for training and for reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from dcray import cost
from dcray.config.run import RunConfig
from dcray.errors import ConfigError
from dcray.fit.equal_cost import Spent
from dcray.fit.ranking import TRAINING
from dcray.report.cells import Cell, loss_of
from dcray.track.rows import Row

ConfigOf = Callable[[str], Mapping[str, Any]]  # run id: the configuration on record


@dataclass(frozen=True)
class Forward:
    """Hold the FLOPs of reading one token, and of training on one, for one member."""

    reading: float
    training: float


def forward_of(config: Mapping[str, Any]) -> Forward:
    """Compute the FLOPs of a token from a configuration; raises ConfigError if it has none."""
    try:
        run = RunConfig.model_validate(config)
    except ValidationError:
        raise ConfigError("its configuration on record is none that this dcray reads") from None
    if run.model.vocab_size is None:
        raise ConfigError("its configuration on record has no vocab_size")
    tokens = run.usable_rows * run.data.seq_len
    return Forward(
        cost.row_flops(run) / run.data.seq_len, cost.training_flops_per_epoch(run) / tokens
    )


class Spending:
    """The costs of a study's cells; configurations are read when they are first asked for."""

    def __init__(self, config_of: ConfigOf | None = None) -> None:
        self._config_of = config_of
        self._found: dict[tuple[str, str], Forward | ConfigError] = {}

    def training(self, cell: Cell, row: Row) -> float:
        """Compute the training FLOPs of a run of the cell, all of its members counted.

        Raises ConfigError if they are not on record.
        """
        tokens = row.params.get("train_tokens")
        if tokens is None and row.num_epochs is None:
            raise ConfigError(f"run {row.run_id} does not say its tokens")
        trained = float(tokens) if tokens else float(row.num_epochs or 0) * row.unique_tokens
        return self._forward(cell).training * trained * row.num_members

    def inference(self, cell: Cell, row: Row) -> float:
        """Compute the FLOPs of reading one token; raises ConfigError if they are not on record."""
        return self._forward(cell).reading * row.num_members

    def columns(self, cell: Cell, row: Row) -> dict[str, Any]:
        """Return num_members, training_flops and inference_flops (a token); None if not known."""
        found: dict[str, Any] = {"num_members": row.num_members}
        try:
            flops = {
                "training_flops": self.training(cell, row),
                "inference_flops": self.inference(cell, row),
            }
        except ConfigError:
            return found | dict.fromkeys(("training_flops", "inference_flops"))
        return found | flops

    def _forward(self, cell: Cell) -> Forward:
        """Return the cost of a token at the cell's size under its recipe."""
        place = cell.recipe, cell.size
        if place not in self._found:
            self._found[place] = self._read(cell.winner.run_id)
        found = self._found[place]
        if isinstance(found, ConfigError):
            raise found
        return found

    def _read(self, run_id: str) -> Forward | ConfigError:
        """Compute the cost of a token from a run's configuration; return the error if it fails."""
        if self._config_of is None:
            return ConfigError("no configuration is on record")
        try:
            return forward_of(self._config_of(run_id))
        except ConfigError as error:
            return error

    def spent(self, cells: Sequence[Cell], source: str, at_equal: str) -> list[Spent]:
        """List the losses of one recipe's cells with what they cost, in training or in reading.

        On fresh seeds the winners count, an ensemble of K as K seeds; on the search seed every
        result, since a cheaper one may be the lowest at its cost.

        Raises ConfigError if a cost is not on record.
        """
        flops = self.training if at_equal == TRAINING else self.inference
        found = []
        for cell in cells:
            U, best = cell.unique_tokens, cell.winner
            if source != "confirmed":
                found += [Spent(U, flops(cell, row), loss_of(row)) for row in cell.candidates]
            elif cell.fresh:
                num_seeds = sum(row.num_members for row in cell.fresh)
                found.append(Spent(U, flops(cell, best), cell.loss(source), num_seeds))
        return found
