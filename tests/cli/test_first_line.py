"""What a command says first, and how soon: before the packages that take seconds are imported."""

import json
import subprocess
import sys

import pytest

from tests.studies import search_words, write_study
from tests.training import words

HEAVY = ("ray", "torch", "mlflow")
CHILD = """
import json, sys
from dcray import cli
from dcray.cli.screen import console

def first(text, **_):
    heavy = [name for name in {heavy!r} if name in sys.modules]
    print(json.dumps([str(text), heavy]), flush=True)
    raise SystemExit(0)

{hook}
try:
    cli.main()
finally:
    print(json.dumps(["", [name for name in {heavy!r} if name in sys.modules]]))
"""


def said_first(*asked, hook="console.err.print = first"):
    """(what was said first, the heavy packages that were imported by then)."""
    code = CHILD.format(heavy=HEAVY, hook=hook)
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, asked)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    text, heavy = json.loads(done.stdout.splitlines()[0])
    return text, heavy


@pytest.mark.parametrize("command", ["train", "search", "prepare"])
def test_the_first_line_comes_before_what_takes_seconds(tiny_corpus, tmp_path, command):
    asked = {
        "train": words(tiny_corpus, tmp_path / "runs"),
        "search": search_words(write_study(tmp_path), tiny_corpus, tmp_path / "runs"),
        "prepare": ["prepare", "stdlib", "--out", tmp_path / "corpus", "--tokenizer", "byte",
                    "--budgets", "1k", "--val-tokens", "1k"],
    }[command]  # fmt: skip
    text, heavy = said_first(*asked)
    begins = {"train": "training ", "search": "searching 2 cells of micro", "prepare": "preparing "}
    assert text.startswith(begins[command])
    assert heavy == []


REFUSED = {
    "no source": ["prepare", "files:nix", "--out", "c", "--tokenizer", "byte", "--budgets", "1k",
                  "--val-tokens", "1k"],
    "no corpus to train on": ["train", "--corpus", "nix"],
    "no corpus to search on": ["search", "mini_cpu", "--corpus", "nix"],
    "no study": ["search", "nix", "--corpus", "nix"],
    "no field": ["train", "optim.lrr=1", "--corpus", "nix"],
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_told_before_what_takes_seconds(case):
    _, heavy = said_first(*REFUSED[case], hook="")
    assert heavy == []
