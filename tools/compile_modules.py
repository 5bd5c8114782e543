"""Compiles the modules of this checkout that pyproject.toml lists, for this virtual environment.

Builds the wheel as any installation does (``setup.py``), and puts its compiled modules into
``site-packages/foldmq_compiled``. ``tools/compiled_finder.py``, copied beside it, loads them while
the sources are unchanged. Without a C compiler, or with ``FOLDMQ_COMPILE=0``, foldmq stays plain
Python; the last line on stderr reports the result. With ``FOLDMQ_COMPILE=1`` that is an error.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def main() -> int:
    """Compile and install; return the exit code."""
    from compiled_finder import FOLDER, MANIFEST, digest

    packages = Path(sysconfig.get_path("purelib"))
    folder, hook = packages / FOLDER, packages / "foldmq_compiled.pth"
    hook.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    wanted = os.environ.get("FOLDMQ_COMPILE", "")
    if wanted == "0":
        _say("not compiled (FOLDMQ_COMPILE=0): plain Python")
        return 0
    with (ROOT / "pyproject.toml").open("rb") as file:
        sources = [ROOT / path for path in tomllib.load(file)["tool"]["foldmq"]["compiled"]]
    before = {str(path): digest(path) for path in sources}
    _say(f"compiling {len(sources)} modules, which takes one to three minutes")
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary, "log")
        if not _build_wheel(Path(temporary), output):
            _say(f"not compiled: {_reason(output)}")
            _say("foldmq runs as plain Python, which needs more CPU")
            return int(wanted == "1")
        folder.mkdir()
        files = _unpack(next(Path(temporary).glob("*.whl")), folder)
    if not files:
        folder.rmdir()
        _say("not compiled: there is no C compiler with the headers of Python")
        _say("(on Debian: apt install gcc python3-dev); foldmq runs as plain Python")
        return int(wanted == "1")
    manifest = {"files": files, "sources": before}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    shutil.copyfile(ROOT / "tools/compiled_finder.py", packages / "foldmq_compiled_finder.py")
    hook.write_text("import foldmq_compiled_finder; foldmq_compiled_finder.install()\n")
    _say(f"{len(sources)} modules compiled")
    return 0


def _build_wheel(folder: Path, output: Path) -> bool:
    """Build the wheel into ``folder``; return whether that worked.

    setuptools would put what earlier builds left in ``build/lib*`` into the wheel as well.
    """
    for left in (ROOT / "build").glob("lib*"):
        shutil.rmtree(left, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps"]
    with output.open("wb") as log:
        done = subprocess.run(  # noqa: S603 - pip of this environment
            [*command, "--verbose", "--wheel-dir", str(folder), str(ROOT)],
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return done.returncode == 0


def _unpack(wheel: Path, folder: Path) -> dict[str, str]:
    """Put the compiled modules of a wheel into ``folder``; return module name -> file."""
    files: dict[str, str] = {}
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.namelist():
            if entry.endswith(_SUFFIX):
                name = (
                    entry.removeprefix("foldmq_packages/").removesuffix(_SUFFIX).replace("/", ".")
                )
                files[name] = f"{name}{_SUFFIX}"
                (folder / files[name]).write_bytes(archive.read(entry))
    return files


def _reason(output: Path) -> str:
    """Return the line of a build's output with the error."""
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines()]
    errors = [line for line in lines if "error" in line.lower() and not line.startswith("/")]
    return next(iter(errors), lines[-1] if lines else "pip printed nothing")[:200]


def _say(text: str) -> None:
    sys.stderr.write(f"foldmq: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
