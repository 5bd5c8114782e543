"""Explains why a Spark job failed, in one line instead of pages of Java."""

import re
from collections.abc import Callable

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


def explain(error: BaseException, output: str = "", has_ended: bool = False) -> FoldmqError:
    """Return the error that explains one of PySpark or Py4J.

    ``output`` is the last one of the JVM, ``has_ended``: it has ended by itself.
    """
    if isinstance(error, FoldmqError):
        return error
    text = str(error)
    meaning = marked_errors.find_error(text) or _known(text)
    if meaning is None and has_ended:
        meaning = marked_errors.find_error(output) or _known(output) or _ended()
    return meaning or SparkError(f"Spark failed: {_cause(text) or type(error).__name__}")


def not_started(output: str) -> FoldmqError:
    """Return why Spark's JVM did not start, from its output."""
    meaning = _known(output)
    if meaning is not None:
        return meaning
    lines = [line.strip() for line in output.splitlines() if not _NOISE.match(line)]
    why = _short(lines[0]) if lines else "it exits immediately; -v shows its output"
    return NoSpark(f"Spark does not start: {why.removeprefix(_MAIN)}")


def _known(text: str) -> FoldmqError | None:
    for pattern, make in _MESSAGES:
        match = re.search(pattern, text)
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


def _little_memory(match: re.Match[str]) -> FoldmqError:
    least = -(-int(match[1]) // 2**20)
    return BadSetting(f"too little memory for Spark: set --memory to at least {least}m")


def _says(kind: type[FoldmqError], text: str) -> Callable[[re.Match[str]], FoldmqError]:
    """Return a function that makes an error of a match; ``{1}`` in its text is the first group."""

    def make(match: re.Match[str]) -> FoldmqError:
        return kind(text.format(*(_short(part.strip()) for part in (match[0], *match.groups()))))

    return make


_MESSAGES: tuple[tuple[str, Callable[[re.Match[str]], FoldmqError]], ...] = (
    (
        r"jdk\.incubator\.vector not found",
        _says(NoJava, "this Java lacks a module that Spark needs: install a complete Java"),
    ),
    (
        r"Invalid maximum heap size[^\n]*|Could not reserve enough space[^\n]*",
        _says(BadSetting, "--memory is more than this machine has ({0})"),
    ),
    (r"ModuleNotFoundError: No module named '([\w.]+)'", _missing),
    (
        r"PYTHON_VERSION_MISMATCH\]\D*([\d.]+\d)\D+([\d.]+\d)",
        _says(
            NoPackage, f"the executors have another Python ({{1}}) than the driver ({{2}}): {_SHIP}"
        ),
    ),
    (
        r'Cannot run program "([^"]*)"',
        _says(NoPackage, f"the executors cannot run {{1}}: {_SHIP}"),
    ),
    (
        r"[Nn]o space left on device|Disk quota exceeded",
        _says(
            OutOfDisk,
            "no space left for Spark's temporary files or its output: free disk space, or set "
            "--conf spark.local.dir=DIR to a larger disk",
        ),
    ),
    (
        r"OutOfMemoryError|GC overhead limit|Cannot allocate memory|MemoryError",
        _says(OutOfMemory, "Spark ran out of memory: raise --memory (default: 2g)"),
    ),
    (r"System memory \d+ must be at least (\d+)", _little_memory),
    (
        r"Python worker exited unexpectedly|SparkException: Python worker",
        _says(
            OutOfMemory,
            "a Python worker of Spark ended during the job, perhaps killed for lack of memory: "
            "fewer cores (--master 'local[1]') need less",
        ),
    ),
    (
        r"\[PATH_ALREADY_EXISTS\] Path (?:file:)?(\S+) already exists",
        _says(NotWritable, "{1} already exists: choose another path"),
    ),
    (
        r'No FileSystem for scheme "([^"]*)"',
        _says(BadSetting, f"Spark has no file system for {{1}}://: {_DOCS}"),
    ),
    (
        r"Mkdirs failed to create \S+|\S+ \(Permission denied\)",
        _says(NotWritable, "cannot write: {0}"),
    ),
    (
        r"Could not parse Master URL: '([^']*)'",
        _says(BadSetting, "not a master of Spark: {1}; for example local[4]"),
    ),
    (r"Master must either be [^\n]*", _says(BadSetting, "not a master of Spark: {0}")),
    (
        r"INVALID_CONF_VALUE\S* The value '([^']*)' in the config \"([^\"]*)\"",
        _says(BadSetting, "Spark rejects {2}={1}: check --conf"),
    ),
    (
        r"All masters are unresponsive",
        _says(NoCluster, "the master of the Spark cluster does not answer: check --master"),
    ),
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
    match = _CONDITION.match(line)
    return line if match is None else match[1]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _short(line: str) -> str:
    shown = "".join(letter if letter.isprintable() else "?" for letter in line)
    return shown if len(shown) <= _LONGEST else shown[:_LONGEST] + "..."
