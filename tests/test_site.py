"""docs/ as a site: built without a warning, quiet, and accessible on a phone and a wide screen."""

import functools
import os
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.browser import browser

ROOT = Path(__file__).parent.parent
PAGES = ("index", "tutorial", "how-to/own-study", "reference/study-file", "explanation/worth",
         "benchmarks")  # fmt: skip


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site behind a server on loopback; its address."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def window():
    with browser() as one:
        yield one


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_whole_quiet_and_accessible(window, site, page, width, scheme):
    window.show(f"{site}/{page}.html", width=width, scheme=scheme)
    assert window.complaints() == []
    assert [url for url in window.requests() if not url.startswith((site, "data:"))] == []
    assert window.findings() == []
    assert window.eval("document.documentElement.scrollWidth") <= width
