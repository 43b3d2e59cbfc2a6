"""A headless Chromium (Debian's chromium and chromium-driver) and what it says of a page."""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

QUIET = (  # nothing of its own is asked of the network
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


class Browser:
    """One window: open a page, look at it, ask what it loaded and complained of."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def show(self, url: str, *, width: int, scheme: str, height: int = 900) -> None:
        """Load a page in a window of this width, for people who prefer this colour scheme."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._ask("Emulation.setEmulatedMedia", media="screen", features=[feature])
        self.driver.get_log("browser"), self.driver.get_log("performance")
        self.driver.get(url)

    def complaints(self) -> list[str]:
        """What the console has said since the last look."""
        return [one["message"] for one in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """What was asked for since the last look."""
        said = (json.loads(one["message"])["message"] for one in self.driver.get_log("performance"))
        return [
            one["params"]["request"]["url"]
            for one in said
            if one["method"] == "Network.requestWillBeSent"
        ]

    def findings(self) -> list[str]:
        """What axe-core finds serious, or worse."""
        from axe_core_python.selenium import Axe

        found = Axe().run(self.driver)["violations"]
        return [
            f"{one['id']}: {one['nodes'][0]['html'][:200]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]

    def eval(self, script: str) -> Any:
        """What an expression of JavaScript gives."""
        return self.driver.execute_script(f"return {script}")

    def text_with(self, *wanted: str, seconds: float = 120.0) -> str:
        """What stands on the page once all of this does; fails where it never does."""
        deadline = time.monotonic() + seconds
        while True:
            text = str(self.eval("document.body ? document.body.innerText : ''"))
            missing = [one for one in wanted if one not in text]
            if not missing:
                return text
            assert time.monotonic() < deadline, f"{missing} are not in: {text}"
            time.sleep(0.5)

    def click_all(self, selector: str) -> None:
        """Press every element that a CSS selector finds."""
        self.eval(f"[...document.querySelectorAll({json.dumps(selector)})].forEach(x => x.click())")

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """The window as PNG, or the whole page."""
        shot = self._ask("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        """The page as it is printed."""
        self._ask("Emulation.setEmulatedMedia", media="print", features=[])
        return base64.b64decode(self._ask("Page.printToPDF", printBackground=False)["data"])

    def _ask(self, command: str, **params: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, params)


@contextmanager
def browser() -> Iterator[Browser]:
    """A window of its own, closed at the end."""
    from selenium import webdriver

    programs = shutil.which("chromium"), shutil.which("chromedriver")
    assert all(programs), "these tests need chromium and chromedriver; .ci/run installs them"
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for word in QUIET:
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(programs[1]))
    driver.set_script_timeout(180)  # of the rules of accessibility, on a busy machine
    try:
        yield Browser(driver)
    finally:
        driver.quit()
