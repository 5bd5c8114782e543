"""The documentation as a site: it builds without a warning, and users' pages stay short."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
USERS = [
    ROOT / "README.md",
    *sorted(page for page in DOCS.rglob("*.md") if "contribute" not in page.parts),
]
"""Pages for users; those below docs/contribute are for contributors and are not counted."""


def words(*pages: Path) -> int:
    """Return the number of words, as ``wc -w`` counts them."""
    return sum(len(page.read_text("utf-8").split()) for page in pages)


def test_pages_for_users_have_at_most_45000_words() -> None:
    assert words(*USERS) <= 45_000, sorted((words(page), page.name) for page in USERS)[-8:]


@pytest.mark.parametrize(
    ("page", "most"),
    [("docs/status.md", 1500), ("docs/benchmarks.md", 1000), ("CHANGELOG.md", 1000)],
)
def test_summaries_are_short(page: str, most: int) -> None:
    assert words(ROOT / page) <= most


@pytest.mark.parametrize("page", USERS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_lists_and_tables_begin_behind_a_blank_line(page: Path) -> None:
    """GitHub shows them otherwise, too, but Python-Markdown takes them for text."""
    text = re.sub(r"(?ms)^( *)```.*?^\1```", "", page.read_text("utf-8"))
    lines = text.splitlines()
    begun = re.compile(r"(?:[-*] |\d+\. |\|)")
    wrong = [
        line
        for before, line in itertools.pairwise(lines)
        if begun.match(line)
        and before.strip()
        and not begun.match(before)
        and before[0] != " "
        and not before.startswith("<!--")
    ]
    assert wrong == []


@pytest.mark.slow
@pytest.mark.system
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """All pages are in the navigation, and no link or anchor is wrong."""
    pytest.importorskip("material", reason="needs the packages of foldmq[docs]")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.html")}
    assert {"index.html", "CHANGELOG.html", "CONTRIBUTING.html", "troubleshooting.html"} <= pages
    fetched = re.compile(r'<(?:link|script|img)[^>]+(?:href|src)="(?:https?:)?//(?!127\.0\.0\.1)')
    foreign = [name for name in pages if fetched.search((tmp_path / name).read_text("utf-8"))]
    assert foreign == [], "pages need no other site"
    assert "troubleshooting.html" in (tmp_path / "search" / "search_index.json").read_text("utf-8")
