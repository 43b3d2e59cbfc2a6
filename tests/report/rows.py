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


def hopeless():
    """Losses in which neither size nor data tell anything: chance alone."""
    losses = iter([3.64, 3.27, 3.04, 3.02, 3.81, 3.91, 3.61, 3.73, 3.54, 3.94, 3.82, 3.0])
    return [
        row(next(losses), size=str(N), N=N, U=U)
        for N in (60_000, 120_000, 230_000, 460_000)
        for U in (16_000, 32_000, 64_000)
    ]
