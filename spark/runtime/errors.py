"""Errors around Spark: one line each, with an exit code."""

# ruff: noqa: N818 - named for the condition that is found, as in eventstore.errors

import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

from eventstore.display import escaped
from protocol.errors import FoldmqError


class SparkError(FoldmqError):
    """A Spark job failed for an unknown reason."""

    exit_code = 70


class NoSpark(SparkError):
    """PySpark, or one of its Python dependencies, is not installed or cannot be started."""

    exit_code = 69


class NoJava(NoSpark):
    """No Java suitable for Spark was found."""


class NoCluster(NoSpark):
    """The cluster cannot be reached, or provides no executors."""


class NoPackage(NoSpark):
    """The executors do not have foldmq, or have another Python."""


class OutOfMemory(SparkError):
    """Spark had less memory than it needed."""

    exit_code = 71


class OutOfDisk(SparkError):
    """The disk of Spark's temporary files or of its output is full."""

    exit_code = 74


def disk_failed(error: OSError) -> OutOfDisk:
    """Return the error for a disk that Spark cannot write its temporary files to."""
    why = error.strerror or type(error).__name__
    what = "" if error.filename is None else f"{escaped(str(error.filename), 4096)}: "
    return OutOfDisk(
        f"Spark cannot write its temporary files: {what}{escaped(why, 4096)}; set TMPDIR or "
        "--conf spark.local.dir=DIR to another disk"
    )


class BadSetting(SparkError):
    """A setting of Spark, or the master, is invalid."""

    exit_code = 2


class NotWritable(SparkError):
    """The output of a job cannot be written."""

    exit_code = 73


def install_command(extra: str = "spark") -> str:
    """Return the command that installs the packages of an extra beside this foldmq."""
    try:
        installed = distribution("foldmq")
        origin = json.loads(installed.read_text("direct_url.json") or "{}")
        required = installed.requires or []
    except (PackageNotFoundError, ValueError):
        origin, required = {}, []
    if extra == "spark" and origin.get("dir_info", {}).get("editable"):
        checkout = Path(unquote(urlsplit(origin["url"]).path))
        # make installs into the environment of the checkout, which may be another one.
        if (checkout / "Makefile").is_file() and Path(sys.prefix) == checkout / ".venv":
            return f"make -C {shlex.quote(str(checkout))} spark"
    packages = [
        shlex.quote(requirement.partition(";")[0].strip())
        for requirement in required
        if requirement.partition(";")[2].replace("'", '"').strip() == f'extra == "{extra}"'
    ]
    needed = packages or [shlex.quote(f"foldmq[{extra}]")]
    return f"{shlex.quote(sys.executable)} -m pip install {' '.join(needed)}"


def not_installed() -> str:
    """Return the message when PySpark, or a package that comes with it, is missing."""
    return f"Spark is not installed: {install_command()}"
