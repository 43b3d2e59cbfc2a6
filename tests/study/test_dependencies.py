"""Which cells of the record a study may wait for: those whose winner is known, or will be."""

import pytest

from dcray.driver.external import ExternalWinners
from dcray.errors import ConfigError
from dcray.study.dependencies import refuse_unreachable
from dcray.track.store import Store
from dcray.types import Cell
from tests.search.player import MINI, study_of

CHILD = study_of({**MINI, "study": "child", "recipes": {"ar": {"inherit": "toy:ar"}}})
PARENT = Cell("toy", "60k", 8_000, "ar")


def test_a_cell_is_waited_for_where_it_has_a_winner_or_is_held(tmp_path):
    """What `dcray train` has made, and a search that was left, will never have one."""
    cell_specs = CHILD.select(sizes=["60k"], budgets=["8k"])
    with Store.open(tmp_path, study="child") as child, Store.open(tmp_path, study="toy") as toy:

        def promised():
            return ExternalWinners(child).promised("toy")

        assert promised() == set()  # there is no such study yet
        assert ExternalWinners(child).winner(PARENT) is None
        toy.cell(PARENT)
        with pytest.raises(ConfigError, match="it needs the winner of 60k 8k ar, which no file"):
            refuse_unreachable(CHILD, cell_specs, ExternalWinners(child).promised)
        for state, winner, then in (("searching", "", set()), ("done", "a run", {PARENT})):
            lease = toy.claim(PARENT)
            assert promised() == {PARENT}
            lease.tag({"search_state": state, "winner": winner})
            lease.release("FINISHED", seconds=20.0)
            assert promised() == then
        refuse_unreachable(CHILD, cell_specs, ExternalWinners(child).promised)
