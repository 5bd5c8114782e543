"""What can go wrong around Spark; each is one line for a person, with its exit code."""

# ruff: noqa: N818 - named for the condition that is found, as in eventstore.errors

from eventstore.display import escaped
from protocol.errors import FoldmqError


class SparkError(FoldmqError):
    """A job of Spark did not end well, for a reason that foldmq cannot name better."""

    exit_code = 70


class NoSpark(SparkError):
    """PySpark, or what it needs in Python, is not installed or cannot be started."""

    exit_code = 69


class NoJava(NoSpark):
    """There is no Java that Spark can run on."""


class NoCluster(NoSpark):
    """The cluster cannot be reached, or gives no executors."""


class NoPackage(NoSpark):
    """The executors do not have foldmq, or have another Python."""


class OutOfMemory(SparkError):
    """Spark had less memory than it needed."""

    exit_code = 71


class OutOfDisk(SparkError):
    """There is no room for what Spark keeps on disk while it works, or for what it writes."""

    exit_code = 74


def disk_failed(error: OSError) -> OutOfDisk:
    """Return that Spark cannot keep on disk what it works with."""
    why = error.strerror or type(error).__name__
    what = "" if error.filename is None else f"{escaped(str(error.filename), 4096)}: "
    return OutOfDisk(
        f"Spark cannot keep on disk what it works with: {what}{escaped(why, 4096)}; let TMPDIR, or "
        "--conf spark.local.dir=DIR, name another disk"
    )


class BadSetting(SparkError):
    """A setting of Spark, or the master, is not one."""

    exit_code = 2


class NotWritable(SparkError):
    """What a job was to write cannot be written there."""

    exit_code = 73


INSTALL = "pip install 'foldmq[spark]' (or: make spark, in a checkout)"
"""How to install the packages that the jobs need."""

NOT_INSTALLED = f"Spark is not installed: {INSTALL}"
"""The message when PySpark, or a package that comes with it, is missing."""
