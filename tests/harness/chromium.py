"""The browser of tests: Chromium, where it is installed."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium (on Debian: apt install)"
)

CUT = """() => [...document.querySelectorAll(".scroll")]
  .filter((one) => one.scrollWidth > one.clientWidth)
  .map((one) => `${one.ariaLabel}: ${one.scrollWidth} > ${one.clientWidth}`)"""
"""Tables of which a part is hidden."""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser until the block ends; skip the test without playwright."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        # In a container chromium runs as root, for which it has no sandbox.
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
