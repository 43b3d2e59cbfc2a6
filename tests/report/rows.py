"""Rows by hand, for what needs no record."""

from __future__ import annotations

from dcray.track.rows import Row


def row(loss, *, size="60k", N=60_000, U=16_000, recipe="ar", seed=42, kind="branch", config="a",
        epochs=16, decay=0.8, objective=None, bound=None, state="complete", **params):  # fmt: skip
    """A complete result."""
    tags = {"objective": objective or recipe, **({"bound": bound} if bound else {})}
    key = f"{size}_{U}_{recipe}_{config}_seed{seed}_{kind}"
    return Row(
        study="s", size=size, num_params=N, unique_tokens=U, recipe=recipe, num_epochs=epochs,
        weight_decay=decay, lr=0.005, tau=1.0, seed=seed, kind=kind, config_hash=config, key=key,
        state=state, val_loss=loss, val_bpb=None, device_seconds=1.0, run_id=f"run-{key}",
        started_at=0.0, reason=None, owner=None, heartbeat_at=None, params=params, metrics={},
        tags=tags,
    )  # fmt: skip
