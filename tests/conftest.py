"""Quiet libraries in every test."""

import logging
import os

import pytest

from dcray.cluster import ray_cluster, set_environment

set_environment()
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _quiet_checkpoints():
    logging.getLogger("torch.distributed.checkpoint._dedup_save_plans").setLevel(logging.ERROR)
    logging.getLogger("c10d-NullHandler-dcp_logger").setLevel(logging.ERROR)


@pytest.fixture(scope="session")
def ray_session():
    """One private Ray for all tests that need one."""
    with ray_cluster(num_cpus=2):
        yield
