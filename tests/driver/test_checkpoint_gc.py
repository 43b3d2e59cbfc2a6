"""Which checkpoints a search keeps: the states of trunks that may go on, and the best run's."""

import copy

from dcray.driver.checkpoint_gc import CheckpointCollector
from dcray.train.schedule import fork_step
from tests.search.player import MINI, bowl, state_of, study_of


def test_a_trunk_s_states_go_when_the_ladder_drops_it(tmp_path):
    """9, 5, 3 trunks, by hand: all nine stay until the ninth loss, then five, then three."""
    table = copy.deepcopy(MINI) | {"sizes": ["60k"], "budgets": ["8k"]}
    state = state_of(study_of(table))
    (cell,) = [cell for cell in state.searches if cell.recipe == "ar"]
    collector, kept = CheckpointCollector(state, tmp_path), []
    while (here := state.cell_state(cell)).ready and not here.searched:
        one = here.ready[0][0]
        (tmp_path / one.trunk / f"step-{one.config.num_steps}").mkdir(parents=True, exist_ok=True)
        state.start((one,))
        state.apply(one.ended("complete", bowl(one)))
        collector.collect(cell)
        kept.append(len(list(tmp_path.iterdir())))
    assert kept == [1, 2, 3, 4, 5, 6, 7, 8, 5, 5, 5, 5, 5, 3, 2, 1, 0]


def test_of_a_trunk_s_states_the_one_that_the_next_branch_starts_from_is_kept(tmp_path):
    """Four rungs, nobody dropped: three states at the end without this, of 12 bytes a parameter."""
    table = copy.deepcopy(MINI) | {"sizes": ["60k"], "budgets": ["8k"]}
    axes = {"num_epochs": [4, 8, 16, 32], "lr": [1e-3]}
    table["recipes"] = {"ar": {"space": [axes]}}
    state = state_of(study_of(table))
    (cell,) = state.searches
    collector, kept = CheckpointCollector(state, tmp_path), []
    while ready := state.cell_state(cell).ready:
        (one,) = ready[0]
        config, trunk = one.config, tmp_path / one.trunk
        if one.save_at_fork:
            saved = trunk / f"step-{fork_step(config.num_steps, config.schedule):08d}"
            saved.mkdir(parents=True)
            kept.append(saved.name)
            collector.collect(cell)  # while it is not whole, and the branch runs, nothing goes
            assert [path.name for path in sorted(trunk.iterdir())] == kept[-2:]
            (saved / "meta.json").touch()
        state.start((one,))
        state.apply(one.ended("complete", bowl(one)))
        collector.collect(cell)
        assert [path.name for path in trunk.glob("*")] == kept[-1:] * one.save_at_fork
    assert len(kept) == 3


def test_what_failed_keeps_its_checkpoint_and_its_trunk(tmp_path):
    """The next start tries it again from there: nothing computed is lost to an error."""
    table = copy.deepcopy(MINI) | {"sizes": ["60k"], "budgets": ["8k"]}
    state = state_of(study_of(table))
    collector = CheckpointCollector(state, tmp_path)
    one = state.ready()[0][0]
    for name in (one.name, one.trunk):
        (tmp_path / name).mkdir()
    state.start((one,))
    state.apply(one.ended("failed", reason="OSError: no space left"))
    while state.ready():
        chain = state.ready()[0]
        state.start(chain)
        state.apply(chain[0].ended("complete", bowl(chain[0])))
        collector.collect(one.key.cell)
    assert {path.name for path in tmp_path.iterdir()} == {one.name, one.trunk}
