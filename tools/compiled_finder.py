"""Finds the compiled modules of a checkout; ``tools/compile_modules.py`` copies it into a venv.

A compiled module is used only in place of its own source, and only while the sources of all of
them are those that were compiled: a change of a source has an effect at once, and another checkout
runs as it is. ``FOLDMQ_PLAIN=1`` leaves the compiled modules out.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

FOLDER = "foldmq_compiled"
"""The folder of the compiled modules, beside this file."""
MANIFEST = "manifest.json"


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal; empty if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


class CompiledFinder:
    """Finds compiled modules by the manifest in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._checked = False
        self._serves = False
        """Whether a module was taken from here."""
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        self._files: dict[str, str] = manifest["files"]
        """Name of a module -> its compiled file."""
        self._sources: dict[str, str] = manifest["sources"]
        """Path of a source -> its SHA-256."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a compiled module; None: it is plain Python.

        ``path`` has the directories of the package that it is imported from.
        """
        file = self._files.get(name)
        if file is None:
            return None
        if path is None:
            # What modules compiled together share: another checkout may have its own by this name.
            if not self._serves:
                return None
        else:
            source = name.rpartition(".")[2] + ".py"
            if not any(str(Path(folder, source)) in self._sources for folder in path):
                return None
        if not self._checked:
            if any(digest(Path(path)) != known for path, known in self._sources.items()):
                self._files = {}
                return None
            self._checked = True
        self._serves = True
        place = str(self._folder / file)
        return spec_from_file_location(name, place, loader=ExtensionFileLoader(name, place))


def install() -> None:
    """Use the compiled modules; called when Python starts."""
    folder = Path(__file__).with_name(FOLDER)
    if os.environ.get("FOLDMQ_PLAIN", "0") in {"", "0"} and (folder / MANIFEST).is_file():
        sys.meta_path.insert(0, CompiledFinder(folder))
