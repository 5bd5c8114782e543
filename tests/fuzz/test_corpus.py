"""Replays all inputs that fuzzing found worth keeping."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).resolve().parent


def load(stem: str) -> ModuleType:
    name = f"fuzzing_{stem}"
    spec = importlib.util.spec_from_file_location(name, HERE / f"{stem}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


run = load("run")


@pytest.mark.parametrize("target", run.targets())
@pytest.mark.slow
def test_the_corpus_of(target: str) -> None:
    inputs = sorted(run.corpus(target).iterdir())
    assert inputs, f"{target} has no corpus"
    one = load(f"fuzz_{target}").one
    for path in inputs:
        try:
            one(path.read_bytes())
        except Exception as error:
            error.add_note(f"with {path}")
            raise
