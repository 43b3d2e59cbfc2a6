"""A result that somebody wants: a resolved configuration and the key of its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from dcray.config import RunConfig
from dcray.corpus.manifest import Corpus
from dcray.errors import ConfigError
from dcray.sections import rows_in
from dcray.track.points import Cell, Key
from dcray.train.cost import training_flops
from dcray.train.schedule import fork_step

Spot = tuple[Cell, str, int]  # Request.spot


@dataclass(frozen=True)
class Request:
    """A result that somebody wants: a configuration under the name of a recipe."""

    recipe: str
    config: RunConfig  # resolved
    key: Key
    reads: str  # the hash of what it reads: Corpus.reads
    trunk: str | None = None  # the name of the trunk that it branches off from
    save_at_fork: bool = False  # whether a longer branch may follow
    forked_from: int = 0  # the step of the trunk's state that it probably starts from

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def slot(self) -> tuple[str, int]:
        """What makes two results of a cell the same: configuration and seed, whatever the kind."""
        return self.key.config_hash, self.key.seed

    @property
    def spot(self) -> Spot:
        """The same in a whole study: two recipes may hold one configuration."""
        return self.key.cell, *self.slot

    @cached_property
    def flops(self) -> float:
        """Exact training FLOPs of what it trains itself."""
        steps = self.config.num_steps
        return training_flops(self.config) * (steps - self.forked_from) / steps


@dataclass(frozen=True)
class Reading:
    """What the configurations of a cell read, as far as their identity goes."""

    vocab_size: int
    reads: str


def reading(corpus: Corpus, config: RunConfig) -> Reading:
    """The vocabulary and the hash of what a configuration reads of a corpus.

    Raises ConfigError where the corpus is too small or its vocabulary is not the model's.
    """
    wanted = config.model.vocab_size
    if wanted is not None and wanted < corpus.vocab_size:
        raise ConfigError(
            f"model.vocab_size ({wanted}) must hold the corpus's {corpus.vocab_size} ids; "
            "leave it out to take the corpus's"
        )
    corpus.check_budget(config.data.unique_tokens)
    _check_validation(config, corpus)
    reads = corpus.reads(config.data.unique_tokens, config.data.val_tokens)
    return Reading(wanted or corpus.vocab_size, reads)


class Wish(Protocol):
    """What reads a corpus: a cell and its base configuration."""

    cell: Cell

    def base(self) -> RunConfig: ...


def readings(corpus: Corpus, wishes: Sequence[Wish]) -> dict[Cell, Reading]:
    """What each cell reads of the corpus; raises ConfigError with every problem of all of them."""
    found: dict[Cell, Reading] = {}
    seen: dict[Any, Reading] = {}
    problems: list[str] = []
    for wish in wishes:
        base = wish.base()
        key = (base.data.unique_tokens, base.data.val_tokens, base.model.vocab_size)
        try:
            seen[key] = found[wish.cell] = seen.get(key) or reading(corpus, base)
        except ConfigError as error:
            problems += error.problems
    problems += _two_validation_sets(found, wishes)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return found


def _two_validation_sets(found: Mapping[Cell, Reading], wishes: Sequence[Wish]) -> list[str]:
    """A sentence for each cell that reads otherwise than the first cell of its budget does."""
    first: dict[int, Wish] = {}
    problems = []
    for wish in wishes:
        cell = wish.cell
        other = first.setdefault(cell.unique_tokens, wish)
        if {cell, other.cell} <= found.keys() and found[cell].reads != found[other.cell].reads:
            problems.append(
                "data.val_tokens must be one for a whole study, for losses on two validation sets "
                f"cannot be compared, got {_val_tokens(other)} and {_val_tokens(wish)}; write it "
                "once, in [base] of the study file, or put one of them into another study"
            )
    return problems


def _val_tokens(wish: Wish) -> str:
    tokens = wish.base().data.val_tokens
    return f"{'all' if tokens is None else format(tokens, ',')} for recipe {wish.cell.recipe}"


def request(config: RunConfig, corpus: Corpus, *, study: str, recipe: str) -> Request:
    """A plain run of a configuration on a corpus, as a cell of its own size."""
    found = reading(corpus, config)
    cell = Cell(study, config.size_name, config.data.unique_tokens, recipe)
    return plain_request(config, cell, found)


def plain_request(
    config: RunConfig,
    cell: Cell,
    found: Reading,
    *,
    longest_epochs: int | None = None,
    kind: str = "run",
) -> Request:
    """A request without a trunk; longest_epochs: the run whose warm-up it shares."""
    resolved = config.resolved(vocab_size=found.vocab_size, longest_epochs=longest_epochs)
    key = Key(cell, resolved.identity(found.reads), config.seed, kind)
    return Request(cell.recipe, resolved, key, found.reads)


def branch_requests(
    config: RunConfig, rungs: tuple[int, ...], cell: Cell, found: Reading, *, longest_epochs: int
) -> list[Request]:
    """The branches of one trunk, one for each epoch count."""
    requests: list[Request] = []
    name, before = "", 0
    for number, epochs in enumerate(rungs):
        branch = config.model_copy(update={"num_epochs": epochs})
        plain = plain_request(branch, cell, found, longest_epochs=longest_epochs, kind="branch")
        name = name or f"{cell.name}_{plain.key.config_hash}_seed{config.seed}_trunk"
        requests.append(
            Request(
                plain.recipe,
                plain.config,
                plain.key,
                plain.reads,
                trunk=name,
                save_at_fork=number + 1 < len(rungs),
                forked_from=before,
            )
        )
        before = fork_step(plain.config.num_steps, plain.config.schedule)
    return requests


def _check_validation(config: RunConfig, corpus: Corpus) -> None:
    have = corpus.manifest.validation.tokens
    wanted = config.data.val_tokens
    if wanted is not None and wanted > have:
        raise ConfigError(
            f"data.val_tokens ({wanted:,}) must be at most the corpus's {have:,} validation tokens"
        )
    if rows_in(wanted or have, config.data.seq_len, config.data.seq_len) < 1:
        raise ConfigError(
            f"the validation set of {wanted or have:,} tokens holds no row of "
            f"data.seq_len + 1 = {config.data.seq_len + 1}; prepare more with --val-tokens"
        )
