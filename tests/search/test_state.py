"""A whole study played without Ray: one table, whatever the order, concurrency, kills and edits."""

import copy
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcray.config.run import RunConfig, override
from dcray.search.candidates import warm_points
from dcray.search.cell_summary import cell_line
from dcray.search.specs import Fingerprint, plain_run
from dcray.search.state import GivenWinners
from dcray.study.axes import parse_space
from dcray.study.space import build_space
from dcray.types import Cell, RunResult
from tests.search.player import MINI, bowl, on_record, play, state_of, study_of, table


def changed(path: str, value, base=MINI):
    """The study with one entry changed: "recipes.ar.search.sampler"."""
    new = copy.deepcopy(base)
    node = new
    *parents, leaf = path.split(".")
    for part in parents:
        node = node[part]
    node[leaf] = value
    return new


GP = changed(
    "recipes.ar.search",
    {"sampler": "gp", "trunks": 6, "generation": 2, "warm_start": "budget", "warm_trunks": 4},
)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 40), st.floats(0, 0.3))
def test_one_table_whatever_happens(seed, concurrency, kill, diverge):
    def loss(spec):
        return bowl(spec, seed, diverge)

    study = study_of(MINI)
    alone = state_of(study)
    started = play(alone, loss)
    assert len({r.key for r in started}) == len(started)  # none twice
    killed = state_of(study)
    order = random.Random(seed)
    play(killed, loss, concurrency=concurrency, order=order, stop_after=kill)
    before = on_record(killed)
    again = state_of(study, copy.deepcopy(before))
    rest = play(again, loss, concurrency=concurrency, order=order)
    assert table(again) == table(alone)
    assert not any(r.key in before.get(r.key.cell, {}) for r in rest)
    for line in (cell_line(again, cell) for cell in again.searches):
        if line.state != "waiting":
            assert line.left == 0
            assert line.planned == sum(line.counts.values())


@pytest.mark.parametrize("seed", range(3))
def test_generations_give_one_table_too(seed):
    study = study_of(GP)
    alone, other = state_of(study), state_of(study)
    play(alone, lambda r: bowl(r, seed, 0.1))
    killed = state_of(study)
    play(killed, lambda r: bowl(r, seed, 0.1), concurrency=3, stop_after=15)
    play(other, lambda r: bowl(r, seed, 0.1), concurrency=5, order=random.Random(seed))
    again = state_of(study, on_record(killed))
    play(again, lambda r: bowl(r, seed, 0.1), concurrency=2, order=random.Random(seed + 1))
    assert table(alone) == table(other) == table(again)
    for cell in alone.searches:
        if cell.recipe == "ar":
            warm = cell.unique_tokens > 8_000
            losses = {key for key in alone.known[cell] if key.seed == 42}
            assert (4 if warm else 6) <= len(losses) <= (12 if warm else 18)


def test_two_recipes_of_one_configuration_are_two_cells():
    """What became of the one's run is not what became of the other's."""
    recipe = {"objective": "ar", "base": {"num_epochs": 4}}
    table = {**MINI, "sizes": ["60k"], "budgets": ["8k"], "recipes": {"ar": recipe, "weak": recipe}}
    state = state_of(study_of(table))
    (one,), (other,) = state.ready()
    assert one.key.config_hash == other.key.config_hash
    state.start((one,))
    assert state.ready() == [(other,)]
    state.start((other,))
    state.apply(one.ended("failed", device_seconds=5.0))
    state.apply(other.ended("complete", 3.0, device_seconds=7.0))
    first, second = (cell_line(state, spec.key.cell) for spec in (one, other))
    assert (first.counts["failed"], first.counts["finished"]) == (1, 0)
    assert (second.counts["failed"], second.counts["finished"]) == (0, 1)
    assert (first.device_seconds, second.device_seconds) == (5.0, 7.0)
    assert len(state.ended) == 2


def test_the_dearest_ready_segment_comes_first_and_cells_wait_for_winners():
    state = state_of(study_of(MINI))
    first = state.ready()[0][0]
    assert first.key.cell == Cell("toy", "119k", 16_000, "ar")
    flops = [sum(r.flops for r in chain) for chain in state.ready()]
    assert flops == sorted(flops, reverse=True)
    line = cell_line(state, Cell("toy", "60k", 8_000, "mir"))
    assert (line.state, line.note) == ("waiting", "waits for 60k 8k ar")


def test_mir_takes_its_parents_winner_with_its_warm_up():
    state = state_of(study_of(MINI))
    play(state)
    for size in ("60k", "119k"):
        parent = state.cell_state(Cell("toy", size, 8_000, "ar")).winner.config
        child = state.cell_state(Cell("toy", size, 8_000, "mir")).winner.config
        assert child.optim == parent.optim
        assert child.num_epochs == parent.num_epochs
        assert child.schedule == parent.schedule
        assert child.objective.name == "mir"


def test_a_recipe_of_another_optimizer_takes_lr_and_decay_and_searches_its_options():
    muon = {
        "optimizer": "muon",
        "inherit": "ar",
        "space": [{"optimizer.momentum": [0.9, 0.95]}],
    }
    state = state_of(study_of(changed("recipes.muon", muon)))
    play(state)
    parent = state.cell_state(Cell("toy", "60k", 8_000, "ar")).winner
    child = state.cell_state(Cell("toy", "60k", 8_000, "muon")).winner
    assert parent.config.optimizer.name == "adamw"
    assert child.config.optimizer.name == "muon"
    assert child.config.optim == parent.config.optim
    assert child.config.optimizer.build().momentum in (0.9, 0.95)
    line = cell_line(state, Cell("toy", "60k", 8_000, "muon"))
    assert line.counts["finished"] == 2  # one run for each momentum


def test_the_base_names_an_optimizer_for_every_recipe_that_names_none():
    table = changed("base", {**MINI["base"], "optimizer": "muon", "optimizer.ns_steps": 4})
    table["recipes"] |= {"plain": {"optimizer": "adamw"}, "same": {"optimizer": "muon"}}
    found = {
        one.cell.recipe: one.base().to_dict()["optimizer"] for one in study_of(table).cell_specs
    }
    assert found["plain"] == {"name": "adamw"}
    for recipe in ("ar", "mir", "same"):
        assert (found[recipe]["name"], found[recipe]["ns_steps"]) == ("muon", 4)


def test_a_diffusion_cell_takes_the_weight_decay_and_not_tau():
    mdlm = {
        "objective": "mdlm",
        "inherit": "ar",
        "base": {"optim.lr": 2e-4, "num_epochs": 5, "batch_size": 16, "schedule.kind": "cosine"},
    }
    state = state_of(study_of(changed("recipes.mdlm", mdlm)))
    play(state)
    parent = state.cell_state(Cell("toy", "60k", 16_000, "ar")).winner.config
    child = state.cell_state(Cell("toy", "60k", 16_000, "mdlm")).winner.config
    assert child.optim.weight_decay == parent.optim.weight_decay
    assert (child.optim.lr, child.num_epochs, child.batch_size) == (2e-4, 5, 16)
    assert child.schedule.warmup_steps == max(1, round(0.01 * child.num_steps))
    bounds = {cell.recipe: cell_line(state, cell).bound for cell in state.searches}
    assert bounds == {"ar": "", "mir": "", "mdlm": "upper bound"}


def test_the_winner_is_confirmed_with_fresh_seeds_and_stays_the_winner():
    state = state_of(study_of(changed("recipes.ar.confirm_seeds", [1, 2])))

    def loss(spec):
        return bowl(spec) - (1 if spec.key.kind == "confirmation" else 0)

    started = play(state, loss)
    cell = Cell("toy", "60k", 8_000, "ar")
    winner = state.cell_state(cell).winner
    fresh = [r for r in started if r.key.cell == cell and r.key.kind == "confirmation"]
    assert sorted(r.config.seed for r in fresh) == [1, 2]
    assert {r.key.config_hash for r in fresh} == {winner.result.key.config_hash}
    assert winner.result.val_loss == min(
        bowl(r) for r in started if r.key.cell == cell and r.key.kind == "branch"
    )


def test_a_budget_more_in_the_file_trains_that_budget_alone():
    small = state_of(study_of(MINI))
    play(small)
    wider = state_of(study_of(changed("budgets", ["8k", "16k", "32k"])), on_record(small))
    started = play(wider, concurrency=3)
    assert {r.key.cell.unique_tokens for r in started} == {32_000}
    assert all(
        cell_line(wider, cell).counts["answered"] > 0
        for cell in wider.searches
        if cell.unique_tokens < 32_000
    )


def test_a_cell_that_was_interrupted_shows_all_of_its_best_result():
    """A MIR cell has results, its AR cell has lost some: it waits, and its line is whole."""
    state = state_of(study_of(MINI))
    play(state)
    mir = Cell("toy", "60k", 8_000, "mir")
    winner = state.cell_state(mir).winner.config
    again = state_of(study_of(MINI), {mir: on_record(state)[mir]})
    line = cell_line(again, mir)
    assert line.state == "waiting"
    assert (line.num_epochs, line.lr) == (winner.num_epochs, winner.optim.lr)
    assert line.weight_decay == pytest.approx(winner.optim.weight_decay, rel=5e-3)  # 3 digits


def test_a_winner_that_is_not_wished_for_is_read_from_the_record_once():
    """Where a cell stands is asked after every result; a server is asked for this but once."""
    table = {**MINI, "sizes": ["60k"], "budgets": ["8k"]}
    study, asked = study_of(table), []
    fingerprint = Fingerprint(512, "corpus")
    other = plain_run(study.cell_specs[0].base(), study.cell_specs[0].cell, fingerprint)

    def load(run_id):
        asked.append(run_id)
        return other.config

    cell = study.cell_specs[0].cell
    state = state_of(
        study, {cell: {other.key: RunResult(other.key, "complete", 0.5, 16, run_id="theirs")}}
    )
    state.searches[cell].load = load
    play(state)
    assert state.cell_state(cell).winner.config == other.config
    assert asked == ["theirs"]


def test_a_longer_longest_run_is_a_new_configuration():
    """Its warm-up is longer: nothing is answered, nothing becomes invalid."""
    short = state_of(study_of(MINI))
    play(short)
    longer = changed("recipes.ar.space", [{**MINI["recipes"]["ar"]["space"][0],
                                           "num_epochs": [8, 16, 64]}])  # fmt: skip
    state = state_of(study_of(longer), on_record(short))
    started = play(state)
    branches = [r for r in started if r.key.kind == "branch"]
    assert branches
    assert not any(r.key in short.known[r.key.cell] for r in branches)


def test_plain_runs_are_answered_by_branches_of_the_same_configuration():
    branched = state_of(study_of(MINI))
    play(branched)
    search = {**MINI["recipes"]["ar"]["search"], "branching": False}
    apart = state_of(study_of(changed("recipes.ar.search", search)), on_record(branched))
    assert play(apart) == []
    fresh = state_of(study_of(changed("recipes.ar.search", search)))
    play(fresh)
    assert table(fresh) == table(branched)


def test_winners_of_other_budgets_make_a_cross_product_and_wait():
    axis = {"winners": ["8k", "16k"]}
    other = changed("budgets", ["12k"])
    other["recipes"] = {
        "ar": {"objective": "ar", "space": [{"num_epochs": axis, "weight_decay": axis, "lr": axis}]}
    }
    state = state_of(study_of(MINI, other))
    cell = Cell("toy", "60k", 12_000, "ar")
    assert cell_line(state, cell).note == "waits for 60k 8k ar and 60k 16k ar"
    play(state)
    parents = [state.cell_state(Cell("toy", "60k", u, "ar")).winner.config for u in (8_000, 16_000)]
    names = {(r.config.optim.lr, r.config.optim.weight_decay, r.config.num_epochs)
             for r in state.cell_state(cell).planned}  # fmt: skip
    assert names == {
        (a.optim.lr, b.optim.weight_decay, c.num_epochs)
        for a in parents
        for b in parents
        for c in parents
    }


def test_a_warm_start_passes_over_a_cell_that_itself_waits_for_larger_budgets():
    """8k, 12k = the winners of 8k and 16k, 16k warm: its neighbor is 8k, or both wait for ever."""
    warm = {
        "objective": "ar",
        "space": MINI["recipes"]["ar"]["space"],
        "search": {"warm_start": "budget", "warm_trunks": 4},
    }
    own = copy.deepcopy(MINI) | {"recipes": {"ar": warm}}
    between = changed("budgets", ["12k"])
    axis = {"winners": ["8k", "16k"]}
    between["recipes"] = {"ar": {"space": [{"num_epochs": axis, "lr": axis}], "search": {}}}
    study = study_of(own, between)
    cell_specs = {cell_spec.cell: cell_spec for cell_spec in study.cell_specs}
    large, small = (Cell("toy", "60k", u, "ar") for u in (16_000, 8_000))
    assert cell_specs[large].needs == [small]


def test_a_cell_whose_parent_has_no_winner_says_so():
    state = state_of(study_of(MINI))
    play(state, lambda spec: float("inf"))
    line = cell_line(state, Cell("toy", "60k", 8_000, "mir"))
    assert line.note == "waits for 60k 8k ar, which has no winner"
    assert cell_line(state, Cell("toy", "60k", 8_000, "ar")).state == "no winner"
    assert state.finished()


def test_a_parent_in_another_study_is_asked_of_the_record():
    table_ = {**MINI, "study": "child"}
    table_["recipes"] = {"ar": {"inherit": "toy:ar"}}
    study = study_of(table_)
    assert state_of(study).finished()
    base = study.cell_specs[0].base()
    config = override(base, {"optim.lr": 7e-3, "num_epochs": 3}).resolved(vocab_size=512)
    parents = {
        Cell("toy", w.cell.size, w.cell.unique_tokens, "ar"): config for w in study.cell_specs
    }
    state = state_of(study, winners=parents)
    started = play(state)
    assert {(r.config.optim.lr, r.config.num_epochs) for r in started} == {(7e-3, 3)}


def test_a_neighbor_that_another_job_improves_is_started_from_anew():
    study = study_of({**GP, "sizes": ["60k"]})
    small, large = (Cell("toy", "60k", tokens, "ar") for tokens in (8_000, 16_000))
    cell_specs = [cell_spec for cell_spec in study.cell_specs if cell_spec.cell == large]
    base = study.cell_specs[0].base()
    first, better = (
        override(base, {"optim.lr": lr, "optim.weight_decay": 1.0}).resolved(vocab_size=512)
        for lr in (1e-3, 1e-2)
    )
    state = state_of(study, winners={small: first}, cell_specs=cell_specs)
    before = state.ready()
    state.others = GivenWinners({small: better})
    state._states.clear()
    assert state.ready() != before
    fresh = state_of(study, winners={small: better}, cell_specs=cell_specs)
    assert state.ready() == fresh.ready()


def test_a_space_that_is_used_up_ends_the_search():
    """30 proposals in a space of 6: six configurations, none twice."""
    space = [{"num_epochs": [4], "lr": [1e-3, 3e-3, 1e-2], "tau": [0.5, 1]}]
    recipe = {"space": space, "search": {"sampler": "tpe", "trunks": 30}}
    state = state_of(study_of({**MINI, "recipes": {"ar": recipe}}))
    started = play(state, concurrency=2)
    assert len(started) == len({r.key for r in started}) == 6 * 4
    assert all(cell_line(state, cell).state == "done" for cell in state.searches)


@pytest.mark.parametrize("generation", [1, 2, 3])
def test_points_that_round_to_one_configuration_do_not_end_the_search(generation):
    """100 taus and 14 weight decays of 3 digits: each of 12 proposals is another point."""
    space = [{"num_epochs": [4], "lr": [1e-2], "tau": {"low": 0.9, "high": 1.0}}]
    search = {"sampler": "gp", "trunks": 12, "generation": generation}
    table = {**MINI, "sizes": ["60k"], "budgets": ["8k"]}
    state = state_of(study_of({**table, "recipes": {"ar": {"space": space, "search": search}}}))
    started = play(state)
    (search,) = state.searches.values()
    proposed = [point for found in search._proposals.values() for point in found]
    assert len(set(proposed)) == len(proposed) == 12
    decays = [one.config.optim.weight_decay for one in started]
    assert len(set(decays)) == len(decays) == state.cell_state(search.cell).num_planned
    assert state.cell_state(search.cell).done


def test_a_lost_process_is_tried_again_three_times_without_progress():
    state = state_of(study_of(MINI))
    chain = state.ready()[0]
    for attempt in range(4):
        state.start(chain)
        state.apply(chain[0].ended("lost", step=0))
        again = any(c[0].key == chain[0].key for c in state.ready())
        assert again == (attempt < 3)
    other = state.ready()[0]
    for step in (1, 2, 3, 4, 5, 6):  # each time it got further
        state.start(other)
        state.apply(other[0].ended("lost", step=step))
        assert any(c[0].key == other[0].key for c in state.ready())


def test_a_run_lost_beside_others_on_a_gpu_is_tried_again_alone():
    state = state_of(study_of(MINI))
    chain = state.ready()[0]
    shared = chain[0].config.runtime.model_copy(update={"device": "cuda", "gpu_share": 0.25})
    state.start(chain)
    state.apply(replace(chain[0], place=shared).ended("lost"))
    again = next(other for other in state.ready() if other[0].key == chain[0].key)
    assert again[0].config.runtime.gpu_share == 1.0
    assert again[0].config.identity("x") == chain[0].config.identity("x")
    others = [spec for other in state.ready() for spec in other if spec.key != chain[0].key]
    assert all(spec.config.runtime == chain[0].config.runtime for spec in others)


def test_a_run_without_memory_is_tried_again_in_smaller_pieces_down_to_one():
    """The batch stays, so the identity does: 8 sequences as 8, 4, 2 and 1 at a time."""
    state = state_of(study_of(MINI))
    chain, tried = state.ready()[0], []
    while again := next((c for c in state.ready() if c[0].key == chain[0].key), None):
        micro = again[0].config.runtime.microbatch_size or 8
        place = again[0].config.runtime.model_copy(update={"microbatch_size": micro})
        tried.append(micro)
        assert again[0].config.identity("x") == chain[0].config.identity("x")
        state.start(again)
        state.apply(replace(again[0], place=place).ended("lost", out_of_memory=True))
    assert tried == [8, 4, 2, 1]
    assert state.ended[chain[0].key].state == "lost"


def test_what_cannot_be_afforded_is_not_ready_and_ends_the_command():
    state = state_of(study_of(MINI))
    left = [5]

    def afford(spec, running):
        return left[0] > 0

    state.afford = afford
    while state.ready():
        chain = state.ready()[0]
        state.start(chain)
        left[0] -= 1
        state.apply(chain[0].ended("complete", bowl(chain[0])))
    assert state.finished()
    assert state.unaffordable
    assert len(state.ended) == 5


@pytest.mark.parametrize("axis", ["tau", "weight_decay"])
def test_a_warm_start_is_the_neighbors_point_and_a_cross_around_it(axis):
    """By tau: at twice the tokens the same tau is half the weight decay."""
    base = override(RunConfig(), {"data.unique_tokens": 128_001, "data.seq_len": 128,
                                  "batch_size": 8})  # fmt: skip
    optim = {"optim.lr": 4e-3, "optim.weight_decay": 1024 / (4e-3 * 64_000)}  # tau 1
    neighbor = override(base, {"data.unique_tokens": 64_001, **optim})
    ranges = {"lr": {"low": 1e-4, "high": 1.0}, axis: {"low": 1e-4, "high": 100.0}}
    where = build_space(parse_space([{"num_epochs": [4], **ranges}], "space"), 4)
    cross = [(4e-3, 1.0), (2e-3, 1.0), (8e-3, 1.0), (4e-3, 2.0), (4e-3, 0.5)]
    found = warm_points(where, neighbor, base)
    assert [cell_spec["lr"] for cell_spec in found] == pytest.approx([lr for lr, _ in cross])
    expected = [tau if axis == "tau" else 1024 / (lr * tau * 128_000) for lr, tau in cross]
    assert [target[axis] for target in found] == pytest.approx(expected, rel=5e-3)
    only = build_space(parse_space([{"num_epochs": [4], "lr": [4e-3]}], "space"), 4)
    assert [target["lr"] for target in warm_points(only, neighbor, base)] == [
        4e-3,
        2e-3,
        8e-3,
    ]
