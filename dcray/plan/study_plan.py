"""The plan of a study beside a record and a cluster file: what `dcray plan` shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dcray.plan.cluster_file import read_nodes, refuse_unplaceable, total_gpus
from dcray.plan.forecast import placed
from dcray.plan.history import results_on_record, winners_on_record
from dcray.plan.report import Comparison, compare
from dcray.study.dependencies import refuse_unreachable
from dcray.study.spec import CellSpec
from dcray.study.study import Study


def plan_study(
    study: Study,
    cell_specs: Sequence[CellSpec],
    directory: Path,
    *,
    vocab_size: int | None = None,
    cluster: Path | None = None,
    tracking_uri: str | None = None,
    tell: Callable[[str], None] = lambda sentence: None,
) -> Comparison:
    """Plan these cells of a study in every mode, with rates and winners of the record.

    vocab_size: the corpus's, if there is one. cluster: a cluster file whose nodes are counted.
    tell: is given a sentence for each study of the record that is left out.

    Raises ConfigError for a run that no node of the cluster file could hold, and for a winner that
    can never be known.
    """
    nodes = read_nodes(cluster) if cluster else []
    if cluster:
        gpus = total_gpus(nodes) > 0
        configs = [placed(cell_spec.base(), with_gpus=gpus) for cell_spec in cell_specs]
        refuse_unplaceable(nodes, configs, cluster)
    rows, left_out = results_on_record(directory, tracking_uri)
    for reason in left_out:
        tell(f"left out: {reason}")
    winners = winners_on_record(directory, tracking_uri, rows)
    refuse_unreachable(
        study, cell_specs, lambda name: {one for one in winners if one.study == name}
    )
    cells = [cell_spec.cell for cell_spec in cell_specs]
    return compare(study, cells, rows, winners, nodes=nodes, vocab_size=vocab_size)
