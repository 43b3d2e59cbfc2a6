"""The average of a run's weights: which one is kept, and over how long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from dcray.config.sections import Frozen
from dcray.errors import ConfigError

OWN = {"ema": ("tau_epochs", 0.5), "mean": ("last_frac", 0.2)}  # each kind's field and its default


class AverageConfig(Frozen):
    """Averaged weights, which then count in place of the last ones.

    "ema" weighs the weights after each step by exp(-age / tau), "mean" those of the last part of
    the schedule alike.
    """

    kind: Literal["none", "ema", "mean"] = "none"  # "ema": exponential; "mean": of the last part
    tau_epochs: float | None = Field(None, gt=0)  # of "ema", in epochs; None: 0.5
    last_frac: float | None = Field(None, gt=0, le=1)  # of "mean", of all steps; None: 0.2

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        """Write out the default of the kind's own field, so that it is hashed."""
        if not isinstance(value, Mapping) or value.get("kind") not in list(OWN):
            return value
        name, default = OWN[value["kind"]]
        return value if value.get(name) is not None else {**value, name: default}

    @model_validator(mode="after")
    def _own_field_alone(self) -> AverageConfig:
        for kind, (name, _) in OWN.items():
            if kind != self.kind and getattr(self, name) is not None:
                raise ValueError(
                    f'average.{name} is read only with average.kind = "{kind}", got '
                    f'"{self.kind}": set that kind, or leave the field out'
                )
        return self

    @property
    def kept(self) -> bool:
        """Tell whether a run keeps an average."""
        return self.kind != "none"

    def fields(self) -> dict[str, Any]:
        """Return what is set, {"kind": "ema", "tau_epochs": 0.5}; {} if no average is kept."""
        return self.model_dump(mode="json", exclude_none=True) if self.kept else {}

    def refuse_longer(self, num_epochs: int) -> None:
        """Raise ConfigError if the average is over more epochs than the run has."""
        if self.tau_epochs is not None and self.tau_epochs > num_epochs:
            raise ConfigError(
                f"average.tau_epochs ({self.tau_epochs:g}) must be at most num_epochs "
                f"({num_epochs}), for the average would be longer than the run: lower it, or "
                "train longer"
            )
