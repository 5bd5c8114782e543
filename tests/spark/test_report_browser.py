"""The page of an audit in a real browser: it loads nothing, runs nothing, and fits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.chromium import chromium, needs_chromium
from outcomes import broken, kept, nothing, silent

from spark.report.html_report import audit_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = needs_chromium

_CONTRAST = """
() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).map(Number).slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  for (const element of document.querySelectorAll("main *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const ours = element instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(ours), light(behind(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.push([element.tagName, element.textContent.trim().slice(0, 40), ratio]);
  }
  return found;
}
"""
"""What is text with less contrast than WCAG's AA asks for."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for made in (kept, broken, nothing, silent):
        found[made.__name__] = folder / f"{made.__name__}.html"
        found[made.__name__].write_text(audit_page(made()), "utf-8")
    return found


@pytest.mark.parametrize("which", ["kept", "broken", "nothing", "silent"])
def test_a_page_fits_and_can_be_read(browser: Browser, files: dict[str, Path], which: str) -> None:
    """On a phone and on a desk, light and dark."""
    context = browser.new_context()
    shown = context.new_page()
    asked: list[str] = []
    said: list[str] = []
    shown.on("request", lambda request: asked.append(request.url))
    shown.on("console", lambda message: said.append(message.text))
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.on("dialog", lambda dialog: said.append(dialog.message))
    shown.goto(files[which].as_uri())
    for width in (375, 1400):
        shown.set_viewport_size({"width": width, "height": 900})
        assert shown.evaluate("document.documentElement.scrollWidth") == width
        visible = shown.locator("figure svg:visible")
        assert visible.count() == shown.locator("figure").count()
        for scheme in ("light", "dark"):
            shown.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            dark = "matchMedia('(prefers-color-scheme: dark)').matches"
            assert shown.evaluate(dark) == (scheme == "dark")
            assert shown.evaluate(_CONTRAST) == []
    assert asked == [files[which].as_uri()]
    assert said == []
    context.close()


def test_plots_have_letters_that_can_be_read_on_a_phone(
    browser: Browser, files: dict[str, Path]
) -> None:
    context = browser.new_context(viewport={"width": 375, "height": 900})
    shown = context.new_page()
    shown.goto(files["kept"].as_uri())
    heights = shown.evaluate(
        "[...document.querySelectorAll('figure text')].map((text) => "
        "text.getBoundingClientRect().height).filter((height) => height > 0)"
    )
    assert len(heights) > 20
    assert min(heights) >= 9
    context.close()


def test_a_page_can_be_printed(browser: Browser, files: dict[str, Path]) -> None:
    context = browser.new_context(viewport={"width": 718, "height": 1000}, color_scheme="dark")
    shown = context.new_page()
    shown.emulate_media(media="print")
    shown.goto(files["broken"].as_uri())
    assert shown.evaluate("document.documentElement.scrollWidth") == 718  # A4 within its margins
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert shown.evaluate(_CONTRAST) == []
    context.close()
