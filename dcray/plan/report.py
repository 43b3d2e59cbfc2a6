"""A study planned in every mode, side by side, with what the figures rest on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from dcray.config.sizes import SIZES
from dcray.errors import plural
from dcray.plan.cluster_file import NodeType, total_cpus, total_gpus
from dcray.plan.estimate import TABLE, USUAL, expected_seconds, planned_vocab_size
from dcray.plan.forecast import (
    COSTLIEST,
    PUBLISHED,
    RECORD,
    Forecast,
    Recorded,
    forecast,
    placed,
    prices,
)
from dcray.plan.variants import MODES, WARM_TRUNKS, written_mode
from dcray.study.spec import CellSpec
from dcray.study.study import Study
from dcray.track.rows import Row
from dcray.types import Cell

WRITTEN = "as written"
SMALLEST = "5.5m"  # that the table's rates of a GPU were measured with
SMALL_ON_GPU = (
    f"time: a GPU does not reach the table's rate on models below {SMALLEST}; expect several times "
    "these hours, or name a --dir whose record has measured runs of them"
)
WINNER_SOURCES = {
    RECORD: "from the record",
    PUBLISHED: "as the paper printed them, not yet ours",
    COSTLIEST: "as their costliest candidate, not yet known",
}


@dataclass(frozen=True)
class Comparison:
    """The forecasts by mode, "as written" if the file asks for none of them."""

    study: str
    about: tuple[str, ...]
    by_mode: dict[str, Forecast]
    mode: str  # the one that the file asks for
    speeds: dict[str, int]  # where the expected time comes from: how many cells
    assumed_vocabularies: Mapping[str, int] = field(default_factory=dict)  # by size
    small_on_gpu: bool = False  # whether a table's rate stands for a mini size on a GPU
    nodes: tuple[NodeType, ...] = ()
    warnings: tuple[str, ...] = ()  # of the cells: what `dcray search` would say too

    @property
    def written(self) -> Forecast:
        """Return the forecast of what `dcray search` will do."""
        return self.by_mode[self.mode]

    @property
    def disk_bytes(self) -> tuple[float, float, float]:
        """Compute the bytes kept at once at most: trunk states; winners; the largest run."""
        cells = self.written.cells
        return (
            float(sum(one.forks * one.state_bytes for one in cells)),
            float(sum(one.kept_runs * one.kept_bytes for one in cells)),
            float(max(one.kept_bytes + one.state_bytes for one in cells)),
        )

    @property
    def assumptions(self) -> list[str]:
        """List what the figures rest on, each a sentence."""
        found = [
            f"time (of {plural(number, 'cell')}): from {source}"
            for source, number in self.speeds.items()
        ]
        if self.assumed_vocabularies:
            sizes = ", ".join(
                f"{ids:,} ids for {n}" for n, ids in self.assumed_vocabularies.items()
            )
            found.append(f"vocabulary: {sizes}; no corpus is at hand, --corpus names one")
        sources = list(self.written.given.values())
        found += [
            f"winners that cells start from: {sources.count(kind)} {text}"
            for kind, text in WINNER_SOURCES.items()
            if kind in sources
        ]
        if any(not one.kept_runs for one in self.written.cells):
            found.append("ensembles: their members are confirmations of the recipe they inherit")
        found += [SMALL_ON_GPU] if self.small_on_gpu else []
        found.append(
            "FLOPs are exact training FLOPs, attended pairs alone; validation, start-up and "
            "diverged or repeated runs come on top"
        )
        found.append(
            "ladder: who goes on is made up, how many is not; warm: "
            f"{WARM_TRUNKS} trunks a cell where the file does not say, the first budget in full"
        )
        found += [f"{self.study}: {' '.join(text.split())}" for text in self.about]
        return found

    @property
    def hours_on_all_nodes(self) -> float | None:
        """Compute the least hours, with all devices of the cluster file busy; None without file."""
        devices = total_gpus(self.nodes) or total_cpus(self.nodes)
        seconds = self.written.search.device_seconds + self.written.confirmations.device_seconds
        return seconds / 3600 / devices if devices else None


def compare(
    study: Study,
    wanted: Collection[Cell],
    measured: Sequence[Row] = (),
    recorded: Recorded | None = None,
    *,
    nodes: Sequence[NodeType] = (),
    vocab_size: int | None = None,
) -> Comparison:
    """Forecast the cells of `wanted` in every mode; vocab_size: the corpus's, if there is one.

    Raises ConfigError if a winner cannot be known.
    """
    with_gpus = total_gpus(nodes) > 0
    cell_specs = [cell_spec for cell_spec in study.cell_specs if cell_spec.cell in set(wanted)]
    files = {id(cell_spec.file): cell_spec.file for cell_spec in cell_specs}
    price = prices(measured, with_gpus=with_gpus)
    mode = written_mode(files.values()) or WRITTEN
    modes = {name: name for name in MODES} | ({WRITTEN: ""} if mode == WRITTEN else {})
    speeds, small = _speeds(cell_specs, measured, vocab_size, with_gpus=with_gpus)
    usual = {
        cell_spec.size: planned_vocab_size(cell_spec.base(), vocab_size) for cell_spec in cell_specs
    }
    return Comparison(
        study.name,
        tuple(dict.fromkeys(file.about for file in files.values() if file.about)),
        {
            name: forecast(study, wanted, how, price, recorded, vocab_size=vocab_size)
            for name, how in modes.items()
        },
        mode,
        speeds,
        {size: ids for size, (ids, source) in usual.items() if source == USUAL},
        small,
        tuple(nodes),
        tuple(dict.fromkeys(text for cell_spec in cell_specs for text in cell_spec.warnings())),
    )


def _speeds(
    cell_specs: Sequence[CellSpec],
    measured: Sequence[Row],
    vocab_size: int | None,
    *,
    with_gpus: bool,
) -> tuple[dict[str, int], bool]:
    """Count cells by where their time comes from; tell if a mini size takes a table's GPU rate."""
    speeds: dict[str, int] = {}
    small = False
    for cell_spec in cell_specs:
        config = placed(cell_spec.base(), with_gpus=with_gpus)
        config = config.resolved(vocab_size=planned_vocab_size(config, vocab_size)[0])
        workers = config.runtime.workers if isinstance(config.runtime.workers, int) else 1
        _, source = expected_seconds(config, config.runtime.device, workers, measured)
        speeds[source] = speeds.get(source, 0) + 1
        on_gpu = config.runtime.device == "cuda" and source == TABLE
        small = small or (on_gpu and config.shape.dim < SIZES[SMALLEST].dim)
    return speeds, small
