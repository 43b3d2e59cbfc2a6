"""Ensembles among the cells of an analysis: one loss of fresh seeds, no pair, no floor, a table."""

from dataclasses import replace

import pytest

from dcray.fit.ensemble import EnsembleLoss
from dcray.fit.table.reader import read_table
from dcray.report.analysis import Asked, analyze
from dcray.report.basis import choose
from dcray.report.data import as_dict, cells_csvs
from dcray.report.floors import floors_of
from dcray.report.page import cost
from dcray.report.tables.ensembles import ensembles
from dcray.report.tables.study import cells, family
from tests.report.rows import row

LOSSES = EnsembleLoss((3.25, 3.15, 3.1), 3.0, 2.9, 3.1)
AR = [
    row(2.90, config="b", decay=0.8),
    row(3.00, config="a", decay=1.6),
    *(row(3.2 + seed / 100, config="b", seed=seed, kind="confirmation") for seed in (4, 5, 6)),
]


def averaged(loss=3.1, config="b_4f", losses=LOSSES, **more):
    found = row(loss, recipe="both", objective="ar", config=config, kind="ensemble", decay=0.8)
    tags = {**found.tags, "ensemble": str(losses.num_members), **more}
    metrics = {"val_loss": loss, **losses.as_metrics()}
    return replace(found, tags=tags, metrics=metrics, run_id=f"run-{config}", device_seconds=3.0)


def test_its_loss_is_one_of_fresh_seeds():
    choice = choose([*AR, averaged()])
    (cell,) = choice.of("both")
    assert (cell.source, cell.loss("confirmed")) == ("confirmed", 3.1)
    assert cell.ensemble == LOSSES
    assert choice.shown("both") == "confirmed"
    assert choice.source_of("ar", "both") == "confirmed"
    assert [loss.seed for loss in choice.losses(["both"], "confirmed")] == [None]
    assert cell.winner.num_members == 3


def test_it_shares_no_seed_with_a_run():
    """The seed of the search, at which it stands on record, is that of a selected run of ar."""
    found = analyze("s", [*AR, averaged()], [], Asked())
    assert found.pairs == ()


def test_it_is_no_floor_though_its_decay_is_fixed():
    assert floors_of(choose([*AR, averaged()]), "ar") == ()
    assert family([averaged()]) is None


def test_of_several_the_marked_one_counts_else_the_newest():
    """An ensemble of more members, or of an earlier winner, is on record for good."""
    old = replace(averaged(3.0, "b_1a"), started_at=1.0)
    new = replace(averaged(3.1, "b_2b"), started_at=2.0)
    choice = choose([*AR, old, new])
    assert choice.of("both")[0].winner is new
    assert [(one.run_id, one.reason) for one in choice.left] == [
        (old.run_id, "an ensemble of other members")
    ]
    marked = replace(old, tags={**old.tags, "is_winner": "true"})
    assert choose([*AR, marked, new]).of("both")[0].winner is marked


def test_the_table_has_every_size_and_the_limit():
    found = analyze("s", [*AR, averaged()], [], Asked())
    (table,) = ensembles(found)
    assert [line[1:] for line in table.rows] == [
        ["1", 3.25, None, "+0.0000"],
        ["2", 3.15, None, "-0.1000"],
        ["3", 3.1, None, "-0.1500"],
        ["without end", 3.0, "[2.9000, 3.1000]", "-0.2500"],
    ]
    two = analyze("s", [*AR, averaged(3.15, losses=EnsembleLoss((3.25, 3.15), 3.05))], [], Asked())
    assert ensembles(two)[0].rows[-1][3] is None
    assert ensembles(analyze("s", AR, [], Asked())) == []


def test_in_the_table_of_cells_its_seeds_are_its_members():
    found = analyze("s", [*AR, averaged()], [], Asked())
    (line,) = [one for one in cells(found)[0].rows if one[0].endswith("both")]
    searched, fresh, difference, seeds, trials = line[-6:-1]
    assert (searched, fresh, difference, seeds, trials) == (None, 3.1, None, 3, 1)


def test_in_the_files_it_has_no_seed_and_fit_reads_the_same_losses(tmp_path):
    found = analyze("s", [*AR, averaged()], [], Asked())
    path = tmp_path / "cells.csv"
    path.write_text(cells_csvs(found)["cells.csv"])
    read = read_table(path).rows
    assert [(one.recipe, one.seed, one.val_loss) for one in read] == [
        *(("ar", seed, 3.2 + seed / 100) for seed in (4, 5, 6)),
        ("both", None, 3.1),
    ]
    (cell,) = [one for one in as_dict(found)["grid"] if one["recipe"] == "both"]
    assert (cell["searched"], cell["confirmed"], cell["fresh"]) == (None, 3.1, {})
    assert cell["ensemble"]["limit"] == 3.0


def test_its_members_time_is_counted_once():
    found = analyze("s", [*AR, averaged()], [], Asked())
    assert cost(found) == "Device time of all results: 5 s (ar 5 s)."
    assert averaged().all_device_seconds == pytest.approx(3.0)
