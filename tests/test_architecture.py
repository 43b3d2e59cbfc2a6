"""docs/ARCHITECTURE.md names what there is."""

import importlib
import re
import traceback
from pathlib import Path

import pytest

from dcray.objectives.ar import AR
from tests.support import run_tiny, tiny_config
from tests.test_house import LAYER

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`((?:[a-z_]+\.)+[A-Za-z_.]+)`", TEXT)))
PATHS = sorted(set(re.findall(r"`([\w/]+(?:\.py|/))`", TEXT)))


def thing(name: str):
    """The module, class or function of a dotted name within dcray."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(["dcray", *parts[:length]]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return found
    raise AssertionError(f"dcray has no {name}")


def test_there_is_something_to_hold():
    assert len(NAMES) > 20
    assert len(PATHS) > 12


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith((".py", ".md"))])
def test_a_name_is_there(name):
    thing(name)


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_there(path):
    assert (ROOT / "dcray" / path).exists() or (ROOT / path).exists()


def test_every_layer_is_told():
    table = TEXT.partition("## Layers")[2].partition("## A batch")[0]
    told = set(re.findall(r"`(\w+)`", table))
    small = {"dcray", "progress", "reports", "__main__"}
    assert set(LAYER) - small <= told


def test_the_way_down_to_the_backward_pass_is_the_one_told(monkeypatch):
    """The stack of a first step names the functions of the page, from `train` on."""
    stacks, terms = [], AR.terms

    def watched(self, *inputs):
        frames = traceback.extract_stack()
        stacks.append([f.name for f in frames if Path(f.filename).parent.name == "train"])
        return terms(self, *inputs)

    monkeypatch.setattr(AR, "terms", watched)
    run_tiny(tiny_config())
    told = TEXT.partition("and down from")[2].partition("`dcray train`")[0]
    last = [name.rpartition(".")[2] for name in re.findall(r"`(train\.[\w.]+)`", told)]
    assert [name for name in stacks[0] if name != "steps"] == last[last.index("train") :]
