"""What MkDocs needs to make a site of ``docs/``: a hook that ``mkdocs.yml`` names.

It fills patterns in the navigation, adds the pages that lie in the root of the repository and the
DESIGN.md of each package, and turns links to files that the site does not have (source code, tests)
into plain text. The search prefers pages for users.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("protocol", "eventstore", "projections", "outbox", "actors", "cluster", "spark", "cli")
FROM_ROOT = (
    *("CHANGELOG.md", "CONTRIBUTING.md"),
    *(
        page.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for page in sorted((ROOT / package).rglob("DESIGN.md"))
    ),
)
"""The pages outside docs/, by their path in the repository."""
_DOCS = re.compile(r"\]\(((?:\.\./)*)docs/")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Replace each pattern in the navigation by the pages that match it."""
    config.nav = _filled(config.nav, Path(config.docs_dir))
    return config


def _filled(nav: list[Any], docs: Path) -> list[Any]:
    entries: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            entries += [{title: _filled(below, docs)} for title, below in entry.items()]
        elif "*" in entry:
            entries += sorted(path.relative_to(docs).as_posix() for path in docs.glob(entry))
        else:
            entries.append(entry)
    return entries


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside docs/."""
    for name in FROM_ROOT:
        text = _DOCS.sub(r"](\1", (ROOT / name).read_text("utf-8"))
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001
    """Make links to pages outside docs/ work; keep only the text of links to other files."""
    folder = PurePosixPath(page.file.src_uri).parent
    if "contribute" in folder.parts or page.file.src_uri.endswith("DESIGN.md"):
        page.meta.setdefault("search", {"boost": 0.2})

    def link(match: re.Match[str]) -> str:
        title, target, anchor = match[1], match[2], match[3] or ""
        path = os.path.normpath(folder / target)
        if path.startswith("../") and path[3:] in FROM_ROOT:
            return f"[{title}]({os.path.relpath(path[3:], folder)}{anchor})"
        return match[0] if files.get_file_from_path(path) else title

    return _LINK.sub(link, markdown)
