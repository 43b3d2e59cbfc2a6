"""The documents of the tasks in this folder, read from files beside it: no network, no cache."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any


def _documents(name: str, **_: Any) -> Any:
    """Load the documents of NAME.jsonl as the split "test"; ignore what else lm-eval passes."""
    from datasets import Dataset, DatasetDict

    path = Path(__file__).with_name(f"{name}.jsonl")
    lines = path.read_text(encoding="utf-8").splitlines()
    return DatasetDict(test=Dataset.from_list([json.loads(line) for line in lines]))


choice, yesno, lastword, text, count = (
    partial(_documents, name) for name in ("choice", "yesno", "lastword", "text", "count")
)
