"""The configuration: one door for change, every problem at once, and what makes an identity."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcray import plugins
from dcray.config.counts import count_label, parse_count
from dcray.config.run import (
    NOT_IDENTITY,
    RunConfig,
    field_names,
    later_wins,
    override,
)
from dcray.config.sections import batch_problems, rows_in
from dcray.config.sizes import SIZES
from dcray.config.toml import parse_assignments, read_toml
from dcray.errors import ConfigError

BASE = RunConfig()
PAPER_ROWS = {"data.row_stride": 2049}

# Every field: another legal value, and what else must change for it to be legal.
CHANGES = {
    "size": ("72m", {}),
    "size.dim": (2048, {}),
    "size.num_layers": (3, {}),
    "size.num_heads": (8, {}),
    "size.mlp_dim": (64, {}),
    "objective": ("mir", {}),
    "objective.name": ("mdlm", {}),
    "optimizer": ("muon", {}),
    "optimizer.name": ("muon", {}),
    "num_epochs": (3, {}),
    "batch_size": (64, {}),
    "seed": (7, {}),
    "model.vocab_size": (777, {}),
    "model.dropout": (0.25, {}),
    "model.window_pattern": ("SL", {}),
    "model.rope_base": (500.0, {}),
    "model.norm_eps": (1e-6, {}),
    "optim.lr": (3e-3, {}),
    "optim.weight_decay": (0.1, {}),
    "optim.betas": ((0.8, 0.99), {}),
    "optim.eps": (1e-7, {}),
    "optim.max_grad_norm": (0.5, {}),
    "schedule.kind": ("cosine", {}),
    "schedule.warmup_frac": (0.02, {}),
    "schedule.warmup_steps": (17, {}),
    "schedule.decay_frac": (0.2, {}),
    "schedule.min_lr_frac": (0.0, {}),
    "data.unique_tokens": (200_000, {}),
    "data.seq_len": (128, {}),
    "data.row_stride": (2049, {}),
    "data.order": ("paper", PAPER_ROWS),
    "data.paper_unit": (32, PAPER_ROWS | {"data.order": "paper"}),
    "data.val_tokens": (5_000, {}),
    "average.kind": ("ema", {}),
    "average.tau_epochs": (0.25, {"average.kind": "ema"}),
    "average.last_frac": (0.5, {"average.kind": "mean"}),
    "validation.epochs": ("end", {}),
    "validation.max_cost_frac": (0.5, {}),
    "runtime.workers": (2, {}),
    "runtime.gpu_share": (0.5, {}),
    "runtime.device": ("cpu", {}),
    "runtime.precision": ("float64", {}),
    "runtime.threads": (2, {}),
    "runtime.microbatch_size": (4, {}),
    "runtime.compile": (False, {}),
    "runtime.capture": (False, {}),
    "runtime.stream": ("pipeline", {}),
    "runtime.checkpoint_seconds": (5.0, {}),
    "runtime.hang_seconds": (20.0, {}),
    "runtime.keep_checkpoints": (3, {}),
    "runtime.report_seconds": (0.5, {}),
    "runtime.num_points": (50, {}),
}


def value_at(config: RunConfig, path: str):
    value = config
    for part in path.split("."):
        value = getattr(value, part)
    return value


def problems(changes) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        override(BASE, changes)
    return refused.value.problems


def test_every_field_of_the_tree_is_tried():
    assert sorted(CHANGES) == sorted(field_names())


@pytest.mark.parametrize("path", CHANGES)
def test_every_field_can_be_overridden_and_nothing_else_moves(path):
    value, needs = CHANGES[path]
    before = override(BASE, needs)
    after = override(before, {path: value})
    found = value_at(after, path)
    assert (found.name if path in ("objective", "optimizer") else found) == value
    assert value_at(BASE, path) != value if not path.startswith("size.") else True
    moved = {
        name for name in RunConfig.model_fields if getattr(before, name) != getattr(after, name)
    }
    assert moved == {path.split(".")[0]}


@pytest.mark.parametrize("path", CHANGES)
def test_identity_changes_with_everything_but_what_is_left_out(path):
    value, needs = CHANGES[path]
    before = override(BASE, needs)
    after = override(before, {path: value})
    section = path.split(".")[0]
    ignored = section in {*NOT_IDENTITY, "validation"} and section != "size"
    assert (before.identity("reads") == after.identity("reads")) == ignored


def test_what_resolving_writes_out_counts_once():
    """warmup_frac counts by the steps it gives; the default row stride is seq_len."""
    one = override(BASE, {"schedule.warmup_frac": 0.01}).resolved(vocab_size=512)
    steps = one.schedule.warmup_steps
    other = override(BASE, {"schedule.warmup_steps": steps, "schedule.warmup_frac": 0.5})
    assert one.identity("x") == other.resolved(vocab_size=512).identity("x")
    assert one.identity("x") != override(one, {"schedule.warmup_steps": steps + 1}).identity("x")
    stride = override(BASE, {"data.row_stride": BASE.data.seq_len})
    assert stride.identity("x") == BASE.identity("x")


KEYS = {"ar": "e85a343952a29240", "mir": "1057b57fa07beefe", "mdlm": "820aec9c723d0edc"}


@pytest.mark.parametrize("name", sorted(KEYS))
def test_the_keys_of_our_objectives_stay_as_they_are(name):
    """Another value here invalidates everybody's record: these are of dcray 0.1 as it was begun."""
    config = override(RunConfig(), {"objective": name}).resolved(vocab_size=512)
    assert config.identity("reads") == KEYS[name]


def test_the_key_of_muon_stays_as_it_is():
    config = override(RunConfig(), {"optimizer": "muon"}).resolved(vocab_size=512)
    assert config.identity("reads") == "b465df535076efc4"


def test_what_is_left_out_of_an_identity():
    assert set(NOT_IDENTITY) == {"seed", "runtime", "size"}
    assert BASE.identity("reads") != BASE.identity("other tokens")
    assert len(BASE.identity("reads")) == 16


def test_a_size_and_its_shape_written_out_are_one_configuration():
    named = override(BASE, {"size": "72m"})
    written = override(BASE, {"size": SIZES["72m"]._asdict()})
    assert named.identity("x") == written.identity("x")
    assert written.size_name == "72m"
    other = override(written, {"size.mlp_dim": 64})
    assert other.size_name == "dim512-layers6-heads8-mlp64"


@pytest.mark.parametrize("name", plugins.names("objectives"))
def test_validation_epochs_count_where_the_best_is_kept(name):
    config = override(BASE, {"objective": name})
    other = override(config, {"validation.epochs": 2})
    keeps = plugins.load("objectives", name).keeps_best
    assert (config.identity("x") != other.identity("x")) == keeps


@pytest.mark.parametrize("name", plugins.names("objectives"))
def test_every_option_of_an_objective_counts(name):
    config = override(BASE, {"objective": name})
    options = plugins.load("objectives", name).options()
    assert config.to_dict()["objective"] == {"name": name, **options}  # defaults are written out
    tried = {"weight": 0.7, "mask_ratio_min": 0.1, "mask_ratio_max": 0.9, "mixed": True,
             "mask_from": 8, "eps": 0.01, "draws": 7, "final_draws": 9}  # fmt: skip
    for option in options:
        other = override(config, {f"objective.{option}": tried[option]})
        assert other.identity("x") != config.identity("x")


def test_every_option_of_muon_counts():
    muon = override(BASE, {"optimizer": "muon"})
    options = plugins.load("optimizers", "muon").options()
    assert muon.to_dict()["optimizer"] == {"name": "muon", **options}
    tried = {"momentum": 0.9, "nesterov": False, "ns_steps": 6, "adjust_lr_fn": "original"}
    assert tried.keys() == options.keys()
    others = [override(muon, {f"optimizer.{name}": value}) for name, value in tried.items()]
    assert len({one.identity("x") for one in (BASE, muon, *others)}) == 6


def test_a_record_from_before_there_were_optimizers_is_of_adamw():
    """Such a configuration has no such table, and AdamW is not named in an identity."""
    old = {name: value for name, value in BASE.to_dict().items() if name != "optimizer"}
    assert RunConfig.model_validate(old) == BASE
    assert BASE.to_dict()["optimizer"] == {"name": "adamw"}
    assert "optimizer" not in BASE.identity_fields()


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "ar"),
        ({"objective": "mir"}, "mir"),
        ({"optimizer": "muon"}, "ar-muon"),
        ({"objective": "mir", "optimizer": "muon"}, "mir-muon"),
    ],
)
def test_a_recipe_that_nobody_names_is_called_by_its_plugins(changes, name):
    assert override(BASE, changes).recipe_name == name


def test_all_problems_at_once():
    found = problems({"optim.lr": "fast", "optim.wieght_decay": 1, "num_epochs": 0, "size": "72n"})
    assert len(found) == 4
    assert '"optim.wieght_decay" is not a field (did you mean "optim.weight_decay"?)' in found
    assert 'no size is called "72n" (did you mean "72m"?)' in found
    assert "num_epochs must be at least 1, got 0" in found
    assert any(
        text.startswith("optim.lr must be ") and text.endswith("got 'fast'") for text in found
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objective": "mri"}, 'no objective is called "mri" (did you mean "mir"?)'),
        ({"objective": 3}, "objective must be a name, or a table with one, got 3"),
        ({"objective": "mir", "objective.wieght": 1}, 'option of mir (did you mean "weight"?)'),
        ({"objective.weight": 1}, '"objective.weight" is not an option of ar'),
        ({"objective": {"name": "mir", "weight": -1}}, "objective.weight must be at least 0"),
        ({"objective": {"name": "mir", "mask_ratio_min": 0.9}}, "must be <= objective.mask_ratio"),
        ({"optimizer": "moun"}, 'no optimizer is called "moun" (did you mean "muon"?)'),
        ({"optimizer": 3}, "optimizer must be a name, or a table with one, got 3"),
        ({"optimizer": "muon", "optimizer.momentun": 1}, 'of muon (did you mean "momentum"?)'),
        ({"optimizer": "muon", "optimizer.momentum": 1}, "optimizer.momentum must be below 1, got"),
        ({"optimizer.momentum": 0.9}, '"optimizer.momentum" is not an option of adamw'),
        ({"optimizer.lr": 0.9}, '"optimizer.lr" is not an option of adamw (did you mean "optim.lr'),
        ({"optimizer": "muon", "optimizer.adjust_lr_fn": "none"},
         "optimizer.adjust_lr_fn must be one of 'match_rms_adamw' or 'original', got 'none'"),
        ({"size": 226}, "size must be "),
        ({"size": 226, "size.dim": 3}, "size must be "),
        ({"size": "226m", "size.dim": 16}, 'no size is called "226m" (did you mean "226k"?)'),
        ({"size.dmi": 16}, '"size.dmi" is not a field (did you mean "size.dim"?)'),
        ({"size.dim": 15}, "size.dim must be an even multiple of size.num_heads"),
        ({"optim": 3}, '"optim" is not a field'),
        ({"optim.lr.x": 3}, '"optim.lr.x" is not a field'),
        ({"data": {"seq_lne": 3}}, '"data.seq_lne" is not a field (did you mean "data.seq_len"?)'),
        ({"optim.lr": math.inf}, "optim.lr must be a finite number, got inf"),
        ({"optim.eps": math.inf}, "optim.eps must be a finite number, got inf"),
        ({"runtime.checkpoint_seconds": math.nan}, "must be a finite number, got nan"),
        ({"batch_size": True}, "batch_size must be no true or false, got True"),
        ({"runtime.workers": 0}, "runtime.workers must be at least 1; or must be 'auto', got 0"),
        ({"validation.epochs": [3, 1]}, "validation.epochs must rise, got [3, 1]"),
        ({"schedule.warmup_frac": 0.95}, "must be <= 1, got 0.95 + 0.1"),
        ({"average.kind": "emma"}, "average.kind must be one of 'none', 'ema' or 'mean', got"),
        ({"average": "emma"}, "average.kind must be one of 'none', 'ema' or 'mean', got"),
        ({"average.tau_epochs": 1}, 'only with average.kind = "ema", got "none": set that kind,'),
        ({"average": {"kind": "ema", "last_frac": 0.2}}, 'average.kind = "mean", got "ema": set'),
        ({"average": {"kind": "ema", "tau_epochs": 0}}, "average.tau_epochs must be above 0, got"),
        ({"average": {"kind": "mean", "last_frac": 0}}, "average.last_frac must be above 0, got 0"),
        ({"average": {"kind": "mean", "last_frac": 1.5}}, "average.last_frac must be at most 1,"),
        ({"data.order": "paper"}, "set data.row_stride = 2049, got None"),
        ({"data.paper_unit": 3}, 'only under data.order = "paper"'),
        ({"data.row_stride": 7}, "data.row_stride must be data.seq_len (2048) or one more, got 7"),
        ({"data.unique_tokens": "2k"}, "one row of data.seq_len + 1 = 2049 tokens, got 2000"),
        ({"data.unique_tokens": "5x"}, 'a count such as 64000, "64k", "100m" or "1.5b", got'),
    ],
)  # fmt: skip
def test_one_problem_is_one_sentence(changes, said):
    (found,) = problems(changes)
    assert said in found


def test_a_legal_pair_of_changes_in_any_order():
    """Each alone is illegal on the base: the tree is validated after all of them."""
    pair = {"data.order": "paper", "data.row_stride": 129, "data.seq_len": 128}
    expected = override(BASE, pair)
    assert expected.data.stride == 129
    assert override(BASE, dict(reversed(pair.items()))) == expected
    assert problems({"data.row_stride": 129})


def test_an_objective_by_name_or_table_or_option():
    by_table = override(BASE, {"objective": {"name": "mir", "weight": 0.7}})
    assert override(BASE, {"objective.weight": 0.7, "objective": "mir"}) == by_table
    assert override(BASE, {"objective.weight": 0.7, "objective.name": "mir"}) == by_table
    assert override(BASE, {"objective": {"weight": 0.7, "name": "mir"}}) == by_table
    assert override(by_table, {"objective": "mir"}) == by_table  # the same objective keeps them
    assert override(by_table, {"objective.mask_from": 8}).to_dict()["objective"]["weight"] == 0.7


def test_options_of_another_objective_do_not_carry_over():
    mir = override(BASE, {"objective": {"name": "mir", "weight": 0.7}})
    assert override(mir, {"objective": "ar"}) == BASE
    there_and_back = override(override(mir, {"objective": "mdlm"}), {"objective": "mir"})
    assert there_and_back == override(BASE, {"objective": "mir"})
    muon = override(BASE, {"optimizer": {"name": "muon", "momentum": 0.7}})
    assert override(muon, {"optimizer": "adamw"}) == BASE
    assert override(muon, {"optimizer": "muon", "objective": "mir"}).optimizer == muon.optimizer


def test_a_size_by_name_table_or_one_number():
    table = {"dim": 32, "num_layers": 2, "num_heads": 2, "mlp_dim": 96}
    assert override(BASE, {"size": table}).shape == SIZES["60k"]
    assert override(BASE, {"size": "60k"}).shape == SIZES["60k"]
    assert override(BASE, {"size.mlp_dim": 64, "size": "60k"}).shape == (32, 2, 2, 64)
    assert (
        override(BASE, {f"size.{name}": value for name, value in table.items()}).shape
        == (SIZES["60k"])
    )


def test_a_configuration_is_a_value():
    tuned = override(BASE, {"optim.lr": 3e-3})
    assert (BASE.optim.lr, tuned.optim.lr) == (1e-3, 3e-3)
    assert override(BASE, {}) == BASE
    with pytest.raises(ValueError, match="frozen"):
        BASE.optim.lr = 3.0


@pytest.mark.parametrize("path", CHANGES)
def test_plain_types_and_back(path):
    value, needs = CHANGES[path]
    config = override(BASE, needs | {path: value}).resolved(vocab_size=500)
    assert RunConfig.model_validate(json.loads(json.dumps(config.to_dict()))) == config


def test_toml_files_and_assignments(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'size = "60k"\nobjective = { name = "mir", weight = 0.7 }\n[optim]\nlr = 1e-3\n'
    )
    assert override(BASE, read_toml(path)).objective.build().weight == 0.7
    assert parse_assignments(["optim.lr=3e-3", "size=60k", "validation.epochs=[1, 2]"]) == {
        "optim.lr": 3e-3,
        "size": "60k",
        "validation.epochs": [1, 2],
    }
    for text in ("optim.lr", "=3"):
        with pytest.raises(ConfigError, match="an override is written field=value"):
            parse_assignments([text])
    path.write_text("[optim\nlr = 1")
    with pytest.raises(ConfigError, match=r"mine\.toml is not valid TOML: .*line 1"):
        read_toml(path)
    with pytest.raises(ConfigError, match=r"cannot read .*No such file"):
        read_toml(tmp_path / "none.toml")


def test_the_last_that_names_a_field_wins_and_the_others_stay():
    first = {"optim": {"lr": 1e-3, "eps": 1e-7}, "objective": "mir"}
    second = {"optim": {"lr": 2e-3}, "objective.weight": 0.7}
    both = override(BASE, later_wins([first, second]))
    assert (both.optim.lr, both.optim.eps) == (2e-3, 1e-7)
    assert both.objective.build().weight == 0.7
    assert override(BASE, later_wins([second, first])).optim.lr == 1e-3
    assert override(BASE, later_wins([{"optim.lr": 5e-3}, first, {"optim.lr": 4e-3}])).optim.lr == (
        4e-3
    )
    assert override(BASE, later_wins([{"objective.name": "mdlm"}, {"objective": "ar"}])) == BASE


def test_a_later_size_or_objective_replaces_what_was_said_of_an_earlier_one():
    shape = {"size": "60k", "size.mlp_dim": 64}
    assert override(BASE, later_wins([shape, {"size": "72m"}])).size_name == "72m"
    assert override(BASE, later_wins([{"size": "60k"}, {"size.mlp_dim": 64}])).shape.mlp_dim == 64
    assert override(BASE, later_wins([shape])).shape.mlp_dim == 64
    mir = {"objective": {"name": "mir", "weight": 0.7}}
    assert override(BASE, later_wins([mir, {"objective": "ar"}])) == BASE
    assert override(BASE, later_wins([mir, {"objective": "mir"}])).objective.build().weight == 0.7
    muon = {"optimizer": "muon", "optimizer.momentum": 0.7, "optim.lr": 3e-3}
    back = override(BASE, later_wins([muon, {"optimizer": "adamw"}]))
    assert back == override(BASE, {"optim.lr": 3e-3})  # "optim" is no part of "optimizer"
    both = override(BASE, later_wins([muon, mir]))
    assert (both.optimizer.build().momentum, both.objective.build().weight) == (0.7, 0.7)


def test_an_average_is_complete_and_another_kind_drops_its_field():
    """By table or by names, in one set of changes or in several that are merged."""
    assert override(BASE, {"average": "ema"}) == override(BASE, {"average.kind": "ema"})
    ema = override(BASE, {"average": {"kind": "ema", "tau_epochs": 0.25}})
    assert ema == override(BASE, {"average.tau_epochs": 0.25, "average.kind": "ema"})
    assert ema.to_dict()["average"] == {"kind": "ema", "tau_epochs": 0.25}
    assert override(BASE, {"average.kind": "ema"}).average.tau_epochs == 0.5
    assert override(BASE, {"average.kind": "mean"}).average.last_frac == 0.2
    assert override(ema, {"average.kind": "ema"}) == ema  # the same kind keeps it
    mean = override(ema, {"average.kind": "mean"})
    assert mean.to_dict()["average"] == {"kind": "mean", "last_frac": 0.2}
    written = [{"average": {"kind": "ema", "tau_epochs": 0.25}}, {"average": {"kind": "mean"}}]
    assert override(BASE, later_wins(written)) == mean
    assert override(BASE, later_wins([*written, {"average.last_frac": 0.5}])).average.last_frac == (
        0.5
    )
    assert override(ema, {"average.kind": "none"}) == BASE


def test_without_an_average_a_configuration_is_written_as_before_there_was_one():
    """Its hash too: the one of commit 994de38."""
    resolved = BASE.resolved(vocab_size=500)
    assert "average" not in resolved.to_dict()
    assert resolved.identity("x") == "32d6ef40b9335f78"


def test_an_average_longer_than_the_run_is_refused():
    config = override(BASE, {"average.kind": "ema", "average.tau_epochs": 3, "num_epochs": 3})
    assert config.resolved(vocab_size=500).average.tau_epochs == 3
    with pytest.raises(ConfigError) as said:
        override(config, {"num_epochs": 2}).resolved(vocab_size=500)
    (sentence,) = said.value.problems
    assert sentence == (
        "average.tau_epochs (3) must be at most num_epochs (2), for the average would be longer "
        "than the run: lower it, or train longer"
    )


@given(st.integers(1, 10**13))
def test_a_label_is_the_count_again(count):
    assert parse_count(count_label(count)) == count
    assert parse_count(str(count)) == parse_count(f"{count:_}") == count


@pytest.mark.parametrize(
    ("count", "label"),
    [
        (999, "999"),
        (1_001, "1.001k"),
        (64_000, "64k"),
        (64_001, "64.001k"),
        (1_000_001, "1000.001k"),
        (1_500_000, "1.5m"),
        (100_000_000, "100m"),
        (1_000_000_000, "1b"),
    ],
)
def test_labels(count, label):
    assert count_label(count) == label
    assert parse_count(label.upper()) == count


@pytest.mark.parametrize("text", ["", "k", "5x", "-3", "1.0005k", "1e3", "nan", "5 m m"])
def test_what_is_no_count(text):
    with pytest.raises(ValueError, match="must be a count"):
        parse_count(text)


@given(st.integers(1, 300), st.integers(2, 17), st.booleans())
def test_rows_by_brute_force(tokens, seq_len, apart):
    stride = seq_len + apart
    rows = [start for start in range(0, tokens, stride) if start + seq_len + 1 <= tokens]
    assert rows_in(tokens, seq_len, stride) == len(rows)
    assert rows_in(tokens, seq_len, seq_len) == max(0, (tokens - 1) // seq_len)


@given(st.integers(20, 400), st.integers(1, 9), st.integers(1, 12))
def test_steps_by_brute_force(unique_tokens, num_epochs, batch_size):
    config = override(
        BASE,
        {
            "data.unique_tokens": unique_tokens,
            "data.seq_len": 8,
            "num_epochs": num_epochs,
            "batch_size": batch_size,
        },
    )
    rows = [row for _ in range(num_epochs) for row in range((unique_tokens - 1) // 8)]
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    assert config.num_steps == len(batches)
    assert config.train_tokens == 8 * len(rows)
    assert config.unique_tokens * num_epochs == config.train_tokens


@given(st.integers(1, 64), st.integers(1, 6), st.integers(1, 6))
def test_a_batch_that_does_not_divide_names_the_nearest(batch_size, workers, micro):
    found = batch_problems(batch_size, workers, micro)
    legal = [size for size in range(1, 200) if size % (workers * micro) == 0]
    assert (not found) == (batch_size in legal)
    if found:
        below = [size for size in legal if size < batch_size][-1:]
        above = next(size for size in legal if size > batch_size)
        assert found[0].endswith("nearest: " + " or ".join(map(str, [*below, above])))


def test_documents_packed_anew_take_as_many_steps_and_are_another_run():
    """The order by rows stays the default, and adds nothing to an identity."""
    packed = override(BASE, {"data.order": "documents"})
    assert (packed.num_steps, packed.train_tokens) == (BASE.num_steps, BASE.train_tokens)
    assert packed.identity("x") != BASE.identity("x")
    assert override(packed, {"data.order": "rows"}).identity("x") == BASE.identity("x")
    (said,) = problems({"data.order": "document"})
    assert said.endswith("must be one of 'rows', 'documents' or 'paper', got 'document'")


def test_whole_units_under_the_paper_s_order():
    changes = {"data.order": "paper", "data.seq_len": 8, "data.row_stride": 9, "batch_size": 4}
    config = override(BASE, changes | {"data.unique_tokens": 9 * 10 + 3})
    assert (config.data.num_rows, config.usable_rows) == (10, 8)
    assert override(config, {"data.paper_unit": 2}).usable_rows == 10
    assert "must divide batch_size (4)" in problems(changes | {"data.paper_unit": 3})[0]


def test_the_warm_up_is_resolved_over_the_longest_epochs():
    config = override(BASE, {"num_epochs": 8})
    short, long = (config.resolved(vocab_size=500, longest_epochs=e) for e in (None, 64))
    assert short.schedule.warmup_steps == max(1, round(0.01 * config.num_steps))
    assert long.schedule.warmup_steps == round(0.01 * override(BASE, {"num_epochs": 64}).num_steps)
    assert long.num_epochs == 8
    assert short.identity("x") != long.identity("x")
    assert short.resolved(vocab_size=500, longest_epochs=64) == short  # once is enough
    tiny = override(config, {"data.unique_tokens": 5_000, "num_epochs": 1})
    assert tiny.resolved(vocab_size=500).schedule.warmup_steps == 1


def test_tau_is_the_paper_s():
    """batch_tokens / (lr * wd * U): 128 * 2048 / (1e-3 * 1.6 * 1e8) epochs."""
    assert BASE.tau == pytest.approx(128 * 2048 / (1e-3 * 1.6 * 48_828 * 2048))
    assert math.isinf(override(BASE, {"optim.weight_decay": 0}).tau)


def test_a_problem_travels_through_a_pickle():
    import pickle

    error = ConfigError(["one", "two"])
    again = pickle.loads(pickle.dumps(error))
    assert again.problems == ("one", "two")
    assert str(again) == "one\ntwo"
