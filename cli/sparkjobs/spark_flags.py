"""The flags of every ``foldmq spark`` command: which log, and where and how Spark runs."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from cli.logsource import SourceFlags, with_source_flags
from eventstore.errors import UsageError

MASTER = "local[*]"
MEMORY = "2g"

_VERBOSE = "Say where the log is read, and let Spark's own logs through."


@dataclass(frozen=True, slots=True)
class SparkFlags:
    """What was asked for, but for what a job takes itself."""

    source: SourceFlags
    archive: str | None = None
    """A directory that the log was archived to, or its URI; None: there is none."""
    master: str | None = None
    memory: str | None = None
    conf: dict[str, str] = field(default_factory=dict)

    @property
    def of_session(self) -> bool:
        """A flag was given that says how to start Spark."""
        return self.master is not None or self.memory is not None or bool(self.conf)


_Archive = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="DIR",
        help="Read this archive; with --data-dir or --nats-url given, and the log behind it.",
    ),
]
_Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="MASTER",
        help=f"Where Spark runs: local[N] with N cores, spark://..., yarn, k8s://... "
        f"[default: {MASTER}]",
        show_default=False,
    ),
]
_Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help=f"Heap of Spark's JVM; its Python workers come on top. [default: {MEMORY}]",
        show_default=False,
    ),
]
_Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; may be repeated."),
]
_OWN: dict[str, object] = {"master": _Master, "memory": _Memory, "conf": _Conf}


def with_spark_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Return ``command``, whose first parameter is a SparkFlags, the flags that make one."""
    return _with_flags(command, {"archive": _Archive, **_OWN})


def with_spark_flags_but_archive(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags to a command that takes no archive, or one of its own."""
    return _with_flags(command, _OWN)


def _with_flags(command: Callable[..., None], added: dict[str, object]) -> Callable[..., None]:
    def run(source: SourceFlags, **values: Any) -> None:
        _require_spark(values["master"] or MASTER, values["memory"] or MEMORY)
        conf = _conf(values.pop("conf"))
        archive = values.pop("archive") if "archive" in added else None
        flags = SparkFlags(source, archive, values.pop("master"), values.pop("memory"), conf)
        command(flags, **values)

    own = list(inspect.signature(command).parameters.values())[1:]
    first = inspect.Parameter("source", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [first, *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own)]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in added.items()
    ]
    made: Any = functools.wraps(command)(run)
    made.__signature__ = inspect.Signature(parameters)
    return with_source_flags(made, verbose=_VERBOSE)


def _require_spark(master: str, memory: str) -> None:
    """Raise NoSpark, NoJava or BadSetting before anything is loaded that needs Spark."""
    from spark.runtime import check_settings, find_java, is_submitted, require_pyspark

    check_settings(master, memory)
    require_pyspark()
    if not is_submitted():
        find_java()


def _conf(given: list[str] | None) -> dict[str, str]:
    conf: dict[str, str] = {}
    for one in given or ():
        key, equals, value = one.partition("=")
        if not equals or not key.startswith("spark."):
            raise UsageError(f"not a setting of Spark: {one!r}; expected spark.KEY=VALUE")
        conf[key] = value
    return conf
