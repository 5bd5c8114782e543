"""Checks that every generated page is up to date; exits 1 if one is not.

It takes a few seconds: ``make check`` and ``make test`` run it first. The JSON Schema is left out,
because pydantic words it differently in each of its versions.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def tools() -> list[str]:
    """Return the names of the tools that write pages."""
    return ["benchmark_chart", *sorted(path.stem for path in HERE.glob("*_table.py"))]


def main() -> int:
    """Check all pages; each tool prints on stderr the command to run."""
    sys.path.insert(0, str(HERE))
    return max(importlib.import_module(name).main(["--check"]) for name in tools())


if __name__ == "__main__":
    sys.exit(main())
