"""What figures show, against print; that nothing in them is cut off; and where they are absent."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from dcray.fit.answer import Question, answer
from dcray.fit.paper import published
from dcray.report import study
from dcray.report.analysis import Asked, analyze
from dcray.report.figures import draw as figures
from dcray.report.figures import fits as fit_figures
from dcray.report.figures import runs as run_figures
from dcray.report.figures import worth
from dcray.report.figures.style import (
    KINDS,
    AbsentError,
    Picture,
    drawing,
    save,
    settle,
    short,
    within,
)
from tests.report.planted import STUDY
from tests.report.rows import hopeless, row


@pytest.fixture(scope="module")
def papers():
    rows = [*published.rows("dclm_ar"), *published.rows("dclm_mir")]
    return answer(rows, Question(baseline="ar", recipes=("mir",), bootstrap=20))


@pytest.fixture(scope="module")
def planted(record):
    return study.read(record, STUDY, Asked(bootstrap=20))


def markers(axes):
    """[(x, y)] of each line that is drawn as markers alone."""
    return [
        np.array(line.get_xydata())
        for line in axes.get_lines()
        if line.get_linestyle() == "None" and len(line.get_xydata())
    ]


def test_the_gap_is_the_difference_of_losses(papers):
    loss = {(r.num_params, r.unique_tokens): r.val_loss for r in published.rows("dclm_ar")}
    _, _, figure = fit_figures.gap(papers)
    shown = markers(figure.axes[0])
    assert len(shown) == 3
    for budget, points in zip((100, 200, 300), shown, strict=True):
        for N, gap in points:
            here, there = (loss[round(N), tokens * 10**6] for tokens in (budget, 400))
            assert gap == pytest.approx(here - there, abs=1e-12)


def test_asymptotes_are_the_printed_ones(papers):
    """Table tab:app-mir-param-fits: E_U of MIR at the four budgets."""
    _, alt, figure = fit_figures.asymptotes(papers)
    (mir,) = (axes for axes in figure.axes if axes.get_title() == "mir")
    dotted = [line.get_ydata()[0] for line in mir.get_lines() if line.get_linestyle() == ":"]
    assert dotted == pytest.approx([3.27997, 2.95596, 2.83953, 2.74826], abs=2e-4)
    assert "mir at 100M: 3.280" in alt
    curves = [
        line for axes in figure.axes for line in axes.get_lines() if line.get_linestyle() == "-"
    ]
    assert len(curves) == 8


def test_an_asymptote_at_its_bound_is_called_so_and_not_drawn():
    """Losses straight in log N bend nowhere: the nearest curve has E_U = 0, which is no finding."""
    losses = {16_000: (3.9, 3.7, 3.505), 32_000: (3.5, 3.3, 3.2)}
    rows = [
        row(loss - 0.1 * (recipe == "mir"), size=str(N), N=N, U=U, recipe=recipe)
        for U, line in losses.items()
        for N, loss in zip((59_616, 118_848, 226_176), line, strict=True)
        for recipe in ("ar", "mir")
    ]
    _, alt, figure = fit_figures.asymptotes(analyze("s", rows, [], Asked(bootstrap=0)).answer)
    assert "ar at 16k: at its bound 0; ar at 32k: 3.0" in alt
    assert "0.000" not in alt
    for axes in figure.axes:
        dotted = [line for line in axes.get_lines() if line.get_linestyle() == ":"]
        assert len(dotted) == 1
        assert axes.get_ylim()[0] > 2
    settle(figure)
    labels = [
        label.get_window_extent()
        for axes in figure.axes
        for label in axes.get_xticklabels()
        if label.get_text()
    ]
    assert len(labels) == 4
    assert all(left.x1 + 3 < right.x0 for left, right in pairwise(labels))


def test_residuals_give_the_printed_rmse(papers):
    """Table tab:app-dclm-full-fit."""
    _, _, figure = fit_figures.residuals(papers)
    for axes in figure.axes:
        name = axes.get_title("left").partition(",")[0]
        if name in published.figures()["full_fit"]:
            residual = np.concatenate([points[:, 1] for points in markers(axes)]) / 1e3
            assert len(residual) == 20
            rmse = published.figures()["full_fit"][name][1]
            assert np.sqrt(np.mean(residual**2)) == pytest.approx(rmse, abs=1e-5)


def test_worth_is_the_like_for_like_figure(papers):
    """Two columns that were computed when this package was planned: joint SoftQ, and at 1.4B."""
    _, alt, figure = worth.worth(papers)
    (axes,) = figure.axes
    laws = [label.get_text() for label in axes.get_yticklabels()]
    rows = {"joint": [], "finite": []}
    for line in axes.get_lines():
        x, y = line.get_xydata()[0]
        if line.get_linestyle() == "None" and laws[round(y)] == "softq":
            rows["finite" if line.get_markerfacecolor() == "white" else "joint"].append(x)
    assert sorted(rows["joint"], reverse=True) == pytest.approx([1.14, 1.13, 1.13, 1.12], abs=0.01)
    assert sorted(rows["finite"], reverse=True) == pytest.approx([1.11, 1.10, 1.08, 1.07], abs=0.01)
    assert "mir in ar's data under softq at 100M: 1.14" in alt


def test_the_infinite_model_s_curve_is_the_printed_one(papers):
    """L = E + C U**-g, table of the infinite-model curves."""
    _, _, figure = fit_figures.against_data(papers)
    (dashed,) = (line for line in figure.axes[0].get_lines() if line.get_label() == "infinite")
    E, C, g = published.figures()["infinite_model_curves"]["softq"]
    U = dashed.get_xdata() / 1e9
    inside = U <= 0.4
    np.testing.assert_allclose(dashed.get_ydata()[inside], (E + C * U**-g)[inside], atol=5e-4)


def test_a_law_that_fails_is_not_drawn(papers):
    assert not papers.fits["ar"]["muennighoff_c4"].describes
    for _, alt, figure in (fit_figures.absolute(papers), worth.worth(papers)):
        texts = " ".join(text.get_text() for text in figure.findobj(mpl.text.Text))
        assert "muennighoff_c4" not in texts + alt


def test_where_no_law_describes_the_grid_none_is_drawn():
    found = analyze("s", hopeless(), [], Asked(bootstrap=0))
    pictures, absent = figures.of_answer(found.answer)
    assert absent["against-data"] == "no law describes the baseline's grid"
    (gap,) = [one for one in pictures if one.name == "gap"]
    assert all(line.get_linestyle() == "None" for line in gap.figure.axes[0].get_lines())


def test_a_gap_that_noise_turns_round_is_still_seen():
    """Chance made less data the better at one size: its marker is not below the axis."""
    found = analyze("s", hopeless(), [], Asked(bootstrap=0))
    _, _, figure = fit_figures.gap(found.answer)
    (axes,) = figure.axes
    lowest = min(points[:, 1].min() for points in markers(axes))
    assert axes.get_ylim()[0] < lowest < 0


def test_a_limit_that_is_not_identified_is_not_drawn():
    """What the answer says of infinite models, the figure says as well."""
    rows = [
        row(2 + (1e6 / U) ** 0.25, size=str(N), N=N, U=U)
        for N in (60_000, 120_000, 230_000)
        for U in (16_000, 32_000, 64_000)
    ]
    _, alt, figure = fit_figures.against_data(analyze("s", rows, [], Asked(bootstrap=0)).answer)
    assert "infinite" not in [text.get_text() for text in figure.legends[0].get_texts()]
    assert alt.endswith("The limit of infinitely many parameters is not identified here.")


def test_a_bound_is_called_one_in_figures():
    ar = published.rows("dclm_ar")
    bounds = [
        replace(row, recipe="mdlm", val_loss=row.val_loss + 0.1, bound="upper bound") for row in ar
    ]
    found = answer([*ar, *bounds], Question(laws=("softq",), recipes=("mdlm",)))
    titles = [draw(found)[2].axes[-1].get_title() for draw in (worth.worth, fit_figures.asymptotes)]
    assert titles == ["mdlm (upper bound) in ar's data", "mdlm (upper bound)"]


def test_budgets_that_have_no_panel_are_told():
    rows = [
        row(4 - i / 10 - U / 1e5, size=str(N), N=N, U=U)
        for i, N in enumerate((60_000, 120_000))
        for U in (16_000, 32_000, 48_000, 64_000, 96_000)
    ]
    _, alt, figure = run_figures.by_size(analyze("s", rows, [], Asked(bootstrap=0)))
    assert len([axes for axes in figure.axes if axes.get_visible()]) == 3
    assert "at 3 of 5 budgets" in alt


def test_a_recipe_may_be_called_by_any_letters(tmp_path):
    """No name is taken for mathematics, nor for one that a legend is to leave out."""
    rows = [
        row(4 - i / 10, size=str(N), N=N, recipe=recipe)
        for i, N in enumerate((60_000, 120_000))
        for recipe in ("ar", "mir $r^$", "_hidden")
    ]
    pictures, _ = figures.of_study(analyze("s", rows, [], Asked()))
    figures.save_all(pictures, tmp_path)
    assert "mir $r^$" in (tmp_path / "loss-by-size.svg").read_text()
    (picture,) = (one for one in pictures if one.name == "loss-by-size")
    shown = [text.get_text().strip() for text in picture.figure.legends[0].get_texts()]
    assert sorted(shown) == ["_hidden", "ar", "mir $r^$"]


def test_curves_epochs_and_mir_options_show_what_was_planted(planted):
    _, alt, figure = run_figures.over_epochs(planted)
    by_name = {line.get_label(): line.get_xydata() for line in figure.axes[0].get_lines()}
    assert set(by_name) == {"ar", "mir", "weak"}
    assert by_name["weak"][:, 1] == pytest.approx([4.2 + 0.02 * (e - 6) ** 2 for e in range(1, 17)])
    assert "984k, 16k unique tokens" in alt
    _, alt, _ = run_figures.by_epochs(planted)
    assert "ar is best at 16 epochs" in alt
    _, alt, figure = run_figures.mir_tuning(planted)
    assert len(figure.axes[0].get_lines()) == 3
    assert "from 0 to 0.5 and weight 0.4" in alt


def test_two_forms_of_mir_are_not_one_line():
    """The sum and the mixture of both losses, at the same weights and ratios, are two recipes."""
    mir = {f"objective.{name}": value for name, value in (
        ("mask_ratio_min", "0"), ("mask_ratio_max", "0.5"))}  # fmt: skip
    rows = [
        row(3 + (recipe == "mixed") + float(weight), recipe=recipe, objective="mir",
            config=f"{recipe}{weight}",
            **mir, **{"objective.weight": weight, "objective.mixed": str(recipe == "mixed")})
        for recipe in ("mir", "mixed") for weight in ("0.2", "0.4")
    ]  # fmt: skip
    _, alt, figure = run_figures.mir_tuning(analyze("s", rows, [], Asked()))
    (line,) = figure.axes[0].get_lines()
    assert line.get_xydata().tolist() == [[0.2, 3.2], [0.4, 3.4]]
    assert "MIR's loss at 60k, 16k unique tokens for 2 settings" in alt


def test_bars_reach_from_the_lowest_to_the_highest_seed(planted):
    _, _, figure = run_figures.by_size(planted)
    axes = next(a for a in figure.axes if a.get_title() == "U = 32k")
    cell = next(c for c in planted.cells if c.name == "226k 32k ar")
    losses = [r.val_loss for r in (cell.winner, *cell.fresh)]
    bars = [line.get_ydata() for line in axes.get_lines() if line.get_marker() == "_"]
    assert [min(losses), max(losses)] in [list(bar) for bar in bars]
    annotated = next(a for a in figure.axes if a.get_title() == "U = 16k").texts[0].get_text()
    assert annotated == "far above: weak 6.20"


def every(papers, planted):
    pictures, absent = figures.of_study(planted)
    more, missing = figures.of_answer(papers)
    assert (set(absent), missing) == ({"recipes-by-worth"}, {})  # its own is in test_recipes.py
    return [*pictures, *more]


def test_nothing_is_cut_off_and_legends_cover_nothing(papers, planted):
    for picture in every(papers, planted):
        figure = picture.figure
        with drawing():
            settle(figure)
        renderer = FigureCanvasAgg(figure).get_renderer()
        drawn, (width, height) = figure.get_tightbbox(renderer), figure.get_size_inches()
        assert -0.02 <= drawn.x0 < drawn.x1 <= width + 0.02, picture.name
        assert -0.02 <= drawn.y0 < drawn.y1 <= height + 0.02, picture.name
        for legend in figure.legends:
            box = legend.get_window_extent(renderer)
            for axes in figure.axes:
                if axes.get_visible():
                    assert not box.overlaps(axes.get_tightbbox(renderer)), picture.name


def test_text_is_legible_at_one_column(papers, planted):
    for picture in every(papers, planted):
        assert picture.figure.get_figwidth() == 3.5
        sizes = [t.get_fontsize() for t in picture.figure.findobj(mpl.text.Text) if t.get_text()]
        assert min(sizes) >= 6.5, picture.name


def test_files_are_vector_text_and_the_same_each_time(papers, tmp_path):
    title, alt, figure = fit_figures.gap(papers)
    files = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        save(Picture("gap", title, alt, figure), folder)
        files.append((folder / "gap.svg").read_bytes())
        assert (folder / "gap.png").read_bytes().startswith(b"\x89PNG")
    assert files[0] == files[1]
    root = ET.fromstring(files[0])
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert "text" in tags
    assert "image" not in tags
    said = " ".join(root.itertext())
    assert title in said
    assert alt in said
    assert "parameters" in said


def test_kinds_differ_in_more_than_colour():
    assert (
        len({marker for _, marker, _ in KINDS})
        == len({str(line) for *_, line in KINDS})
        == len(KINDS)
    )
    assert all(re.fullmatch(r"#[0-9A-F]{6}", color) for color, *_ in KINDS)


def test_drawing_leaves_matplotlib_as_it_was(papers):
    before = dict(mpl.rcParams)
    figures.of_answer(papers)
    assert dict(mpl.rcParams) == before


def test_each_figure_says_why_it_is_not_there():
    found = analyze("s", [row(3.0), row(3.1, recipe="mir")], [], Asked())
    pictures, absent = figures.of_study(found)
    assert pictures == []
    assert set(absent) == {*figures.OF_RUNS, *figures.OF_FITS}
    assert absent["loss-by-size"] == "losses by size need two sizes"
    assert "no winner was validated more than once" in absent["validation-over-epochs"]
    assert "recipe ar has one model size only" in absent["gap"]


def test_a_baseline_alone_has_fits_but_no_worth():
    found = answer(published.rows("dclm_ar"), Question())
    pictures, absent = figures.of_answer(found)
    assert set(absent) == {"worth"}
    assert "second recipe" in absent["worth"]
    assert len(pictures) == 5


def test_three_sizes_two_sizes_and_no_law_at_all():
    rows = [r for r in published.rows("dclm_ar") if r.num_params < 3e8]
    _, alt, _ = fit_figures.asymptotes(answer(rows, Question()))
    assert "no error bar" in alt
    two = [r for r in rows if r.num_params < 2e8]
    with pytest.raises(AbsentError, match="three sizes"):
        fit_figures.asymptotes(answer(two, Question(laws=("quanta",))))


def test_short_counts():
    assert [short(n) for n in (1_439_273_984, 71_965_952, 64_000, 999_999_999, 950, 984_320)] == [
        "1.44B", "72M", "64k", "1B", "950", "984k",
    ]  # fmt: skip


def test_the_range_holds_the_baseline_and_names_what_is_far_above():
    figure, axes = fit_figures.sheet()
    within(axes, [3.0, 3.2], [("near", 3.1), ("near", 3.3), ("far", 6.0), ("far", 5.0)])
    low, high = axes.get_ylim()
    assert low < 3.0
    assert 3.3 < high < 3.5
    assert axes.texts[0].get_text() == "far above: far 6.00"
    assert figure is not None
