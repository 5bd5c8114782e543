"""Builds and checks a release: ``make release``. It publishes nothing.

From the source distribution it builds a wheel with compiled modules for each Python here, and one
of plain Python. twine and check-wheel-contents check the files; each wheel is installed into a new
environment, where the README's block and a conformance test run against it, and uninstalled again.
The last lines name what was not tried on this machine. The files are in ``dist``.

A release of 1.0 or later freezes the golden logs: their digests in ``FROZEN`` never change.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""The Pythons that get a wheel with compiled modules; the workflow builds all of them."""
MACHINES = ("x86_64", "aarch64")
CHECKERS = ("build", "check-wheel-contents", "twine")
CONFORMANCE = (
    "tests/conformance/test_qos1.py::test_pubacks_come_in_the_order_of_the_messages",
    "tests/conformance_mqtt5/test_connack.py",
)
TOP_LEVEL = {"foldmq", "foldmq.py", "foldmq_packages", "foldmq_packages.pth", "pyspark_foldmq.py"}
"""What a wheel puts into ``site-packages``; ``foldmq-VERSION.dist-info`` without its version."""
STARTUP_SECONDS = 60
GOLDEN = ROOT / "tests/eventstore/golden"
FIRST_FROZEN = 1
"""The first major version whose release freezes golden logs."""


class Failed(Exception):  # noqa: N818 - the release failed
    """A step of the release failed."""


def main() -> int:
    """Build and check; return the exit code."""
    version = project_version()
    pythons = available_pythons()
    with tempfile.TemporaryDirectory(prefix="foldmq-release-") as temporary:
        work = Path(temporary)
        try:
            for name in freeze_golden_logs(GOLDEN, version):
                _say(f"frozen golden log {name}: commit {GOLDEN.relative_to(ROOT)}/FROZEN")
            sdist = build_sdist(work)
            wheels = {name: build_wheel(sdist, python, "1") for name, python in pythons.items()}
            newest = [*pythons][-1]
            wheels["plain"] = build_wheel(sdist, pythons[newest], "0")
            check_files(work, [sdist, *wheels.values()])
            for name, wheel in wheels.items():
                try_wheel(work / name, pythons.get(name, pythons[newest]), wheel, version)
        except Failed as error:
            _say(f"failed: {error}")
            return 1
    for path in sorted(DIST.iterdir()):
        _say(f"built {path.relative_to(ROOT)}, {path.stat().st_size / 1e6:.1f} MB")
    for line in untried(pythons):
        _say(f"not tried here: {line}")
    return 0


def project_version() -> str:
    """Return the version of pyproject.toml, the one place where it is."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        version: str = tomllib.load(file)["project"]["version"]
    return version


def frozen_golden_logs(folder: Path) -> dict[str, str]:
    """Return file name -> SHA-256 of the golden logs that releases froze.

    ``FROZEN`` has a line for each, as sha256sum writes them, below a line with the version.
    """
    lines = (folder / "FROZEN").read_text(encoding="utf-8").splitlines()
    found = (line.split("  ", 1) for line in lines if line and not line.startswith("#"))
    return {name: digest for digest, name in found}


def changed_golden_logs(folder: Path) -> list[str]:
    """Return the frozen golden logs that are missing or were changed."""
    frozen = frozen_golden_logs(folder)
    return [name for name, digest in frozen.items() if _digest(folder / name) != digest]


def freeze_golden_logs(folder: Path, version: str) -> list[str]:
    """Add the golden logs that are not frozen yet to ``FROZEN``; return their names.

    Raises Failed if one that is frozen has changed: an earlier release wrote such logs.
    """
    changed = changed_golden_logs(folder)
    if changed:
        raise Failed(f"frozen golden logs were changed: {', '.join(changed)}: restore them")
    frozen = frozen_golden_logs(folder)
    new = sorted(path.name for path in folder.glob("*.records") if path.name not in frozen)
    if not new or int(version.partition(".")[0]) < FIRST_FROZEN:
        return []
    with (folder / "FROZEN").open("a", encoding="utf-8") as file:
        file.write(f"# {version}\n")
        file.writelines(f"{_digest(folder / name)}  {name}\n" for name in new)
    return new


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def available_pythons() -> dict[str, Path]:
    """Return version -> interpreter of those in PATH and of pyenv that can compile."""
    pythons: dict[str, Path] = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for name in PYTHONS:
        places = [shutil.which(f"python{name}"), *pyenv.glob(f"{name}.*/bin/python{name}")]
        for place in [place for place in places if place is not None]:
            check = "import ensurepip, os, sysconfig as s; os.stat(s.get_path('include'))"
            done = subprocess.run(  # noqa: S603 - an interpreter of this machine
                [place, "-c", check], capture_output=True, check=False
            )
            if done.returncode == 0:
                pythons[name] = Path(place)
                break
    return pythons


def untried(pythons: dict[str, Path]) -> list[str]:
    """Return what only the workflow builds or tries."""
    here = platform.machine()
    lines = [f"CPython {name}: none on this machine" for name in PYTHONS if name not in pythons]
    lines += [f"{machine}: this machine is {here}" for machine in MACHINES if machine != here]
    return [
        *lines,
        "manylinux wheels, the ones that an index accepts: .github/workflows/release.yml",
        "publishing: only the workflow can, by trusted publishing",
    ]


def build_sdist(work: Path) -> Path:
    """Build the source distribution with the tools of the release, which are installed first."""
    _say("building the source distribution")
    _run(sys.executable, "-m", "venv", work / "tools")
    _run(work / "tools/bin/python", "-m", "pip", "install", *CHECKERS)
    shutil.rmtree(DIST, ignore_errors=True)
    _run(work / "tools/bin/python", "-m", "build", "--sdist", "--outdir", DIST, ROOT)
    return next(DIST.glob("*.tar.gz"))


def build_wheel(sdist: Path, python: Path, compiled: str) -> Path:
    """Build a wheel from the source distribution; return its path."""
    _say(f"building a wheel with {python}, {'compiled' if compiled == '1' else 'plain'} modules")
    before = {*DIST.iterdir()}
    _run(
        *(python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", DIST, sdist),
        FOLDMQ_COMPILE=compiled,
    )
    (wheel,) = {*DIST.iterdir()} - before
    with zipfile.ZipFile(wheel) as archive:
        names = {name.partition("/")[0].partition("-")[0] for name in archive.namelist()}
    if names != TOP_LEVEL:
        raise Failed(f"{wheel.name} would put {', '.join(sorted(names))} into site-packages")
    return wheel


def check_files(work: Path, files: list[Path]) -> None:
    """Check metadata and contents."""
    _say("twine check, check-wheel-contents")
    _run(work / "tools/bin/twine", "check", "--strict", *files)
    # W009, several names in site-packages: foldmq.py says why.
    ignored = "--ignore=W009"
    wheels = [path for path in files if path.suffix == ".whl"]
    _run(work / "tools/bin/check-wheel-contents", ignored, *wheels)


def try_wheel(folder: Path, python: Path, wheel: Path, version: str) -> None:
    """Install the wheel into a fresh environment, try it, and uninstall it."""
    _say(f"trying {wheel.name}")
    _run(python, "-m", "venv", folder / ".venv")
    inside = folder / ".venv/bin"
    _run(inside / "python", "-m", "pip", "install", wheel)
    _run(inside / "python", "-m", "pip", "check")
    build = json.loads(_run(inside / "foldmq", "version", "--json", directory=folder))
    if build["version"] != version or build["compiled"] != ("none-any" not in wheel.name):
        raise Failed(f"foldmq version says {build}")
    try_readme(folder)
    try_conformance(folder)
    _run(inside / "python", "-m", "pip", "uninstall", "--yes", "foldmq")
    left = [str(path) for path in (folder / ".venv").rglob("*foldmq*") if not path.is_dir()]
    if left:  # pip leaves an empty folder
        raise Failed(f"uninstalling leaves {', '.join(left[:5])}")


def try_readme(folder: Path) -> None:
    """Run the README's 60 seconds; its output must be the one that follows it there."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block, after = re.findall(r"^```sh\n(.*?)^```$(.*?)^## ", text, re.MULTILINE | re.DOTALL)[0]
    expected = [line.strip() for line in after.splitlines() if line.startswith("    ")]
    port = str(_free_port())
    script = f"export FOLDMQ_WEB=off FOLDMQ_METRICS=off\n{block.replace('11883', port)}"
    printed = _run("bash", "-c", script, directory=folder).splitlines()
    if printed != expected:
        raise Failed(f"the README's block printed {printed}")


def try_conformance(folder: Path) -> None:
    """Run a conformance test of MQTT 3.1.1 and one of MQTT 5 against the installed broker."""
    port = _free_port()
    serve = [folder / ".venv/bin/foldmq", "serve", "--listen", f"127.0.0.1:{port}"]
    serve += ["--data-dir", folder / "data", "--web", "off", "--metrics", "off"]
    with (folder / "broker.log").open("wb") as log:
        begun = time.monotonic()
        broker = subprocess.Popen(  # noqa: S603 - the broker under test
            [*map(str, serve)], stderr=log, cwd=folder, env=_environment()
        )
        try:
            while not _accepts(port):
                if broker.poll() is not None or time.monotonic() - begun > STARTUP_SECONDS:
                    raise Failed((folder / "broker.log").read_text(encoding="utf-8"))
                time.sleep(0.05)
            _say(f"foldmq serve accepts connections after {time.monotonic() - begun:.1f} s")
            tests = [sys.executable, "-m", "pytest", "--numprocesses=0", "-m", "not drill"]
            _run(*tests, *CONFORMANCE, FOLDMQ_TEST_BROKER=f"127.0.0.1:{port}", directory=ROOT)
        finally:
            broker.terminate()
            broker.wait()


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _environment(**settings: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FOLDMQ_", "PYTHON"))
    }
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **settings}


def _run(*command: str | Path, directory: Path | None = None, **settings: str) -> str:
    """Run a command, return its output; raise Failed with its last lines."""
    words = [str(word) for word in command]
    done = subprocess.run(  # noqa: S603 - commands of this file
        words,
        capture_output=True,
        text=True,
        check=False,
        cwd=directory or tempfile.gettempdir(),
        env=_environment(**settings),
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
        raise Failed(f"{' '.join(words)[:300]}: exit code {done.returncode}\n{last}")
    return done.stdout


def _say(text: str) -> None:
    sys.stdout.write(f"release: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
