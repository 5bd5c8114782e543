"""Explains why a Spark job failed, in one line instead of pages of Java."""

import re
from collections.abc import Callable
from typing import TypeAlias

from protocol.errors import FoldmqError
from spark.runtime import marked_errors
from spark.runtime.errors import (
    BadSetting,
    NoCluster,
    NoJava,
    NoPackage,
    NoSpark,
    NotWritable,
    OutOfDisk,
    OutOfMemory,
    SparkError,
)

_LONGEST = 300
_CONDITION = re.compile(
    r"(?:org\.apache\.spark\.[\w.]+: )?\[[A-Z0-9_.]+\] (.*?)(?: SQLSTATE: .*)?$"
)
_OURS = ("cli", "eventstore", "projections", "protocol", "spark")
_DOCS = "see docs/spark.md"
_CALLED = "An error occurred while calling "
"""How Py4J begins an error of Java, which follows in the next line."""
_MAIN = 'Exception in thread "main" org.apache.spark.SparkException: '
_NOISE = re.compile(
    r"\s|$|WARNING:|Using Spark's default|Setting default|To adjust|\d\d/\d\d/\d\d |Error occurred"
)
_SHIP = f"ship foldmq and its dependencies with the job, {_DOCS}"

_Known: TypeAlias = tuple[re.Pattern[str], Callable[[re.Match[str]], FoldmqError]]


def explain(error: BaseException, said: str = "", gone: bool = False) -> FoldmqError:
    """Return the error that explains one of PySpark or Py4J.

    ``said`` is the last output of the JVM, ``gone``: it has ended by itself.
    """
    if isinstance(error, FoldmqError):
        return error
    text = str(error)
    found = marked_errors.find_error(text) or _known(text)
    if found is None and gone:
        found = marked_errors.find_error(said) or _known(said) or _ended()
    return found or SparkError(f"Spark failed: {_cause(text) or type(error).__name__}")


def not_started(said: str) -> FoldmqError:
    """Return why Spark's JVM did not start, from its output."""
    known = _known(said)
    if known is not None:
        return known
    lines = [line.strip() for line in said.splitlines() if not _NOISE.match(line)]
    why = _short(lines[0]) if lines else "it exits immediately; -v shows its output"
    return NoSpark(f"Spark does not start: {why.removeprefix(_MAIN)}")


def _known(text: str) -> FoldmqError | None:
    for pattern, make in _TABLE:
        match = pattern.search(text)
        if match is not None:
            return make(match)
    return None


def _ended() -> FoldmqError:
    return OutOfMemory(
        "Spark's JVM ended during the job, perhaps killed for lack of memory: --memory limits its "
        "heap, the Python workers need memory in addition"
    )


def _missing(match: re.Match[str]) -> FoldmqError:
    package = match[1].partition(".")[0]
    what = "foldmq" if package in _OURS else f"the package {package}"
    return NoPackage(f"the executors do not have {what}: {_SHIP}")


def _other_python(match: re.Match[str]) -> FoldmqError:
    return NoPackage(
        f"the executors have another Python ({match[1]}) than the driver ({match[2]}): {_SHIP}"
    )


def _no_python(match: re.Match[str]) -> FoldmqError:
    program = match[1]
    return NoPackage(f"the executors cannot run {_short(program)}: {_SHIP}")


def _no_memory(_match: re.Match[str]) -> FoldmqError:
    return OutOfMemory("Spark ran out of memory: raise --memory (default: 2g)")


def _little_memory(match: re.Match[str]) -> FoldmqError:
    least = -(-int(match[1]) // 2**20)
    return BadSetting(f"too little memory for Spark: set --memory to at least {least}m")


def _worker_gone(_match: re.Match[str]) -> FoldmqError:
    return OutOfMemory(
        "a Python worker of Spark ended during the job, perhaps killed for lack of memory: fewer "
        "cores (--master 'local[1]') need less"
    )


def _no_disk(_match: re.Match[str]) -> FoldmqError:
    return OutOfDisk(
        "no space left for Spark's temporary files or its output: free disk space, or set --conf "
        "spark.local.dir=DIR to a larger disk"
    )


def _there(match: re.Match[str]) -> FoldmqError:
    return NotWritable(f"{_short(match[1])} already exists: choose another path")


def _not_writable(match: re.Match[str]) -> FoldmqError:
    return NotWritable(f"cannot write: {_short(match[0])}")


def _no_scheme(match: re.Match[str]) -> FoldmqError:
    return BadSetting(f"Spark has no file system for {_short(match[1])}://: {_DOCS}")


def _no_master(match: re.Match[str]) -> FoldmqError:
    return BadSetting(f"not a master of Spark: {_short(match[1])}; for example local[4]")


def _bad_master(match: re.Match[str]) -> FoldmqError:
    return BadSetting(f"not a master of Spark: {match[0].strip()}")


def _no_value(match: re.Match[str]) -> FoldmqError:
    return BadSetting(f"Spark rejects {_short(match[2])}={_short(match[1])}: check --conf")


def _no_answer(_match: re.Match[str]) -> FoldmqError:
    return NoCluster("the master of the Spark cluster does not answer: check --master")


def _modules(_match: re.Match[str]) -> FoldmqError:
    return NoJava("this Java lacks a module that Spark needs: install a complete Java")


def _heap(match: re.Match[str]) -> FoldmqError:
    return BadSetting(f"--memory is more than this machine has ({match[0].strip()})")


_TABLE: tuple[_Known, ...] = (
    (re.compile(r"jdk\.incubator\.vector not found"), _modules),
    (re.compile(r"Invalid maximum heap size[^\n]*|Could not reserve enough space[^\n]*"), _heap),
    (re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'"), _missing),
    (re.compile(r"PYTHON_VERSION_MISMATCH\]\D*([\d.]+\d)\D+([\d.]+\d)"), _other_python),
    (re.compile(r'Cannot run program "([^"]*)"'), _no_python),
    (re.compile(r"[Nn]o space left on device|Disk quota exceeded"), _no_disk),
    (
        re.compile(r"OutOfMemoryError|GC overhead limit|Cannot allocate memory|MemoryError"),
        _no_memory,
    ),
    (re.compile(r"System memory \d+ must be at least (\d+)"), _little_memory),
    (re.compile(r"Python worker exited unexpectedly|SparkException: Python worker"), _worker_gone),
    (re.compile(r"\[PATH_ALREADY_EXISTS\] Path (?:file:)?(\S+) already exists"), _there),
    (re.compile(r'No FileSystem for scheme "([^"]*)"'), _no_scheme),
    (re.compile(r"Mkdirs failed to create \S+|\S+ \(Permission denied\)"), _not_writable),
    (re.compile(r"Could not parse Master URL: '([^']*)'"), _no_master),
    (re.compile(r"Master must either be [^\n]*"), _bad_master),
    (
        re.compile(r"INVALID_CONF_VALUE\S* The value '([^']*)' in the config \"([^\"]*)\""),
        _no_value,
    ),
    (re.compile(r"All masters are unresponsive"), _no_answer),
)
"""Message of Spark -> its meaning; the first match applies."""


def _cause(text: str) -> str:
    """Return the most telling line: the last one of Python's traceback, else the first cause."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    traces = [index for index, line in enumerate(lines) if "Traceback (most recent" in line]
    if traces:
        # the code that was run is deeper than the error, whatever its name
        depth = _indent(lines[traces[-1]])
        for line in lines[traces[-1] + 1 :]:
            if _indent(line) <= depth:
                return _short(line.strip())
    lines = [line.strip() for line in lines]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    if causes:
        return _short(causes[-1].removeprefix("Caused by: "))
    if len(lines) > 1 and lines[0].startswith(_CALLED):
        del lines[0]
    return _short(_plain(lines[0].removeprefix(": "))) if lines else ""


def _plain(line: str) -> str:
    """Return the text of one of Spark's error conditions, without its codes."""
    found = _CONDITION.match(line)
    return line if found is None else found[1]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _short(line: str) -> str:
    shown = "".join(letter if letter.isprintable() else "?" for letter in line)
    return shown if len(shown) <= _LONGEST else shown[:_LONGEST] + "..."
