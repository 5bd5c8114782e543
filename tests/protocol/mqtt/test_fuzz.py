"""Runs the fuzz targets of the codec for a short time in every test run."""

import runpy
from pathlib import Path

import pytest

TARGETS = Path(__file__).resolve().parents[2] / "fuzz"


@pytest.mark.parametrize("target", ["decoder", "mqtt5"])
def test_a_few_inputs(target: str) -> None:
    assert runpy.run_path(str(TARGETS / f"fuzz_{target}.py"))["run"](300, 1) > 300
