"""The nats of validation targets that a run keeps for ensembles: its final weights', whole."""

from functools import partial

import numpy as np
import pytest
import torch

from dcray import plugins
from dcray.corpus.validation_rows import nats_file, read_nats, write_nats
from dcray.errors import ConfigError
from dcray.objectives import no_ensemble
from dcray.train.evaluate import keep_target_nats
from dcray.train.shard import RankContext
from tests.support import run_tiny, tiny_config, tiny_data

CPU = RankContext(torch.device("cpu"))


def keeper(path, config):
    rows = tiny_data(config, num_val_rows=5).validation
    return partial(keep_target_nats, path, rows=rows, place=CPU, microbatch_size=4)


@pytest.mark.parametrize("objective", ["ar", "mir"])
def test_their_mean_is_the_validation_loss(tmp_path, objective):
    config = tiny_config(objective=objective)
    path = nats_file(tmp_path, "run")
    outcome, _ = run_tiny(config, on_result=keeper(path, config))
    nats = read_nats(path)
    assert (nats.shape, nats.dtype) == ((5, 16), np.float32)
    assert nats.mean(dtype=float) == pytest.approx(outcome.val_loss, abs=1e-6)


def test_a_run_that_was_stopped_keeps_none_and_its_next_start_writes_the_same(tmp_path):
    config = tiny_config(runtime__checkpoint_seconds=0)
    whole, path = nats_file(tmp_path, "whole"), nats_file(tmp_path, "again")
    run_tiny(config, on_result=keeper(whole, config))
    stopped, _ = run_tiny(
        config, folder=tmp_path / "run", stop_at=5, on_result=keeper(path, config)
    )
    assert stopped.state == "stopped"
    assert not path.exists()
    for _ in range(2):  # the second time it was complete already: killed before it was on record
        run_tiny(config, folder=tmp_path / "run", on_result=keeper(path, config))
        np.testing.assert_array_equal(read_nats(path), read_nats(whole))
        path.unlink()


def test_a_damaged_file_is_a_sentence(tmp_path):
    path = nats_file(tmp_path, "run")
    with pytest.raises(ConfigError, match=r"validation/run\.npy cannot be read"):
        read_nats(path)
    write_nats(path, np.ones((3, 4), np.float32))
    path.write_bytes(path.read_bytes()[:150])
    with pytest.raises(ConfigError, match="search again to train it anew"):
        read_nats(path)
    assert [one.name for one in path.parent.iterdir()] == ["run.npy"]


def test_only_an_exact_next_token_loss_can_be_averaged():
    assert no_ensemble(plugins.load("objectives", "ar")) == ""
    assert no_ensemble(plugins.load("objectives", "mir")) == ""
    assert "upper bound" in no_ensemble(plugins.load("objectives", "mdlm"))
