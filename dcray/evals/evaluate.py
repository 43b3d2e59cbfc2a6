"""The evaluation of one run, or of two side by side, on tasks or validation set, and its record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcray.errors import ConfigError
from dcray.evals.run import FoundRun, LoadedRun, find_run
from dcray.track.evaluations import remark
from dcray.train.evaluate import Evaluation

if TYPE_CHECKING:
    import torch

    from dcray.evals.tasks.results import TaskScore

ROW_TOKENS = 8_192  # tokens of validation rows in one pass, if no batch size is given
CONTEXTS = 32  # contexts of task requests in one pass
DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass(frozen=True)
class Request:
    """The evaluation asked of each run: tasks, or the validation loss if there are none."""

    tasks: tuple[str, ...] = ()
    include: tuple[Path, ...] = ()
    limit: int | None = None
    batch_size: int | None = None
    device: str = "auto"
    precision: str = "auto"
    draws: int | None = None
    by_bound: bool = False


@dataclass(frozen=True)
class Answer:
    """The result for one run: its task scores, or its validation loss."""

    found: FoundRun
    scores: list[TaskScore] = field(default_factory=list)
    validation: Evaluation | None = None
    bound: str | None = None  # "upper bound" if the run's loss is one


def evaluate_runs(
    names: Sequence[str],
    asked: Request,
    *,
    directory: Path,
    corpus: Path | None = None,
    tracking_uri: str | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> list[Answer]:
    """Evaluate every run in turn and write each answer to the record as soon as it is there.

    Every problem that can be found without weights is found before the first weights are loaded.
    Raises ConfigError.
    """
    device = pick_device(asked.device)
    if asked.precision not in PRECISIONS:
        raise ConfigError(f"--precision must be one of {PRECISIONS}, got {asked.precision!r}")
    for name, value in (("--batch-size", asked.batch_size), ("--draws", asked.draws),
                        ("--limit", asked.limit)):  # fmt: skip
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    found = [find_run(directory, name, corpus=corpus, tracking_uri=tracking_uri) for name in names]
    for one in found:
        _check_bound(one, asked)
    tasks = _tasks(asked) if asked.tasks else None
    answers = []
    for one in found:
        note(f"{one.label}: weights from {one.place}")
        run = one.load(device, precision=asked.precision, compiled=_compiles(device, asked))
        answer = _task_answer(run, tasks(), asked) if tasks else _validation_answer(run, asked)
        _write(answer, asked, directory, tracking_uri)
        answers.append(answer)
    return answers


def pick_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is the first GPU, else the CPU. Raises ConfigError."""
    import torch

    if name not in DEVICES:
        raise ConfigError(f"--device must be one of {', '.join(DEVICES)}, got {name!r}")
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise ConfigError("--device cuda needs a GPU that torch sees; take auto or cpu")
    return torch.device("cuda" if there and name != "cpu" else "cpu")


def row_batch(seq_len: int, wanted: int | None) -> int:
    """Return the number of validation rows in one pass: `wanted`, or as many as hold ROW_TOKENS."""
    return wanted or max(1, ROW_TOKENS // seq_len)


def _tasks(asked: Request) -> Callable[[], Any]:
    """Load the tasks; return a function that gives each run a fresh copy (lm-eval changes it)."""
    from dcray.evals.tasks.catalog import find_tasks, load_tasks

    manager = find_tasks(asked.tasks, asked.include)
    first = [load_tasks(manager, asked.tasks)]
    return lambda: first.pop() if first else load_tasks(manager, asked.tasks)


def _check_bound(found: FoundRun, asked: Request) -> None:
    objective = found.row.tags.get("objective", found.row.recipe)
    if found.row.tags.get("bound") and asked.tasks and not asked.by_bound:
        raise ConfigError(
            f"{found.name} is {objective}, which has no log-likelihoods, only a bound on them; "
            "--by-bound ranks answers by it, which is no figure to set beside a causal model's"
        )
    if (asked.by_bound or asked.draws) and not found.row.tags.get("bound"):
        raise ConfigError(
            f"{'--by-bound' if asked.by_bound else '--draws'} is for runs whose loss is an upper "
            f"bound, and {found.name} is {objective}, whose loss is exact; leave it out"
        )


def _compiles(device: torch.device, asked: Request) -> bool:
    """Tell whether to compile: on a GPU, but not for tasks, where all passes differ in shape."""
    return device.type == "cuda" and not asked.tasks


def _task_answer(run: LoadedRun, tasks: Any, asked: Request) -> Answer:
    from dcray.evals.tasks.bound import bound_log_likelihoods
    from dcray.evals.tasks.harness import RunLM
    from dcray.evals.tasks.results import score_tasks
    from dcray.evals.tasks.score import log_likelihoods

    shared: dict[str, Any] = {"seq_len": run.seq_len, "batch_size": asked.batch_size or CONTEXTS}
    if run.objective.causal:
        score: Any = partial(log_likelihoods, run.model, **shared)
    else:
        mask_id, draws = run.found.corpus.mask_id, asked.draws or 32
        score = partial(bound_log_likelihoods, run.single, mask_id=mask_id, draws=draws, **shared)
    lm = RunLM(run.model, run.tokenizer, score, seq_len=run.seq_len)
    scores = score_tasks(lm, tasks, limit=asked.limit)
    return Answer(run.found, scores, bound=run.objective.bound)


def _validation_answer(run: LoadedRun, asked: Request) -> Answer:
    from dcray.evals.validation import score_validation

    rows = row_batch(run.seq_len, asked.batch_size)
    found = score_validation(run, batch_size=rows, draws=asked.draws)
    return Answer(run.found, validation=found, bound=run.objective.bound)


def _write(answer: Answer, asked: Request, directory: Path, tracking_uri: str | None) -> None:
    """Write an answer to the record, unless `limit` made it a quick look at a few documents."""
    from dcray.evals import validation
    from dcray.evals.tasks import results

    if asked.limit is not None:
        return
    if answer.validation is not None:
        remark(directory, answer.found.row, validation.as_metrics(answer.validation),
               tracking_uri=tracking_uri)  # fmt: skip
        return
    prefix = "bound/" if answer.bound else ""
    metrics = {prefix + name: value for name, value in results.as_metrics(answer.scores).items()}
    held = {prefix + name: docs for name, docs in results.as_artifacts(answer.scores).items()}
    remark(directory, answer.found.row, metrics, artifacts=held, tracking_uri=tracking_uri)
