"""The assignment of a table's columns to fields: by name, by a known alias, or by the user."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dcray.errors import ConfigError, did_you_mean

COUNTS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
LOSS_UNITS = ("nats", "bits", "perplexity")
# Names as `_plain` writes them. A field's own name comes first, then these, in any case.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "num_params": (
        "n", "n_params", "nparams", "params", "param", "parameters", "parameter_count",
        "param_count", "params_count", "num_parameters", "n_parameters", "total_params",
        "total_parameters", "model_params", "model_parameters", "model_size",
    ),
    "unique_tokens": (
        "u", "num_unique_tokens", "n_unique_tokens", "unique", "unique_data", "dataset_tokens",
        "dataset_size", "seed_tokens", "token_budget", "data_budget",
    ),
    "train_tokens": (
        "d", "tokens", "num_tokens", "n_tokens", "token_count", "total_tokens",
        "training_tokens", "tokens_seen", "tokens_trained", "num_train_tokens",
    ),
    "val_loss": (
        "l", "loss", "final_loss", "raw_loss", "cross_entropy", "ce", "ce_loss", "nll", "nll_loss",
    ),
    "num_epochs": ("epochs", "n_epochs", "epoch_count", "num_passes", "passes"),
    "recipe": (),
    "seed": ("random_seed",),
    "bound": (),
    "flops": ("c", "compute", "training_compute"),
}  # fmt: skip
NEEDED = ("num_params", "unique_tokens", "val_loss")
TAILED = ("num_params", "unique_tokens", "train_tokens")  # also after a prefix: "x/total_tokens"
EVALUATED = re.compile(r"(final_)?(eval|evaluation|val|valid|validation|test|held_?out)_(.*_)?loss")
PERPLEXITY = re.compile(r"((eval|val|valid|validation|test)_)?(ppl|perplexity)")
FLOPS = re.compile(r"(.*_)?(k|m|g|giga|t|tera|p|peta|e|exa)?flops?")
FLOP_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18}
SUFFIX = re.compile(
    r"(?i)^(.+?)[\s_]*(?:[\s_]|\(|\[)(?:in[\s_]+)?"
    r"(k|m|b|t|thousands?|millions?|billions?|trillions?|nats|bits)[)\]]?$"
)
WORDS = {"thousand": "k", "million": "m", "billion": "b", "trillion": "t"}


@dataclass(frozen=True)
class Column:
    """One column of the table. factor: of a count or of FLOPs; loss_unit: one of LOSS_UNITS."""

    name: str
    position: int
    factor: float = 1.0
    loss_unit: str = "nats"

    @property
    def unit(self) -> str:
        """Describe the unit: "" for plain counts and nats, else as " times 1e6" or " in bits"."""
        if self.loss_unit != "nats":
            return " (a perplexity)" if self.loss_unit == "perplexity" else " in bits"
        return "" if self.factor == 1 else f" times {self.factor:.0e}".replace("e+0", "e")


def assign(
    source: str, header: Sequence[str], asked: Mapping[str, str], units: Mapping[str, str]
) -> dict[str, Column]:
    """Assign the columns of a header to fields: {field: Column}.

    asked: {field: column} and units: {field: unit}, both from the user. Raises ConfigError for a
    column that occurs twice, a field that two columns may hold, and a missing field, each with the
    option that settles the matter.
    """
    _check_told(asked, units)
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise ConfigError(f"{source} has the column {twice[0]} twice: rename or drop one of them")
    found: dict[str, Column] = {}
    problems: list[str] = []
    for field in ALIASES:
        if field not in asked and field == "train_tokens" and "unique_tokens" in found:
            continue  # not needed, not even if two columns may hold it
        try:
            name = _column(source, field, header, asked)
        except ConfigError as error:
            problems += error.problems if field in asked or field != "flops" else ()
            continue
        if name is not None:
            found[field] = _with_unit(field, name, header.index(name), units.get(field))
    if problems:
        raise ConfigError(problems)
    _check_found(source, header, found, asked)
    if "flops" not in asked:
        found.pop("flops", None)
    if unused := sorted(set(units) - set(found)):
        raise ConfigError(f"--unit {unused[0]}={units[unused[0]]}: {source} has no such column")
    return found


def pairs_of(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Parse ["num_params=N"] as {"num_params": "N"}.

    Raises ConfigError for a text without FIELD or VALUE, and for a field that occurs twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        field, equals, value = (part.strip() for part in text.partition("="))
        if not (field and equals and value):
            raise ConfigError(f"{option} must be FIELD=VALUE, got {text!r}")
        if field in found:
            raise ConfigError(f"{option} names {field} twice: {found[field]} and {value}")
        found[field] = value
    return found


def _check_told(asked: Mapping[str, str], units: Mapping[str, str]) -> None:
    for option, told in (("--column", asked), ("--unit", units)):
        for field in told:
            if field not in ALIASES:
                raise ConfigError(
                    f'{option}: there is no field "{field}"{did_you_mean(field, ALIASES)}'
                )
    for field, other in ((a, b) for a in asked for b in asked if a < b):
        if asked[field] == asked[other]:
            raise ConfigError(f"--column names {asked[field]} for both {field} and {other}")


def _column(source: str, field: str, header: Sequence[str], asked: Mapping[str, str]) -> str | None:
    """Find the header's name for the field, None if there is none; ConfigError for several."""
    if field in asked:
        wanted = asked[field]
        same = [name for name in header if _plain(name) == _plain(wanted)]
        if wanted in header or len(same) == 1:
            return wanted if wanted in header else same[0]
        raise ConfigError(
            f'--column {field}={wanted}: {source} has no column "{wanted}"'
            f"{did_you_mean(wanted, filter(None, header))}"
        )
    free = [name for name in header if name and name not in asked.values()]
    own = [name for name in free if name == field] or [
        name for name in free if _plain(name) == field
    ]
    named = own or [name for name in free if _is_alias(field, name)]
    if field == "val_loss" and not named:
        named = [name for name in free if PERPLEXITY.fullmatch(_plain(name))]
    if len(named) > 1:
        raise ConfigError(
            f"{source}: {field} may be the column {' or '.join(named)}; "
            f"--column {field}={_quoted(named[0])} says which"
        )
    return named[0] if named else None


def _is_alias(field: str, name: str) -> bool:
    """Tell whether a column of this name is known to hold the field."""
    plain = [_plain(name)]
    if suffix := SUFFIX.match(name):
        plain.append(_plain(suffix[1]))
    known = (field, *ALIASES[field])
    if field == "val_loss":
        return any(one in known or EVALUATED.fullmatch(one) for one in plain)
    if field == "flops":
        return any(one in known or FLOPS.fullmatch(one) for one in plain)
    tail = _plain(name.rpartition("/")[2]) if field in TAILED else ""
    return any(one in known for one in plain) or (len(tail) > 2 and tail in known)


def _plain(name: str) -> str:
    """Normalize a name to lower case with single underscores: "Model Size" as "model_size"."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[\w./-]+", name) else f"'{name}'"


def _with_unit(field: str, name: str, position: int, told: str | None) -> Column:
    """Build the column with its unit: the told one, or that at the name's end ("params (M)")."""
    suffix = SUFFIX.match(name)
    word = told or (suffix[2].lower() if suffix else "")
    if field == "val_loss":
        if told is not None and told not in LOSS_UNITS:
            raise ConfigError(f"--unit val_loss must be one of {', '.join(LOSS_UNITS)}, got {told}")
        if not told and PERPLEXITY.fullmatch(_plain(name)):
            word = "perplexity"
        return Column(name, position, loss_unit=word if word in LOSS_UNITS else "nats")
    if field not in (*TAILED, "flops"):
        if told is not None:
            raise ConfigError(f"--unit {field}={told}: {field} has no unit")
        return Column(name, position)
    if field == "flops" and not told and (flops := FLOPS.fullmatch(_plain(name))):
        return Column(name, position, FLOP_UNITS[flops[2][0]] if flops[2] else 1.0)
    return Column(name, position, _factor(field, word, told))


def _factor(field: str, word: str, told: str | None) -> float:
    """Parse a unit as a factor: 1e6 for "m", "million", "millions" and "1e6"; 1 for ""."""
    word = word.lower()
    word = WORDS.get(word.removesuffix("s"), word)
    if not word or word in COUNTS:
        return COUNTS.get(word, 1.0)
    try:
        factor = float(word)
    except ValueError:
        factor = 0.0 if told is not None else 1.0
    if not 0 < factor < 1e30:
        raise ConfigError(f"--unit {field} must be k, m, b, t or a factor such as 1e6, got {told}")
    return factor


def _check_found(
    source: str, header: Sequence[str], found: dict[str, Column], asked: Mapping[str, str]
) -> None:
    """Raise ConfigError unless the needed fields are there, or the user says how they follow."""
    if "flops" in asked:
        there = [name for name in ("num_params", "unique_tokens") if name in found]
        there += ["unique_tokens"] * ("train_tokens" in found and "unique_tokens" not in there)
        if len(there) == 2:
            raise ConfigError(
                f"--column flops={asked['flops']}: {source} has num_params and tokens already, "
                "leave it away"
            )
    tokens = "unique_tokens" in found or "train_tokens" in found
    missing = [
        name for name in NEEDED if not (tokens if name == "unique_tokens" else name in found)
    ]
    if "flops" in asked and len(missing) == 1 and "val_loss" not in missing:
        return
    if not missing:
        return
    names = ["val_loss (or loss)" if name == "val_loss" else name for name in missing]
    columns = ", ".join(filter(None, header)) or "none"
    remedy = f"--column {missing[0]}=NAME says which column it is"
    if "flops" in found and len(missing) == 1 and missing[0] != "val_loss":
        other = "unique_tokens" if missing[0] == "num_params" else "num_params"
        remedy += (
            f", --column flops={_quoted(found['flops'].name)} computes it as FLOPs / (6 {other})"
        )
    raise ConfigError(
        f"{source} lacks the column{'s' * (len(missing) > 1)} {', '.join(names)}; "
        f"it has {columns}: {remedy}"
    )
