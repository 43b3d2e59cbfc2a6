"""What a command may still spend: its own time once, and asked of thousands of runs at no cost."""

import pytest

from dcray.driver.limits import ComputeLimit
from dcray.plan.estimate import expected_seconds
from dcray.search.cell_summary import cell_line
from tests.plan.test_estimate import ROW
from tests.search.player import MINI, state_of, study_of


def specs():
    return [one for chain in state_of(study_of(MINI)).ready() for one in chain]


class Counted(list):
    """Rows that know how often somebody went through them."""

    times = 0

    def __iter__(self):
        self.times += 1
        return super().__iter__()


def test_results_on_record_are_gone_through_once_for_each_kind_of_run():
    """2,000 results, 300 runs that are ready, 8 under way: 8 s a look without this."""
    rows, (one, *others) = Counted([ROW] * 3), specs()
    limit = ComputeLimit(1.0)
    limit.prices.learn(rows)
    assert all(limit.allows(other, [one] * 8) for other in others)
    assert len(others) > 10
    assert rows.times == 2  # of the two sizes
    small = next(other for other in others if other.config.size_name == "60k")
    expected, source = expected_seconds(small.config, "cpu", 1, list(rows))
    assert source.startswith("3 runs of this store")
    assert limit.prices.device_seconds(small) == expected
    limit.prices.learn([])
    assert limit.prices.device_seconds(small) != expected


def test_device_hours_are_of_all_devices():
    """Two GPUs for 50 s: 100 device-seconds, in the table and of the budget."""
    state, limit = state_of(study_of(MINI)), ComputeLimit(1.0)
    chain = state.ready()[0]
    ended = chain[0].ended("complete", 3.0, device_seconds=50.0, num_devices=2)
    state.start(chain)
    state.apply(ended)
    limit.spend(ended)
    assert cell_line(state, chain[0].key.cell).device_seconds == limit.spent == 100.0


def test_a_resumed_run_spends_what_this_attempt_took():
    """A run of 100 s, lost at 60, of which 40 lie in another command: 20 here, then 40 more."""
    limit, (one, *_) = ComputeLimit(1.0), specs()
    limit.spend(one.ended("lost", device_seconds=60.0, earlier_seconds=40.0))
    limit.spend(one.ended("complete", 3.0, device_seconds=100.0, earlier_seconds=60.0))
    assert limit.spent == 60.0
    assert limit.prices.device_seconds(one) == pytest.approx(100.0)  # as the whole of it took
