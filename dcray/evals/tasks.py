"""lm-eval's tasks by name, checked before anything is loaded; ours need no network."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from lm_eval.tasks import TaskManager

from dcray.errors import ConfigError, did_you_mean

OFFLINE = Path(__file__).with_name("offline")
ABSENT = ("ConnectionError", "OfflineModeIsEnabled", "LocalEntryNotFoundError", "Timeout")
UNKNOWN = ("DatasetNotFoundError", "FileNotFoundError", "DataFilesNotFoundError")


def find_tasks(names: Sequence[str], include: Sequence[Path] = ()) -> TaskManager:
    """lm-eval's index, in which each of `names` is a task, a group or a tag.

    include: folders with tasks of one's own. Raises ConfigError with the nearest name for each
    that is none.
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
    """The tasks with their documents.

    Raises ConfigError that says which data are not at hand and how to get them.
    """
    problems, built = list[str](), list[Any]()
    for name in names:
        try:
            with quiet():
                built.append(manager.load([name]))
        except Exception as error:
            kind = type(error).__name__
            if kind not in ABSENT + UNKNOWN:
                raise
            problems.append(_absent(manager, name, error))
    if problems:
        raise ConfigError(problems)
    merged: dict[str, Any] = {"tasks": {}, "groups": {}, "group_map": {}}
    for each in built:
        for part in merged:
            merged[part] |= each.get(part, {})
    return merged


@contextmanager
def quiet() -> Iterator[None]:
    """lm-eval and datasets without their log lines and bars; what they raise passes through."""
    before = {name: logging.getLogger(name).level for name in ("lm_eval", "datasets")}
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


def _absent(manager: TaskManager, name: str, error: Exception) -> str:
    """Which data set, and the line that fetches it where there is a network."""
    config = manager.task_index[name].cfg or {}
    path, subset = config.get("dataset_path"), config.get("dataset_name")
    if not path:
        return f'the data of task "{name}" are not at hand: {error}'
    asked = f'"{path}"' if subset is None else f'"{path}", "{subset}"'
    return (
        f'the data of task "{name}" are not at hand ({type(error).__name__}). Where there is a '
        f"network: python -c 'import datasets; datasets.load_dataset({asked})', and copy "
        "~/.cache/huggingface (or HF_HOME) here; nothing was evaluated and the run is as it was"
    )
