"""Each recipe has a page of one screen that shows its files as they are."""

import json
import re
from pathlib import Path

import pytest
import yaml

from recipes.recipefiles import RECIPES, ROOT

PAGES = ROOT / "docs" / "recipes"
NAMES = sorted(folder.name for folder in RECIPES.iterdir())
WORDS = 450
HEADINGS = ["Configuration", "Check", "When it does not work"]
_SHOWN = re.compile(r"^`([\w./-]+)`[^\n]*:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINKED = re.compile(r"\]\(\.\./\.\./deploy/recipes/([\w./-]+)\)")


def text_of(name: str) -> str:
    return (PAGES / f"{name}.md").read_text("utf-8")


def shown(text: str) -> dict[str, str]:
    """The files that a page shows, with the text that it shows."""
    return dict(_SHOWN.findall(text))


def files_of(name: str) -> set[Path]:
    return {file for file in (RECIPES / name).rglob("*") if file.is_file()}


def test_every_recipe_has_a_page() -> None:
    assert len(NAMES) == 12
    assert sorted(page.stem for page in PAGES.glob("*.md")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_page_shows_the_text_of_its_files(name: str) -> None:
    text = text_of(name)
    found = shown(text)
    assert found
    for file, content in found.items():
        path = RECIPES / name / file
        assert path.is_file(), file
        assert content == path.read_text("utf-8"), f"docs/recipes/{name}.md differs from {path}"
    linked = {RECIPES / file for file in _LINKED.findall(text)}
    assert {RECIPES / name / file for file in found} | linked >= files_of(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_one_screen_with_the_same_parts(name: str) -> None:
    text = text_of(name)
    assert len(text.split()) <= WORDS
    assert re.findall(r"(?m)^## (.+)$", text) == HEADINGS


def test_files_are_well_formed() -> None:
    for file in RECIPES.rglob("*"):
        if file.suffix in (".yaml", ".yml"):
            assert yaml.safe_load(file.read_text("utf-8")), file
        elif file.suffix == ".json":
            assert json.loads(file.read_text("utf-8")), file


def test_a_page_that_differs_is_noticed() -> None:
    assert shown("`a.toml` on each node:\n\n```toml\nlisten = []\n```\n") == {
        "a.toml": "listen = []\n"
    }
