"""Stored classes of Spark are used only if they are this user's, and kept whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark.runtime.errors import NoSpark
from spark.runtime.session import ClassArchive, find_class_archive

PACKAGE = Path("/somewhere/pyspark")


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = find_class_archive(PACKAGE, "4.1")
    assert found is not None
    found.prepare()
    return found


def test_stored_classes_are_used(archive: ClassArchive) -> None:
    assert not archive.usable
    archive.draft.write_bytes(b"classes")
    assert archive.keep() == 7
    assert archive.usable
    archive.prepare()
    assert archive.usable, "the last one is used until another one is whole"


def test_nothing_stored_is_an_error(archive: ClassArchive) -> None:
    with pytest.raises(NoSpark, match="stored no classes"):
        archive.keep()


@pytest.mark.parametrize("which", ["folder", "file"])
def test_an_archive_that_others_may_write_is_not_used(archive: ClassArchive, which: str) -> None:
    archive.draft.write_bytes(b"classes")
    archive.keep()
    path: Path = getattr(archive, which)
    path.chmod(path.stat().st_mode | 0o020)
    assert not archive.usable


def test_each_pyspark_has_its_own(archive: ClassArchive) -> None:
    assert find_class_archive(PACKAGE, "4.1") == archive
    assert find_class_archive(PACKAGE, "4.2") != archive
    assert find_class_archive(PACKAGE.with_name("other"), "4.1") != archive


def test_a_relative_cache_directory_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert find_class_archive(PACKAGE, "4.1") is None
