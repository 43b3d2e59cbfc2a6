"""The page: whole in one file, the answer first, nothing from elsewhere, something for everyone."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from dcray.report.analysis import Asked, analyze
from dcray.report.cells import Left
from dcray.report.data import runs_csv
from dcray.report.figures import draw as figures
from dcray.report.page import answers, commands, cost, page, qualifications
from dcray.report.tables import study as tables
from tests.report.rows import hopeless, row

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """The elements of a page, with their attributes; what is opened must be closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


def grid():
    """Four sizes and budgets of a law in closed form; mir has 1.25 times the data."""
    rows = []
    for size, N in (("s", 1e6), ("m", 2e6), ("l", 4e6), ("xl", 8e6)):
        for U in (100_000, 200_000, 400_000, 800_000):
            for recipe, gain in (("ar", 1.0), ("mir", 1.25)):
                loss = 2 + (2e3 * N**-0.6 + 3e2 * (gain * U) ** -0.4) ** 1.25 / 4
                where = {"size": size, "N": int(N), "U": U, "recipe": recipe}
                rows.append(row(loss, **where, objective=recipe))
                rows.append(row(loss + 0.1, config="b", epochs=8, **where))
    return rows


@pytest.fixture(scope="module")
def written():
    found = analyze("s", grid(), [Left("r1", "lost", "it is <failed> & gone")], Asked(bootstrap=0))
    return page(found, *figures.of_study(found))


def test_the_answer_comes_first(written):
    text = " ".join(Reader(written).text)
    said = text.index("mir is worth")
    assert said < text.index("What a recipe is worth")
    assert "By a curve per budget against the joint limit, mir is worth" in text
    assert "mir minus ar on search seed, pair by pair" in text
    assert "the lowest of up to 2 candidates: selected minima, which are somewhat low" in text


def test_nothing_is_loaded_from_elsewhere_and_nothing_runs(written):
    reader = Reader(written)
    assert reader.all("script") == reader.all("link") == reader.all("img") == []
    for _, attrs in reader.elements:
        for name in ("src", "href", "xlink:href", "srcset", "data"):
            assert attrs.get(name, "#").startswith("#"), attrs
        assert not [name for name in attrs if name.startswith("on")]
    assert "@import" not in written
    assert re.findall(r"url\((?!#)", written) == []


def test_ids_are_unique_and_every_reference_leads_somewhere(written):
    reader = Reader(written)
    ids = [attrs["id"] for _, attrs in reader.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = re.findall(r'(?:href="#|url\(#|aria-labelledby=")([^")]+)', written)
    assert len(links) > 20
    assert set(links) <= set(ids)
    regions = [attrs["aria-label"] for _, attrs in reader.elements if attrs.get("role") == "region"]
    assert len(regions) == len(set(regions)) > 1


def test_every_figure_has_a_text_alternative(written):
    svgs = Reader(written).all("svg")
    assert len(svgs) == 8
    for svg in svgs:
        assert svg["role"] == "img"
        assert len(svg["aria-label"]) > 40


def test_headings_language_and_table_headers_are_there(written):
    reader = Reader(written)
    assert reader.all("html")[0]["lang"] == "en"
    assert len(reader.all("h1")) == 1
    levels = [int(tag[1]) for tag, _ in reader.elements if re.fullmatch(r"h\d", tag)]
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
    assert {attrs.get("scope") for attrs in reader.all("th")} == {"col", "row"}
    assert "prefers-color-scheme: dark" in written
    in_print = written.partition("@media print {")[2].partition("</style>")[0]
    assert "\n  th, td { padding: .15rem .3rem; }" in in_print  # of names in the rows, too


def test_names_and_reasons_are_text_and_not_markup(written):
    assert "it is &lt;failed&gt; &amp; gone" in written
    found = analyze("<b>study</b>", [row(3.0)], [], Asked())
    assert "<b>study" not in page(found, *figures.of_study(found))


def test_cells_trials_cost_and_commands_are_there(written):
    text = " ".join(Reader(written).text)
    assert text.count("2 results") == 32
    assert "Device time of all results: 64 s (ar 32 s, mir 32 s)" in text
    assert "dcray analyze s --bootstrap 0" in text
    assert "python 3." in text


def test_without_a_fit_the_page_says_what_is_missing():
    found = analyze("s", [row(3.0)], [], Asked())
    reader = Reader(page(found, *figures.of_study(found)))
    text = " ".join(reader.text)
    assert "No law is fitted: recipe ar has one model size only" in text
    assert "losses by size need two sizes" in text
    assert reader.all("svg") == []


def test_a_baseline_without_a_rival_is_told_as_it_is():
    """A second recipe that carries no grid is not "no second recipe"; nor is a failure a best."""
    alone = [one for one in grid() if one.recipe == "ar"]
    (said,) = answers(analyze("s", alone, [], Asked(bootstrap=0)))
    assert said.endswith("describes ar best; there is no second recipe to compare.")
    (said,) = answers(analyze("s", [*alone, grid()[2]], [], Asked(bootstrap=0)))
    assert said.endswith("describes ar best; no other recipe has a grid to compare.")
    (said,) = answers(analyze("s", hopeless(), [], Asked(bootstrap=0)))
    assert said.startswith("No law describes ar: even ")


def test_bounds_are_called_so_beside_other_losses():
    rows = [row(3.0), row(3.1, recipe="mdlm", bound="upper bound")]
    found = analyze("s", rows, [], Asked())
    difference, missing = answers(found)  # without a law the pairs are the answer
    assert "mdlm (upper bound) minus ar on search seed" in difference
    assert missing.startswith("No law is fitted")
    assert difference not in qualifications(found)
    (pairs,), (cells,) = tables.pairs(found), tables.cells(found)
    assert pairs.rows[0][0] == "mdlm (upper bound)"
    assert cells.rows[1][-1] == "upper bound"


def test_no_ratio_is_read_off_a_law_that_fails():
    both = [*hopeless(), *(replace(one, tags={}, recipe="mir") for one in hopeless())]
    found = analyze("s", both, [], Asked(bootstrap=0))
    assert answers(found)[0].startswith("No law leads: even ")
    assert not [said for said in qualifications(found) if "by joint fits" in said]


def test_the_only_run_of_a_cell_is_no_selected_minimum():
    said = qualifications(analyze("s", [row(3.0)], [], Asked()))[-1]
    assert said == "Losses: ar: losses at the search seed, each its cell's only candidate."
    two = [row(3.0), row(3.1, config="b")]
    assert "selected minima" in qualifications(analyze("s", two, [], Asked()))[-1]


def test_the_commands_can_be_pasted():
    found = analyze("my study", [row(3.0)], [], Asked())
    assert commands(found) == "dcray analyze 'my study' --bootstrap 200"  # nothing can be fitted
    named = [replace(one, recipe=f"{one.recipe} 1") for one in grid()]
    found = analyze("s", named, [], Asked("ar 1", ("mir 1",), bootstrap=0))
    options = "--baseline 'ar 1' --recipe 'mir 1' --bootstrap 0"
    assert commands(found) == f"dcray analyze s {options}\ndcray fit cells.csv {options}"


def test_device_time_counts_every_device():
    many = replace(row(3.0), tags={"objective": "ar", "world_size": "8"}, device_seconds=100.0)
    found = analyze("s", [many], [], Asked())
    assert cost(found).endswith(": 13 min (ar 13 min).")
    assert ",800.0,winner," in runs_csv(found)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_its_ground(theme, written):
    """WCAG contrast of at least 4.5 for text and links, on the page and on panels."""
    blocks = re.findall(r":root \{([^}]*)\}", written)
    colors = dict(re.findall(r"--(\w+): (#\w{6})", blocks[theme == "dark"]))
    for ground in ("paper", "panel"):
        for ink in ("ink", "soft", "link"):
            assert contrast(colors[ink], colors[ground]) >= 4.5


def contrast(first, second):
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
