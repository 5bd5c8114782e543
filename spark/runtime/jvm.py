"""The JVM of a Spark session that this process starts and ends.

PySpark starts the JVM and forgets its process; the output of the JVM goes to the user's terminal.
Here it goes through a pipe whose last output is kept, so that a failure can be explained.
"""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

from spark.runtime.errors import NoSpark, disk_failed
from spark.runtime.explain_failure import not_started
from spark.runtime.java import find_java

_KEPT = 64 * 1024
"""Bytes of the JVM's last output that are kept."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_END_SECONDS = 10.0
"""Seconds that it may take to end."""
_KILL_SECONDS = 2.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Jvm:
    """A JVM for Spark, with its own directory for Spark's files.

    ``verbose`` leaves its output on stderr. Raises OutOfDisk if the directory cannot be made.
    """

    def __init__(self, *, verbose: bool = False) -> None:
        try:
            self.directory = Path(tempfile.mkdtemp(prefix="foldmq-spark-"))
        except OSError as error:
            raise disk_failed(error) from None
        self.gateway: JavaGateway | None = None
        self._verbose = verbose
        self._process: subprocess.Popen[bytes] | None = None
        self._output = bytearray()
        self._listener: threading.Thread | None = None

    @property
    def said(self) -> str:
        """The last output of the JVM; empty if it goes to stderr."""
        return bytes(self._output).decode(errors="replace")

    @property
    def running(self) -> bool:
        """Whether the JVM was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def launch(self, conf: SparkConf, environment: Mapping[str, str | None]) -> SparkContext:
        """Start the JVM and Spark in it.

        ``environment`` are the changes to the JVM's environment, None: unset. Raises NoJava, or
        NoSpark with the reason; or the error of PySpark if Spark rejects the configuration.
        """
        java = find_java()
        with _environment({"JAVA_HOME": java.home, **environment}):
            with _deferred_signals():
                self.gateway = self._launch(conf)
            context = SparkContext(conf=conf, gateway=self.gateway)
        # PySpark would print a traceback when the JVM is killed.
        context._accumulatorServer.handle_error = _ignore  # type: ignore[method-assign, assignment]  # noqa: SLF001
        return context

    def _launch(self, conf: SparkConf) -> JavaGateway:
        reader, writer = os.pipe()
        # Only results go to stdout, whatever Spark does.
        streams = {"stdout": sys.stderr.fileno() if self._verbose else writer}
        if not self._verbose:
            streams["stderr"] = writer
        self._listener = threading.Thread(target=self._listen, args=(reader,), daemon=True)
        self._listener.start()
        try:
            launched = launch_gateway(conf, popen_kwargs=streams)  # type: ignore[no-untyped-call]
        except PySparkException as error:
            os.close(writer)
            writer = -1
            self._listener.join(_KILL_SECONDS)
            raise not_started(self.said) from error
        except OSError as error:
            if error.errno in _FULL:
                raise disk_failed(error) from None
            raise NoSpark(f"Spark does not start: {error.strerror}") from error
        finally:
            if writer >= 0:
                os.close(writer)
        gateway: JavaGateway = launched
        self._process = gateway.proc
        return gateway

    def _listen(self, reader: int) -> None:
        """Keep the last output of the JVM, until it and all of its children have ended."""
        with open(reader, "rb", buffering=0) as stream:
            while output := stream.read(_KEPT):
                self._output += output
                del self._output[:-_KEPT]

    def end(self) -> None:
        """Wait for the JVM to end, kill it if it does not, and remove its directory."""
        if self.gateway is not None and self._process is not None:
            with contextlib.suppress(Py4JError, OSError):
                self.gateway.shutdown()
            _wait(self._process, _END_SECONDS)
        self.kill()

    def abandon(self) -> None:
        """Kill the JVM and return; callers that wait for it fail, and its Python workers end."""
        if self._process is not None:
            self._process.kill()

    def kill(self) -> None:
        """End the JVM at once, with the Python workers below it, and remove its directory."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            _wait(self._process, _KILL_SECONDS)
        _forget_gateway(self.gateway)
        shutil.rmtree(self.directory, ignore_errors=True)


def _ignore(*_anything: object) -> None:
    pass


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until a JVM ends, which it does at the end of its input; kill it otherwise."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _forget_gateway(gateway: JavaGateway | None) -> None:
    """Make PySpark start a new JVM instead of using the one that has ended."""
    if gateway is not None and SparkContext._gateway is gateway:  # noqa: SLF001
        SparkContext._active_spark_context = None  # noqa: SLF001
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


@contextlib.contextmanager
def _environment(changed: Mapping[str, str | None]) -> Iterator[None]:
    """Change this process's environment temporarily."""
    before = {key: os.environ.get(key) for key in changed}
    _change(changed)
    try:
        yield
    finally:
        _change(before)


def _change(changed: Mapping[str, str | None]) -> None:
    for key, value in changed.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value


@contextlib.contextmanager
def _deferred_signals() -> Iterator[None]:
    """Defer signals that end this process until the JVM's process is known; but only once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def once(number: int, _frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    before = {number: signal.signal(number, once) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)
