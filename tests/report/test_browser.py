"""The page in a headless browser: at every width, light and dark, in print, by axe-core."""

import re

import pytest

from dcray.report.figures import draw
from dcray.report.page import page
from tests.browser import browser
from tests.report.side_by_side import study
from tests.report.test_page import written
from tests.report.test_recipes import analyzed

pytestmark = pytest.mark.slow
__all__ = ["written"]


@pytest.fixture(scope="module")
def window():
    with browser() as one:
        yield one


@pytest.fixture(scope="module")
def url(written, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(written, encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """The page of five recipes side by side."""
    path = tmp_path_factory.mktemp("several") / "page.html"
    found = analyzed(study(sizes=("60k", "226k", "431k")), bootstrap=20)
    path.write_text(page(found, *draw.of_study(found)), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_recipes_side_by_side_are_legible(window, several, width, scheme):
    window.show(several, width=width, scheme=scheme)
    assert window.complaints() == []
    assert window.findings() == []
    assert window.eval("document.documentElement.scrollWidth") <= width
    figure = "document.querySelector('svg[aria-label^=\"Recipes by worth\"]')"
    box = f"{figure}.getBoundingClientRect()"
    assert window.eval(f"{box}.width") <= width
    texts = f"[...{figure}.querySelectorAll('text')].map(x => x.getBoundingClientRect().height)"
    assert min(window.eval(texts)) >= 9  # pixels of the smallest line
    head = "[...document.querySelectorAll('#by-worth ~ .scroll thead th')].map(x => x.textContent)"
    assert window.eval(head)[:3] == ["recipe", "at equal", "worth"]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_whole_quiet_and_accessible(window, url, width, scheme):
    window.show(url, width=width, scheme=scheme)
    assert window.complaints() == []
    assert window.requests() == [url]
    window.eval("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert window.findings() == []
    assert window.eval("document.documentElement.scrollWidth") <= width  # tables have their own
    ground = window.eval("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", ground)[:3])) > 3 * 128
    assert light == (scheme == "light")


def test_the_answer_is_on_the_first_screen_of_a_phone(window, url):
    window.show(url, width=390, height=844, scheme="light")
    assert window.eval("document.querySelector('.answer').getBoundingClientRect().bottom") < 844


def test_the_keyboard_reaches_every_table(window, url):
    window.show(url, width=390, scheme="light")
    wide = "[...document.querySelectorAll('.scroll')].filter(x => x.scrollWidth > x.clientWidth)"
    assert window.eval(f"{wide}.length") > 0
    assert window.eval(f"{wide}.every(x => x.tabIndex == 0 && x.getAttribute('aria-label'))")


def test_in_print_no_column_is_cut_off(window, url):
    window.show(url, width=700, scheme="light")  # A4's width less its margins
    printed = window.pdf()
    assert printed.startswith(b"%PDF")
    tables = "[...document.querySelectorAll('table')].filter(x => x.offsetParent !== null)"
    right = window.eval(f"{tables}.map(x => x.getBoundingClientRect().right)")
    assert len(right) >= 5
    assert max(right) <= 700
    cells = "[...document.querySelectorAll('th, td')]"
    assert window.eval(f"[...new Set({cells}.map(x => getComputedStyle(x).padding))].length") == 1
