"""The plug-ins that a configuration names, each with its options: objective and optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from dcray import plugins
from dcray.config.sections import OptimConfig
from dcray.errors import ConfigError, did_you_mean, rule_of

PLUGGED = {"objective": "objectives", "optimizer": "optimizers"}  # field: kind of plug-in
CHOICES = dict.fromkeys(PLUGGED, "name") | {"average": "kind"}  # field: what decides its options
NAMES = {path for field, key in CHOICES.items() for path in (field, f"{field}.{key}")}


class Plugged(BaseModel):
    """The name of a plug-in and its options; `field` is where it stands in a configuration."""

    model_config = ConfigDict(frozen=True, extra="allow")
    field: ClassVar[str]
    name: str

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        """Expand a bare name, and write out default options, so that they are hashed."""
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping):
            return value
        name = value.get("name", cls.model_fields["name"].default)
        if not isinstance(name, str):
            raise ValueError(f"{cls.field} must be a name, or a table with one, got {name!r}")
        options = {key: option for key, option in value.items() if key != "name"}
        try:
            built = plugins.load(PLUGGED[cls.field], name, **options)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        except ValidationError as error:
            raise ValueError(_option_problems(cls.field, name, error)) from None
        return {"name": name, **built.options()}

    def build(self) -> Any:
        """Build the plug-in with its options."""
        return plugins.load(PLUGGED[self.field], self.name, **(self.model_extra or {}))

    @property
    def source(self) -> str | None:
        """Return the hash of the plug-in's source, None if it is dcray's own."""
        return plugins.source_hash(PLUGGED[self.field], self.name)


class ObjectiveConfig(Plugged):
    """The objective's name and its options; the plug-in itself defines which options there are."""

    field: ClassVar[str] = "objective"
    name: str = "ar"


class OptimizerConfig(Plugged):
    """The optimizer's name and its options; learning rate and weight decay are those of `optim`."""

    field: ClassVar[str] = "optimizer"
    name: str = "adamw"


def _option_problems(field: str, name: str, error: ValidationError) -> str:
    """Format the problems of a plug-in's options as sentences."""
    known = plugins.plugin(PLUGGED[field], name).model_fields
    sentences = []
    for detail in error.errors():
        option = ".".join(str(step) for step in detail["loc"])
        message = rule_of(detail)
        if detail["type"] == "extra_forbidden":
            shared = field == "optimizer" and option in OptimConfig.model_fields
            meant = f' (did you mean "optim.{option}"?)' if shared else did_you_mean(option, known)
            message = f'"{field}.{option}" is not an option of {name}{meant}'
        elif option:
            colon = "" if message.startswith("must ") else ":"
            message = f"{field}.{option}{colon} {message}, got {detail['input']!r}"
        sentences.append(message)
    return "; ".join(sentences)
