"""Modules that are executed at their first use."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.program.process import _DeferredFinder


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package ``lazypack`` that is deferred, and one beside it that imports it."""
    folder = tmp_path / "lazypack"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import part\nfrom .part import VALUE\nDONE = 1\n")
    (folder / "part.py").write_text("VALUE = object()\n")
    (tmp_path / "lazyuser.py").write_text(
        "import lazypack\n\ndef use():\n    return lazypack.DONE\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        sys, "meta_path", [_DeferredFinder(frozenset({"lazypack"})), *sys.meta_path]
    )
    yield folder
    for name in [one for one in sys.modules if one.startswith(("lazypack", "lazyuser"))]:
        del sys.modules[name]


@pytest.mark.usefixtures("package")
def test_a_module_is_executed_when_it_is_used() -> None:
    user = importlib.import_module("lazyuser")
    assert "lazypack" in sys.modules
    assert "lazypack.part" not in sys.modules
    assert user.use() == 1
    assert sys.modules["lazypack"].VALUE is sys.modules["lazypack.part"].VALUE
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sys.modules["lazypack"].nothing  # noqa: B018


@pytest.mark.usefixtures("package")
def test_a_part_of_it_is_imported_once() -> None:
    """Otherwise its exceptions would be other ones than those that are caught."""
    part = importlib.import_module("lazypack.part")
    package = importlib.import_module("lazypack")
    assert "DONE" not in vars(package)
    assert package.part is part
    assert package.DONE == 1
    assert package.VALUE is part.VALUE
    assert sys.modules["lazypack.part"] is part


@pytest.mark.usefixtures("package")
def test_names_can_be_imported_from_it() -> None:
    from lazypack import DONE, part  # type: ignore[import-not-found]

    assert (DONE, part) == (1, sys.modules["lazypack.part"])


def test_an_import_error_is_raised(package: Path) -> None:
    (package / "__init__.py").write_text("import nothing_of_that_name\n")
    found = importlib.import_module("lazypack")
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        found.VALUE  # noqa: B018
