"""The fuzz target runs, a little, with every test run."""

from __future__ import annotations

import runpy
from pathlib import Path

TARGET = Path(__file__).resolve().parents[2] / "fuzz" / "fuzz_decoder.py"


def test_a_few_inputs() -> None:
    assert runpy.run_path(str(TARGET))["run"](300, 1) > 300
