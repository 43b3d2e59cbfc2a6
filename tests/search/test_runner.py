"""What a stop asks, and of whom."""

from dcray.search.runner import StopRequest
from dcray.train.worker import STOP_FILE


def test_a_stop_asks_the_trials_that_run_and_makes_no_folder_of_one_that_is_gone(tmp_path):
    """A search has deleted most folders of its trials by then: they stay deleted."""
    stop, over, runs, late = StopRequest(), tmp_path / "over", tmp_path / "runs", tmp_path / "late"
    stop.watch(over)
    stop.watch(runs)
    over.rmdir()
    stop.leave(over)
    stop.set()
    stop.watch(late)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["late", "runs"]
    assert all((folder / STOP_FILE).exists() for folder in (runs, late))
