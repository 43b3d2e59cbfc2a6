"""What a command may still spend: its own time once, and asked of thousands of runs at no cost."""

import pytest

from dcray.search.budget import Budget
from dcray.search.plan import expected_seconds
from dcray.search.queue import Ended
from dcray.search.standing import cell_line
from tests.search.player import MINI, queue_of, study_of
from tests.search.test_plan import ROW


def requests():
    return [one for chain in queue_of(study_of(MINI)).ready() for one in chain]


class Counted(list):
    """Rows that know how often somebody went through them."""

    times = 0

    def __iter__(self):
        self.times += 1
        return super().__iter__()


def test_results_on_record_are_gone_through_once_for_each_kind_of_run():
    """2,000 results, 300 runs that are ready, 8 under way: 8 s a look without this."""
    rows, (one, *others) = Counted([ROW] * 3), requests()
    budget = Budget(1.0)
    budget.learn(rows)
    assert all(budget.allows(other, [one] * 8) for other in others)
    assert len(others) > 10
    assert rows.times == 2  # of the two sizes
    small = next(other for other in others if other.config.size_name == "60k")
    expected, source = expected_seconds(small.config, "cpu", 1, list(rows))
    assert source.startswith("3 runs of this store")
    assert budget.device_seconds(small) == expected
    budget.learn([])
    assert budget.device_seconds(small) != expected


def test_device_hours_are_of_all_devices():
    """Two GPUs for 50 s: 100 device-seconds, in the table and of the budget."""
    queue, budget = queue_of(study_of(MINI)), Budget(1.0)
    chain = queue.ready()[0]
    ended = Ended(chain[0], "complete", 3.0, device_seconds=50.0, num_devices=2)
    queue.start(chain)
    queue.end(ended)
    budget.spend(ended)
    assert cell_line(queue, chain[0].key.cell).device_seconds == budget.spent == 100.0


def test_a_resumed_run_spends_what_this_attempt_took():
    """A run of 100 s, lost at 60, of which 40 lie in another command: 20 here, then 40 more."""
    budget, (one, *_) = Budget(1.0), requests()
    budget.spend(Ended(one, "lost", device_seconds=60.0, earlier_seconds=40.0))
    budget.spend(Ended(one, "complete", 3.0, device_seconds=100.0, earlier_seconds=60.0))
    assert budget.spent == 60.0
    assert budget.device_seconds(one) == pytest.approx(100.0)  # as the whole of it took
