"""Finds and checks Java before Spark is started."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from spark.runtime.errors import NoJava

MINIMUM = 17
"""The oldest Java supported by Spark 4."""

_SECONDS = 20.0
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_HELP = (
    f"install Java {MINIMUM} or newer (on Debian: apt install openjdk-{MINIMUM}-jre-headless), "
    "or let JAVA_HOME name it"
)


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java."""

    home: str | None
    """The value for JAVA_HOME; None: unset, as the Java is in PATH."""
    version: int


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the Java of JAVA_HOME, or of PATH if that is not usable.

    Raises NoJava naming the Java that was found.
    """
    wrong = ""
    for home, program in _candidates(environ):
        version = _version_of(program)
        if version is not None and version >= MINIMUM:
            return Java(home, version)
        of_home = f"JAVA_HOME is {home}, and " if home is not None else ""
        what = "does not run" if version is None else f"is Java {version}"
        wrong = wrong or f"{of_home}{program} {what}"
    if wrong:
        raise NoJava(f"Spark needs Java {MINIMUM} or newer, but {wrong}: {_HELP}")
    raise NoJava(f"Spark needs Java, and there is none in PATH: {_HELP}")


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str | None, Path]]:
    home = environ.get("JAVA_HOME")
    if home:
        yield home, Path(home) / "bin" / "java"
    in_path = shutil.which("java", path=environ.get("PATH"))
    if in_path is not None:
        yield None, Path(in_path)


def _version_of(program: Path) -> int | None:
    """Return the major version of a Java; None if it is none, or does not run."""
    try:
        ran = subprocess.run(  # noqa: S603 - the user's own Java
            [program, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search((ran.stderr + ran.stdout).decode(errors="replace"))
    if ran.returncode or match is None:
        return None
    major = int(match[1])
    # Java 8 and older report 1.8.
    return int(match[2]) if major == 1 and match[2] else major
