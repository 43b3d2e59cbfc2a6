"""The memory estimate against peaks measured on GPUs (tests/bench/LOG.md)."""

import pytest

from dcray.config.run import RunConfig, override
from dcray.cost import memory

MEASURED = [  #     world  micro  GiB, T = 2048, dropout on, bfloat16
    ("72m", "ar", 1, 64, 28.4),
    ("72m", "mir", 1, 64, 28.5),
    ("72m", "mdlm", 1, 64, 28.4),
    ("257m", "ar", 1, 32, 38.6),
    ("257m", "mir", 1, 32, 39.2),
    ("257m", "ar", 2, 32, 37.2),
    ("664m", "ar", 1, 16, 45.2),
    ("664m", "ar", 2, 16, 41.6),
    ("1.4b", "ar", 1, 8, 53.5),
]


@pytest.mark.parametrize(("size", "objective", "world_size", "microbatch_size", "peak"), MEASURED)
def test_the_estimate_is_within_10_percent_of_measured_peaks(
    size, objective, world_size, microbatch_size, peak
):
    config = override(RunConfig(), {"size": size, "objective": objective}).resolved(
        vocab_size=50_258
    )
    found = memory(config, world_size=world_size, microbatch_size=microbatch_size, half=True)
    assert found.total / 2**30 == pytest.approx(peak, rel=0.1)
