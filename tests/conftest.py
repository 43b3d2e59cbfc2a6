"""Quiet libraries in every test."""

import logging
import os

import pytest

from dcray.cluster import set_environment

set_environment()
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _quiet_checkpoints():
    logging.getLogger("torch.distributed.checkpoint._dedup_save_plans").setLevel(logging.ERROR)
    logging.getLogger("c10d-NullHandler-dcp_logger").setLevel(logging.ERROR)
