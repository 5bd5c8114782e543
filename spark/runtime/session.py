"""Spark sessions: started by foldmq on this machine or a cluster, or the active one.

A session started by `spark-submit` or a notebook is used unchanged.
"""

import atexit
import contextlib
import importlib.util
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.errors import FoldmqError
from spark.runtime.errors import (
    BadSetting,
    NoSpark,
    SparkError,
    disk_failed,
    install_command,
    not_installed,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.runtime.jvm import Jvm


APP_NAME = "foldmq"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

_LOCAL = re.compile(r"local(?:\[(\*|[1-9][0-9]*)(?:,[0-9]+)?\])?")
_CLUSTER = re.compile(r"spark://.|yarn$|k8s://.|local-cluster\[")
_MEMORY = re.compile(r"[1-9][0-9]*[kmgtKMGT]?b?")
_LOGGERS = ("py4j", "DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers of PySpark that repeat what its exceptions say."""
_NEEDED = ("pyspark", "pyarrow", "pandas", "msgspec")
_PARTITIONS_PER_CORE = 4
# Arrow itself creates the batches: Java need not check the bounds of each cell again.
_JAVA_OPTIONS = (
    "-XX:-UsePerfData -Darrow.enable_unsafe_memory_access=true "
    "-Darrow.enable_null_check_for_get=false"
)
_SHORT_BYTES = 1 << 30
"""Logs up to this size are read in less time than Java takes to optimize its code fully."""
_SHORT_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
# One thread collects garbage in less processor time than several; and Java's usual collector marks
# all objects whenever a large batch of Arrow is allocated, which took more than all other work.
_SERIAL = "-XX:+UseSerialGC"
_TINY_BYTES = 16 << 20
"""Logs up to this size are read in less time than Spark takes to compile and improve its plans."""
_TINY_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
_TOP_PAD = 64 << 20
"""Bytes of memory that glibc allocates at once, and keeps; other libraries ignore the setting."""
_OF_EVERY_SESSION = {"spark.sql.session.timeZone": "UTC"}
"""Settings required by the jobs; set in any session, including those started by others."""

_jvm: "Jvm | None" = None
"""The JVM that this process started."""


def spark_session(
    master: str = "local[*]",
    memory: str = "2g",
    conf: Mapping[str, str] | None = None,
    *,
    verbose: bool = False,
    log_bytes: int | None = None,
) -> "SparkSession":
    """Return the active session, or start one.

    ``master`` is the address of Spark, ``memory`` the maximum heap of a JVM (``2g``): that of this
    process if Spark runs in it (``local``), else of the driver and each executor. ``conf`` takes
    precedence over foldmq's own settings. ``verbose`` lets Spark's own logs through to stderr.
    ``log_bytes`` is the size of what a job reads, if there is one: for a small log Java and Spark
    compile less.

    Raises NoJava, NoSpark or BadSetting.
    """
    require_pyspark()
    check_settings(master, memory)
    if not verbose:
        _quieten()
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None and is_submitted():
        session = SparkSession.builder.appName(APP_NAME).getOrCreate()
    if session is None:
        return _started(master, memory, conf or {}, verbose=verbose, log_bytes=log_bytes)
    for key, value in _OF_EVERY_SESSION.items():
        session.conf.set(key, value)
    return session


@contextlib.contextmanager
def running_session(
    master: str = "local[*]",
    memory: str = "2g",
    conf: Mapping[str, str] | None = None,
    *,
    verbose: bool = False,
    log_bytes: int | None = None,
) -> Iterator["SparkSession"]:
    """Yield a session as `spark_session` does, and end it with its JVM; immediately after Ctrl-C.

    Errors of Spark in the block are raised as the FoldmqError that explains them.
    """
    require_pyspark()
    session = spark_session(master, memory, conf, verbose=verbose, log_bytes=log_bytes)
    with _ended_by_errors():
        yield session
        session.stop()
    _end()


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Raise errors of Spark in the block as the FoldmqError that explains them.

    If Spark has ended, its errors are left unchanged.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException, OSError) as error:
        if isinstance(error, BrokenPipeError) or not _works():
            raise
        raise _meant(error) from error


def _works() -> bool:
    """Return whether Spark answers."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    context = SparkContext._active_spark_context  # noqa: SLF001
    try:
        return context is not None and not context._jsc.sc().isStopped()  # noqa: SLF001
    except (Py4JError, OSError):
        return False


def kill_jvm() -> None:
    """Kill the JVM that this process started, if any; calls that wait for Spark fail."""
    if _jvm is not None:
        _jvm.abandon()


def is_submitted() -> bool:
    """Return whether `spark-submit` runs this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_local(master: str) -> bool:
    """Return whether Spark runs in one process on this machine."""
    return _LOCAL.fullmatch(master) is not None


def check_settings(master: str, memory: str) -> None:
    """Raise BadSetting for invalid settings of Spark."""
    if not is_local(master) and not _CLUSTER.match(master):
        raise BadSetting(
            f"not a master of Spark: {master!r}; expected one such as local[4], "
            "spark://HOST:7077, yarn or k8s://https://HOST"
        )
    if not _MEMORY.fullmatch(memory):
        raise BadSetting(f"not a size of memory: {memory!r}; expected one such as 2g or 900m")


def require_pyspark() -> None:
    """Raise NoSpark unless PySpark and its Python dependencies are installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if "pyspark" in missing:
        raise NoSpark(not_installed())
    if missing:
        raise NoSpark(f"Spark needs the package {missing[0]}: {install_command()}")


def _started(
    master: str,
    memory: str,
    conf: Mapping[str, str],
    *,
    verbose: bool,
    log_bytes: int | None,
) -> "SparkSession":
    global _jvm
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from spark.runtime.jvm import Jvm

    jvm = _jvm = Jvm(verbose=verbose)
    atexit.register(jvm.kill)
    settings = SparkConf(loadDefaults=False)
    level = {"spark.log.level": "INFO"} if verbose else {}
    own = _settings(master, memory, jvm.directory, log_bytes)
    for key, value in {**own, **level, **conf}.items():
        settings.set(key, value)
    with _ended_by_errors():
        session = SparkSession(jvm.launch(settings, _environment(master, jvm.directory)))
        if is_local(master) and SHUFFLE_PARTITIONS not in conf:
            # Not in the settings of the context, where it would be the operator's choice.
            session.conf.set(SHUFFLE_PARTITIONS, _PARTITIONS_PER_CORE * _cores(master))
        return session


def set_shuffle_partitions(session: "SparkSession", count: int) -> int:
    """Set the number of partitions of shuffles, unless the operator has; return the number."""
    chosen: str | None = session.sparkContext.getConf().get(SHUFFLE_PARTITIONS)
    if chosen is not None:
        return int(chosen)
    session.conf.set(SHUFFLE_PARTITIONS, count)
    return count


def _settings(master: str, memory: str, directory: Path, log_bytes: int | None) -> dict[str, str]:
    settings = {
        "spark.master": master,
        "spark.app.name": APP_NAME,
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # What is kept is read a few times: compressing it takes longer than that.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
        **_OF_EVERY_SESSION,
    }
    if not is_local(master):
        # The driver only plans: compiling that well would take longer than running it.
        driver = {"spark.driver.extraJavaOptions": _SHORT_JAVA_OPTIONS}
        return {**settings, **driver, "spark.executor.memory": memory}
    options = _JAVA_OPTIONS
    if log_bytes is not None and log_bytes <= _SHORT_BYTES:
        options += f" {_SHORT_JAVA_OPTIONS} {_SERIAL}"
    if log_bytes is not None and log_bytes <= _TINY_BYTES:
        settings |= _TINY_SETTINGS
    return {
        **settings,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(directory),
        # Executors of a cluster may lack foldmq, which is reported when they first need it.
        "spark.python.daemon.module": "spark.worker_daemon",
        "spark.driver.extraJavaOptions": f'"-Djava.io.tmpdir={directory}" {options}',
    }


def _environment(master: str, directory: Path) -> dict[str, str | None]:
    """Return the changes to this process's environment for the JVM.

    ``directory`` belongs to this session alone.
    """
    import pyspark

    if not is_local(master):
        return {
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
    own = Path(pyspark.__file__).parent
    bundled = (own / "jars").is_dir()
    return {
        # The workers must run the Python of this process, whatever is first in PATH.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Another Spark would not understand this PySpark.
        "SPARK_HOME": str(_home(own, directory)) if bundled else os.environ.get("SPARK_HOME"),
        # Otherwise Spark looks up the address of its host's name, which takes long without a DNS.
        "SPARK_LOCAL_IP": "127.0.0.1",
        # The JVM that puts together the command for the one with Spark.
        "SPARK_LAUNCHER_OPTS": f"{_SHORT_JAVA_OPTIONS} {_SERIAL}",
        # It would override spark.local.dir.
        "SPARK_LOCAL_DIRS": None,
        # Otherwise memory for the workers' batches would be released and allocated anew each time.
        "MALLOC_TOP_PAD_": str(_TOP_PAD),
    }


def _home(own: Path, directory: Path) -> Path:
    """Make a home for Spark with its programs and its jars, but without PySpark in a zip file.

    Spark's workers would import it from there and compile it each time: half a second in each of
    the eight processes of a first job. This way they find the installed one.
    """
    home = directory / "home"
    home.mkdir(exist_ok=True)
    for name in ("bin", "jars"):
        with contextlib.suppress(FileExistsError):
            (home / name).symlink_to(own / name)
    return home


def _cores(master: str) -> int:
    match = _LOCAL.fullmatch(master)
    count = match[1] if match is not None else None
    if count is None:
        return 1
    return (os.cpu_count() or 1) if count == "*" else int(count)


def _quieten() -> None:
    """Silence PySpark's output in this process; errors arrive as exceptions."""
    # Warnings name the caller's module, which may be any.
    warnings.simplefilter("ignore", FutureWarning)
    warnings.filterwarnings("ignore", module=r"(pyspark|py4j|pandas|pyarrow)(\..*)?")
    for logger in _LOGGERS:
        logging.getLogger(logger).setLevel(logging.CRITICAL + 1)
    root = logging.getLogger()
    if _not_of_py4j not in root.filters:
        root.addFilter(_not_of_py4j)


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """Return whether a line of the root logger is not from Py4J, which logs there too."""
    return "py4j" not in record.pathname


@contextlib.contextmanager
def _ended_by_errors() -> Iterator[None]:
    """End the JVM at once after any exception; translate errors of Spark."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException, OSError) as error:
        output, has_ended = _last_words()
        if isinstance(error, BrokenPipeError) and not has_ended:  # the reader of our output is gone
            _end(quickly=True)
            raise
        # It may query the JVM, so before that is ended.
        meant = _meant(error, output, has_ended=has_ended)
        _end(quickly=True)
        raise meant from error
    except BaseException:
        _end(quickly=True)
        raise


def _meant(error: Exception, output: str = "", *, has_ended: bool = False) -> FoldmqError:
    """Return the explanation of an error of Spark, or of the disk on which PySpark works."""
    from spark.runtime.explain_failure import explain

    meant = explain(error, output, has_ended)
    if not isinstance(error, OSError) or isinstance(error, ConnectionError):
        return meant
    return disk_failed(error) if type(meant) is SparkError and error.errno is not None else meant


def _last_words() -> tuple[str, bool]:
    """Return the last output of this process's JVM, and whether it has ended by itself."""
    if _jvm is None:
        return "", False
    return _jvm.said, _jvm.gateway is not None and not _jvm.running


def _end(*, quickly: bool = False) -> None:
    global _jvm
    if _jvm is None:
        return
    if quickly:
        _jvm.kill()
    else:
        _jvm.end()
    atexit.unregister(_jvm.kill)
    _jvm = None
