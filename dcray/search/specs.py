"""Runs to do: resolved configurations with their keys, and what they read of a corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dcray.config.run import RunConfig
from dcray.config.sections import rows_in
from dcray.corpus.manifest import Corpus
from dcray.errors import ConfigError
from dcray.train.schedule import fork_step, last_shared_step
from dcray.types import Cell, RunKey, RunSpec


@dataclass(frozen=True)
class Fingerprint:
    """The part of a corpus that the configurations of a cell read, as their identity has it."""

    vocab_size: int
    reads: str


def fingerprint(corpus: Corpus, config: RunConfig) -> Fingerprint:
    """Compute the vocabulary and the hash of what a configuration reads of a corpus.

    Raises ConfigError if the corpus (or its validation set) is too small, its vocabulary is not the
    model's, or its documents are to be shuffled and there is one.
    """
    wanted = config.model.vocab_size
    if wanted is not None and wanted < corpus.vocab_size:
        raise ConfigError(
            f"model.vocab_size ({wanted}) must hold the corpus's {corpus.vocab_size} ids; "
            "leave it out to take the corpus's"
        )
    corpus.check_budget(config.data.unique_tokens)
    if config.data.order == "documents":
        corpus.check_documents(config.data.unique_tokens)
    _check_validation(config, corpus)
    reads = corpus.reads(config.data.unique_tokens, config.data.val_tokens)
    return Fingerprint(wanted or corpus.vocab_size, reads)


class HasBase(Protocol):
    """A cell and its base configuration: what reads a corpus."""

    cell: Cell

    def base(self) -> RunConfig: ...


def fingerprints(corpus: Corpus, cell_specs: Sequence[HasBase]) -> dict[Cell, Fingerprint]:
    """Compute what each cell reads of the corpus; raise ConfigError with the problems of all."""
    found: dict[Cell, Fingerprint] = {}
    seen: dict[Any, Fingerprint] = {}
    problems: list[str] = []
    for cell_spec in cell_specs:
        base = cell_spec.base()
        data = base.data
        key = (data.unique_tokens, data.val_tokens, data.order, base.model.vocab_size)
        try:
            seen[key] = found[cell_spec.cell] = seen.get(key) or fingerprint(corpus, base)
        except ConfigError as error:
            problems += error.problems
    problems += _two_validation_sets(found, cell_specs)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return found


def _two_validation_sets(
    found: Mapping[Cell, Fingerprint], cell_specs: Sequence[HasBase]
) -> list[str]:
    """Describe in a sentence each cell that reads otherwise than the first cell of its budget."""
    first: dict[int, HasBase] = {}
    problems = []
    for cell_spec in cell_specs:
        cell = cell_spec.cell
        other = first.setdefault(cell.unique_tokens, cell_spec)
        if {cell, other.cell} <= found.keys() and found[cell].reads != found[other.cell].reads:
            problems.append(
                "data.val_tokens must be one for a whole study, for losses on two validation sets "
                f"cannot be compared, got {_val_tokens(other)} and {_val_tokens(cell_spec)}; "
                "write it once, in [base] of the study file, or put one of them into another study"
            )
    return problems


def _val_tokens(cell_spec: HasBase) -> str:
    tokens = cell_spec.base().data.val_tokens
    return f"{'all' if tokens is None else format(tokens, ',')} for recipe {cell_spec.cell.recipe}"


def single_run(config: RunConfig, corpus: Corpus, *, study: str, recipe: str) -> RunSpec:
    """Build a plain run of a configuration on a corpus, as a cell of its own size."""
    found = fingerprint(corpus, config)
    cell = Cell(study, config.size_name, config.data.unique_tokens, recipe)
    return plain_run(config, cell, found)


def plain_run(
    config: RunConfig,
    cell: Cell,
    found: Fingerprint,
    *,
    longest_epochs: int | None = None,
    kind: str = "run",
    axes: tuple[str, ...] = (),
) -> RunSpec:
    """Build a run without a trunk; longest_epochs: those of the run whose warm-up it shares."""
    resolved = config.resolved(vocab_size=found.vocab_size, longest_epochs=longest_epochs)
    key = RunKey(cell, resolved.identity(found.reads), config.seed, kind)
    return RunSpec(key, resolved, found.reads, axes=axes)


def confirmation(
    winner: RunConfig, seed: int, cell: Cell, found: Fingerprint, axes: tuple[str, ...] = ()
) -> RunSpec:
    """Build the run that trains a cell's winner from the start with another seed."""
    again = winner.model_copy(update={"seed": seed})
    return plain_run(again, cell, found, kind="confirmation", axes=axes)


def branch_runs(
    config: RunConfig,
    rungs: tuple[int, ...],
    cell: Cell,
    found: Fingerprint,
    *,
    longest_epochs: int,
    axes: tuple[str, ...] = (),
) -> list[RunSpec]:
    """Build the branches of one trunk, one for each epoch count.

    Each starts from the newest fork of the shorter ones that `last_shared_step` allows.
    """
    specs: list[RunSpec] = []
    name, forks = "", [0]
    for number, epochs in enumerate(rungs):
        branch = config.model_copy(update={"num_epochs": epochs})
        plain = plain_run(
            branch, cell, found, longest_epochs=longest_epochs, kind="branch", axes=axes
        )
        name = name or f"{cell.name}_{plain.key.config_hash}_seed{config.seed}_trunk"
        first = max(fork for fork in forks if fork <= last_shared_step(plain.config))
        specs.append(
            replace(plain, trunk=name, save_at_fork=number + 1 < len(rungs), forked_from=first)
        )
        forks.append(fork_step(plain.config.num_steps, plain.config.schedule))
    return specs


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
