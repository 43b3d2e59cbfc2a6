"""Which checkpoints a search keeps: the states of trunks that may go on, and the best run's."""

import copy

from dcray.search.queue import Ended
from dcray.search.tidy import Tidy
from dcray.train.schedule import fork_step
from tests.search.player import MINI, bowl, queue_of, study_of


def test_a_trunk_s_states_go_when_the_ladder_drops_it(tmp_path):
    """9, 5, 3 trunks, by hand: all nine stay until the ninth loss, then five, then three."""
    table = copy.deepcopy(MINI) | {"sizes": ["60k"], "budgets": ["8k"]}
    queue = queue_of(study_of(table))
    (cell,) = [cell for cell in queue.searches if cell.recipe == "ar"]
    tidy, kept = Tidy(queue, tmp_path), []
    while (state := queue.state(cell)).ready and not state.searched:
        one = state.ready[0][0]
        (tmp_path / one.trunk / f"step-{one.config.num_steps}").mkdir(parents=True, exist_ok=True)
        queue.start((one,))
        queue.end(Ended(one, "complete", bowl(one)))
        tidy.cell(cell)
        kept.append(len(list(tmp_path.iterdir())))
    assert kept == [1, 2, 3, 4, 5, 6, 7, 8, 5, 5, 5, 5, 5, 3, 2, 1, 0]


def test_of_a_trunk_s_states_the_one_that_the_next_branch_starts_from_is_kept(tmp_path):
    """Four rungs, nobody dropped: three states at the end without this, of 12 bytes a parameter."""
    table = copy.deepcopy(MINI) | {"sizes": ["60k"], "budgets": ["8k"]}
    axes = {"num_epochs": [4, 8, 16, 32], "lr": [1e-3]}
    table["recipes"] = {"ar": {"space": [axes]}}
    queue = queue_of(study_of(table))
    (cell,) = queue.searches
    tidy, kept = Tidy(queue, tmp_path), []
    while ready := queue.state(cell).ready:
        (one,) = ready[0]
        config, trunk = one.config, tmp_path / one.trunk
        if one.save_at_fork:
            state = trunk / f"step-{fork_step(config.num_steps, config.schedule):08d}"
            state.mkdir(parents=True)
            kept.append(state.name)
            tidy.cell(cell)  # while it is not whole, and the branch runs, nothing goes
            assert [path.name for path in sorted(trunk.iterdir())] == kept[-2:]
            (state / "meta.json").touch()
        queue.start((one,))
        queue.end(Ended(one, "complete", bowl(one)))
        tidy.cell(cell)
        assert [path.name for path in trunk.glob("*")] == kept[-1:] * one.save_at_fork
    assert len(kept) == 3


def test_what_failed_keeps_its_checkpoint_and_its_trunk(tmp_path):
    """The next start tries it again from there: nothing computed is lost to an error."""
    table = copy.deepcopy(MINI) | {"sizes": ["60k"], "budgets": ["8k"]}
    queue = queue_of(study_of(table))
    tidy = Tidy(queue, tmp_path)
    one = queue.ready()[0][0]
    for name in (one.name, one.trunk):
        (tmp_path / name).mkdir()
    queue.start((one,))
    queue.end(Ended(one, "failed", reason="OSError: no space left"))
    while queue.ready():
        chain = queue.ready()[0]
        queue.start(chain)
        queue.end(Ended(chain[0], "complete", bowl(chain[0])))
        tidy.cell(one.key.cell)
    assert {path.name for path in tmp_path.iterdir()} == {one.name, one.trunk}
