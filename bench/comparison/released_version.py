"""Checks out the released version that foldmq is compared with.

It is in a directory of its own and runs with the interpreter and the packages of the version that
is measured, so that nothing but foldmq differs. It is the last tag ``v...`` before this commit,
or, as long as there is no tag, the commit in the file ``bench/released_version.txt``: version and
commit in one line.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

from bench.brokers.broker_processes import ROOT, BenchError, Released, revision
from bench.measuring.progress import say

_COMPILED_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
_PACKAGES = "foldmq_packages/"
"""The folder of a wheel that has the packages; earlier wheels had none."""
RECORDED = ROOT / "bench" / "released_version.txt"


def last() -> tuple[str, str]:
    """Return name and commit of the last release; raises BenchError where none is known."""
    tag = _git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^")
    if tag is not None:
        return tag.removeprefix("v"), tag
    try:
        name, commit = RECORDED.read_text("utf-8").split()
    except (OSError, ValueError):
        raise BenchError(
            "no tag v... and no line 'VERSION COMMIT' in bench/released_version.txt say what "
            "the last release is: name it with --released COMMIT or --released DIRECTORY"
        ) from None
    return name, commit


@contextlib.contextmanager
def checked_out(given: str | None, directory: Path) -> Iterator[None]:
    """Make ``Released`` run ``given``, a directory or a commit, or else the last release."""
    if given is not None and (Path(given) / "cli" / "main.py").is_file():
        name = "of another directory"
        if _is_compiled() and not any(Path(given, "actors").rglob(f"*{_COMPILED_SUFFIX}")):
            # Its sources take the place of the compiled modules of the version that is measured.
            name += ", plain Python"
        _use(Path(given).resolve(), name, revision(Path(given)))
        yield
        return
    name, commit = (given, given) if given is not None else last()
    with tempfile.TemporaryDirectory(prefix="released-", dir=directory) as place:
        _extract(commit, Path(place))
        if _is_compiled():
            _compile(Path(place))
        _use(Path(place), name, _git("rev-parse", "--short", f"{commit}^{{commit}}") or commit)
        yield


def _is_compiled() -> bool:
    """Return whether the version that is measured runs with compiled modules."""
    return bool(importlib.util.find_spec("foldmq_compiled")) and not os.environ.get("FOLDMQ_PLAIN")


def _use(root: Path, name: str, commit: str) -> None:
    Released.root = root
    Released.title = f"foldmq {name}"
    Released.commit = commit


def _git(*words: str) -> str | None:
    command = ["git", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout.strip()


def _extract(commit: str, place: Path) -> None:
    command = ["git", "archive", "--format=tar", commit]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise BenchError(
            f"{commit} is neither a directory with foldmq's source nor a commit of this clone "
            "(a shallow one lacks most: git fetch --unshallow --tags); name another with "
            "--released, or leave the release out: --beside mosquitto,nats"
        )
    subprocess.run(["tar", "--extract", "--directory", place], input=done.stdout, check=True)
    if not (place / "cli" / "main.py").is_file():
        raise BenchError(f"{commit} of this clone has no cli/main.py")


def _compile(place: Path) -> None:
    """Put the compiled modules that a version lists beside their sources.

    Raises BenchError where that fails: plain Python would flatter what is compared with it.
    """
    project = place / "pyproject.toml"
    if not project.exists():
        return
    settings = tomllib.loads(project.read_text("utf-8"))
    if not settings.get("tool", {}).get("foldmq", {}).get("compiled"):
        return
    say("compiling the released version, which takes one to three minutes")
    with tempfile.TemporaryDirectory(dir=place) as wheels:
        command = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run(
            [*command, "--wheel-dir", wheels, str(place)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["pip said nothing"]
            raise BenchError(f"the released version cannot be compiled: {lines[-1][:200]}")
        with zipfile.ZipFile(next(Path(wheels).glob("*.whl"))) as archive:
            compiled = compiled_beside_sources(archive, place)
    if not compiled:
        raise BenchError("the released version was not compiled, although this one is")


def compiled_beside_sources(archive: zipfile.ZipFile, place: Path) -> list[str]:
    """Extract the compiled modules of a wheel; return those that now take their source's place."""
    modules = []
    for entry in archive.infolist():
        if entry.filename.endswith(_COMPILED_SUFFIX):
            entry.filename = entry.filename.removeprefix(_PACKAGES)
            modules.append(archive.extract(entry, place).removesuffix(_COMPILED_SUFFIX))
    return [module for module in modules if Path(f"{module}.py").exists()]
