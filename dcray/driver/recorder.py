"""The only writer of results to the record, from what runs report, and their reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dcray import plugins
from dcray.config.counts import count_label
from dcray.config.plugged import PLUGGED, Plugged
from dcray.config.run import RunConfig
from dcray.config.sizes import num_non_embedding_params, num_params
from dcray.corpus.manifest import Corpus
from dcray.driver.resources import Machine
from dcray.track.rows import Row, plugged, sources_of
from dcray.track.run import Result
from dcray.track.store import Store
from dcray.types import Event, RunKey, RunResult, RunSpec


class RunRecorder:
    """Opens a result when its run starts, logs the run's points, and ends it in the run's state."""

    def __init__(self, store: Store, corpus: Corpus, machine: Machine) -> None:
        self.store, self.machine = store, machine
        self.manifest = corpus.manifest.model_dump(mode="json")
        self.corpus = {"corpus": corpus.path.absolute()}  # where `dcray eval` finds the tokenizer
        self.open: dict[RunKey, Result] = {}

    def write(self, event: Event) -> Event:
        """Write an event to the record; return it, a result with the id of its run."""
        if isinstance(event, RunResult):
            return self._end(event)
        result = self._result(event.spec)
        if event.report is not None:
            points = list(event.report.points)
            if points and event.report.tokens_per_second:
                rate = {"perf/tokens_per_second": event.report.tokens_per_second}
                points.append(points[-1]._replace(values=rate))
            result.log(points)
        return event

    def _result(self, spec: RunSpec) -> Result:
        """Return the open result of a run; begin it if there is none yet."""
        if spec.key not in self.open:
            self.open[spec.key] = self.store.begin(
                spec.key,
                config=spec.config.to_dict(),
                params=columns(spec.config),
                axes=spec.settings,
                tags=_tags(spec, self.machine) | self.corpus,
                manifest=self.manifest,
            )
        return self.open[spec.key]

    def _end(self, event: RunResult) -> RunResult:
        assert event.spec is not None, "it was not run by this command"
        if event.state == "dropped" and event.key not in self.open:
            return event  # it never began
        result = self._result(event.spec)
        del self.open[event.key]
        if event.device_seconds and event.state != "complete":  # else the metrics have it
            result.spent(event.device_seconds)
        if event.state == "complete":
            result.finish(event.metrics)
        elif event.state == "diverged":
            result.diverge(event.reason)
        elif event.state in ("failed", "refused"):
            result.fail(event.traceback or event.reason)
        else:
            result.interrupt(event.reason or "stopped")
        return event.on_record(result.run_id)


def recorded_results(rows: Iterable[Row]) -> Iterator[RunResult]:
    """Yield the results that need no training: complete runs, and divergences, which would repeat.

    Results of a plug-in whose source was another are left out: it is another plug-in.
    """
    sources: dict[tuple[str, str], tuple[str | None, ...]] = {}
    for row in rows:
        if (names := plugged(row)) not in sources:
            sources[names] = tuple(map(_source_here, PLUGGED.values(), names))
        if row.state in ("complete", "diverged") and sources_of(row) == sources[names]:
            yield RunResult(
                RunKey(row.cell, row.config_hash, row.seed, row.kind),
                row.state,
                row.val_loss if row.state == "complete" else None,
                num_epochs=row.num_epochs or 0,
                weight_decay=row.weight_decay,
                lr=row.lr,
                run_id=row.run_id,
                metrics=row.metrics if row.kind == "ensemble" else {},
            )


def _source_here(kind: str, name: str) -> str | None:
    """Hash the plug-in's source as it is here, None if it is dcray's own or not known here."""
    return plugins.source_hash(kind, name) if name in plugins.names(kind) else None


def columns(config: RunConfig) -> dict[str, Any]:
    """Return the flat columns that the record shows of a configuration."""
    assert config.model.vocab_size is not None
    return {
        **_named("objective", config.objective),
        **_named("optimizer", config.optimizer),
        **{f"average.{name}": value for name, value in config.average.fields().items()},
        "num_epochs": config.num_epochs,
        "weight_decay": config.optim.weight_decay,
        "lr": config.optim.lr,
        "tau": float(f"{config.tau:.6g}"),
        "batch_size": config.batch_size,
        "seq_len": config.data.seq_len,
        "order": config.data.order,
        "schedule": config.schedule.kind,
        "dropout": config.model.dropout,
        "num_params": num_params(config.shape, config.model.vocab_size),
        "num_non_embedding_params": num_non_embedding_params(config.shape),
        "train_tokens": config.train_tokens,
        "num_rows": config.data.num_rows,
        "targets_per_epoch": config.unique_tokens,
        "num_steps": config.num_steps,
    }


def _named(field: str, plugin: Plugged) -> dict[str, Any]:
    options = (plugin.model_extra or {}).items()
    return {field: plugin.name, **{f"{field}.{name}": value for name, value in options}}


def _tags(one: RunSpec, machine: Machine) -> dict[str, Any]:
    run = one.run
    if one.members:
        return _shared_tags(one) | {
            "device_type": "none",
            "world_size": 1,  # its device_seconds are of all devices of all members
            "ensemble": len(one.members),
            "members": ",".join(key.name for key in one.members),
        }
    return _shared_tags(one) | {
        "device": machine.gpu_name if run.runtime.device == "cuda" else machine.cpu_name,
        "device_type": run.runtime.device,
        "threads": run.runtime.threads,
        "world_size": run.runtime.workers,
        "gpu_share": None if run.runtime.gpu_share == 1 else run.runtime.gpu_share,
        "microbatch_size": run.runtime.microbatch_size,
        "trunk": one.trunk,
    }


def _shared_tags(one: RunSpec) -> dict[str, Any]:
    """Return what the record says of every result, trained or computed."""
    config = one.config
    return {
        "objective": config.objective.name,
        "objective_source": config.objective.source,
        "optimizer": config.optimizer.name,
        "optimizer_source": config.optimizer.source,
        "budget": count_label(one.key.cell.unique_tokens),
        "bound": config.objective.build().bound,
        "corpus_hash": one.reads,
    }
