"""lm-eval's tasks by name, checked before anything is loaded; those of dcray need no network."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from lm_eval.tasks import TaskManager

from dcray.errors import ConfigError, did_you_mean
from dcray.progress import counted

OFFLINE = Path(__file__).with_name("offline")
ABSENT = ("ConnectionError", "OfflineModeIsEnabled", "LocalEntryNotFoundError", "Timeout")
LOUD = ("lm_eval", "datasets", "huggingface_hub")  # loggers; their handlers keep stderr
UNKNOWN = ("DatasetNotFoundError", "FileNotFoundError", "DataFilesNotFoundError")


def find_tasks(names: Sequence[str], include: Sequence[Path] = ()) -> TaskManager:
    """Find lm-eval's index, in which each of `names` is a task, a group or a tag.

    include: folders with tasks of one's own. Raises ConfigError with the nearest name for each
    unknown one.
    """
    folders = [folder for folder in include if not folder.is_dir()]
    if folders:
        raise ConfigError(f"--include must be a folder of lm-eval tasks, got {folders[0]}")
    if not names:
        raise ConfigError("--tasks must name at least one task of lm-eval, such as arc_easy")
    with quiet():
        ours = TaskManager(include_path=[OFFLINE, *include], include_defaults=False)
        if set(names) <= set(ours.all_tasks):  # lm-eval's own 15,000 take four seconds to read
            return ours
        every = TaskManager(include_path=[OFFLINE, *include])
    unknown = [name for name in names if name not in every.task_index]
    if unknown:
        usual = [name for name in every.all_tasks if name[0] in {word[0] for word in unknown}]
        raise ConfigError(
            [f'lm-eval has no task "{n}"{_nearest(n, usual or every.all_tasks)}' for n in unknown]
        )
    return every


def load_tasks(manager: TaskManager, names: Sequence[str]) -> Any:
    """Load the tasks with their documents.

    Raises ConfigError that says which data are missing and how to get them. Without a network the
    hub's client takes half a minute a task to find that out.
    """
    absent, built = dict[str, Exception](), list[Any]()
    for name in counted("tasks", names):
        try:
            with quiet():
                built.append(manager.load([name]))
        except Exception as error:
            kind = type(error).__name__
            if kind not in ABSENT + UNKNOWN:
                raise
            absent[name] = error
    if absent:
        raise ConfigError(_absent(manager, absent))
    merged: dict[str, Any] = {"tasks": {}, "groups": {}, "group_map": {}}
    for each in built:
        for part in merged:
            merged[part] |= each.get(part, {})
    return merged


@contextmanager
def quiet() -> Iterator[None]:
    """Silence log lines and progress bars of lm-eval, datasets and the hub; errors pass through."""
    before = {name: logging.getLogger(name).level for name in LOUD}
    for name in before:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with redirect_stderr(StringIO()), redirect_stdout(StringIO()):
            yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def _nearest(name: str, known: Sequence[str]) -> str:
    said = did_you_mean(name, known)
    return said if said.startswith(" (did") else "; `lm_eval ls tasks` lists them"


def _absent(manager: TaskManager, absent: Mapping[str, Exception]) -> str:
    """Format the error for tasks whose data are missing, with the command that downloads them."""
    tasks = ", ".join(f'"{name}" ({type(error).__name__})' for name, error in absent.items())
    asked = []
    for name in absent:
        config = manager.task_index[name].cfg or {}
        path, subset = config.get("dataset_path"), config.get("dataset_name")
        if path:
            asked.append(f'"{path}"' if subset is None else f'"{path}", "{subset}"')
    loads = "; ".join(f"load_dataset({one})" for one in dict.fromkeys(asked))
    fetch = (
        f": where there is a network, run python -c 'from datasets import load_dataset; {loads}', "
        "and copy ~/.cache/huggingface (or HF_HOME) here"
        if asked
        else f": {next(iter(absent.values()))}"
    )
    return f"the data of {tasks} are not at hand{fetch}; nothing was evaluated"
