"""The environment that Ray, MLflow and torch find: quiet, and nothing open to strangers."""

from __future__ import annotations

import os
from pathlib import Path

from dcray.cluster.named import LOOPBACK_SWITCH

QUIET = {  # defaults only: what the user has set stays
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # a worker's report waits for the next poll
    "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "5",  # a rank that hangs does not answer to it
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
PRIVATE = {  # for a private cluster alone
    LOOPBACK_SWITCH: "0",
    "RAY_AUTH_MODE": "disabled",  # else ray.init writes ~/.ray/auth_token
    "RAY_health_check_failure_threshold": "100",  # a machine that stalls or sleeps is no dead node
    "RAY_worker_niceness": "0",  # Ray's 15 makes a step on a busy machine 1.5 times as long
}


def set_environment() -> None:
    """Set the defaults that must be there before Ray and MLflow are imported; override nothing."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    compiled = _user_cache() / "compiled"
    if os.access(next(path for path in compiled.parents if path.exists()), os.W_OK):
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled))


def _user_cache() -> Path:
    """Return a folder for recomputable files that outlives a restart; torch's default does not."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "dcray"
