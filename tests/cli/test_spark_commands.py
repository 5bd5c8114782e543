"""``foldmq spark`` before Spark starts: flags, Java, PySpark, and the meaning of Spark's errors."""

import errno
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from harness import forkserver
from harness.broker import environment
from typer.testing import CliRunner

from cli.main import app
from eventstore.errors import CorruptLog, UsageError
from eventstore.format.positions import position
from eventstore.home_paths import NoHome
from projections.past.live_state import LivePage, LiveState
from projections.past.stored_projections import StoredItem, StoredProjections
from projections.state.format import ProjectionMark
from spark.runtime import session
from spark.runtime.errors import NoJava, NoSpark, OutOfDisk, SparkError, install_command
from spark.runtime.java import find_java
from spark.runtime.marked_errors import MarkedError, SparkFailure
from spark.runtime.session import is_local, require_pyspark

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
JAVA_17 = 'openjdk version "17.0.15" 2025-04-15'
JAVA_11 = 'openjdk version "11.0.22" 2024-01-16'
JAVA_8 = 'java version "1.8.0_402"'


def foldmq(
    *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    code, out, err = forkserver.run(arguments, {**environment(), **(env or {})}, 60)
    return subprocess.CompletedProcess(arguments, code, out.decode(), err.decode())


def refused(result: subprocess.CompletedProcess[str], exit_code: int) -> str:
    """The one line on stderr, without ``foldmq: ``; there is nothing else."""
    assert result.returncode == exit_code, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("foldmq: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("foldmq: ").rstrip("\n")


@pytest.fixture
def java(tmp_path: Path) -> Callable[..., Path]:
    """Make a directory with a java that says a version; gives the home above it."""

    def make(says: str, name: str = "jvm", exit_code: int = 0) -> Path:
        program = tmp_path / name / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {exit_code}\n")
        program.chmod(0o755)
        return program.parent.parent

    return make


# ------------------------------------------------------------------------------------ Java


def test_the_java_of_java_home_has_precedence(java: Callable[..., Path]) -> None:
    home, other = java(JAVA_17), java('openjdk version "21" 2023-09-19', "other")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.home, found.version) == (str(home), 17)
    found = find_java({"PATH": str(other / "bin")})
    assert (found.home, found.version) == (None, 21)


@pytest.mark.parametrize("says", [JAVA_11, JAVA_8, "no java at all"])
def test_a_java_home_that_is_no_use_is_passed_over(java: Callable[..., Path], says: str) -> None:
    old, good = java(says), java(JAVA_17, "good")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")})
    assert (found.home, found.version) == (None, 17)


@pytest.mark.parametrize(("says", "version"), [(JAVA_11, "11"), (JAVA_8, "8")])
def test_java_that_is_too_old(java: Callable[..., Path], says: str, version: str) -> None:
    home = java(says)
    with pytest.raises(NoJava, match=f"needs Java 17 or newer, but .*bin/java is Java {version}:"):
        find_java({"PATH": str(home / "bin")})
    with pytest.raises(NoJava, match=f"JAVA_HOME is .*, and .*bin/java is Java {version}:"):
        find_java({"JAVA_HOME": str(home), "PATH": ""})


def test_java_that_does_not_run(java: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(NoJava, match="does not run"):
        find_java({"PATH": str(java(JAVA_17, exit_code=1) / "bin")})
    with pytest.raises(NoJava, match=r"JAVA_HOME is .*nowhere.* does not run"):
        find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""})


@pytest.mark.parametrize(
    "job", [("rebuild", "sessions"), ("audit",)], ids=lambda words: " ".join(words)
)
def test_without_java_a_job_ends_with_one_line(tmp_path: Path, job: tuple[str, ...]) -> None:
    said = refused(foldmq("spark", *job, env={"PATH": str(tmp_path), "JAVA_HOME": ""}), 69)
    assert said.startswith("Spark needs Java, and there is none in PATH: install Java 17")


# --------------------------------------------------------------------------------- PySpark


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ({"pyspark", "pyarrow"}, "Spark is not installed: "),
        ({"pandas"}, "Spark needs the package pandas: "),
    ],
)
def test_without_pyspark(monkeypatch: pytest.MonkeyPatch, missing: set[str], says: str) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in missing else found(name)
    )
    with pytest.raises(NoSpark) as refusal:
        require_pyspark()
    assert (refusal.value.exit_code, str(refusal.value)) == (69, says + install_command())


def test_other_commands_do_not_load_spark() -> None:
    loaded = (
        "import sys, cli.main\n"
        "print([name for name in sys.modules if name.split('.')[0] in "
        "('pyspark', 'py4j', 'pyarrow', 'pandas', 'spark')])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", loaded], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[]\n"


# ----------------------------------------------------------------------------------- flags


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (("audit", "--conf", "memory=2g"), 2, "not a Spark setting: 'memory=2g'; must be"),
        (("audit", "--conf", "spark.x"), 2, "not a Spark setting"),
        (("audit", "--stored", "--no-broker"), 2, "--stored and --no-broker cannot be combined"),
        (("audit", "--stored", "--at", "12"), 2, "--stored and --at cannot be combined"),
        (("audit", "--at", "soon"), 2, 'not a point in time: "soon"'),
        (("audit", "--html", "/nowhere/at/all.html"), 73, "cannot write /nowhere/at/all.html: no"),
        (("audit", "--html", "/"), 73, "--html /: is a directory, give a file"),
        (("audit", "--memory", "much"), 2, "not a size of memory: 'much'"),
        (("audit", "--master", "lokal"), 2, "not a master of Spark: 'lokal'"),
        (("audit", "--data-dir", "/nowhere"), 66, "data directory /nowhere: does not exist"),
        (("audit", "--master", "spark://h:7077"), 2, "executors on other machines cannot read a"),
        (("audit", "--node", "a", "--stream", "b", "--nats-url", "nats://127.0.0.1:1"), 2, "--no"),
        (("audit", "--nats-url", "nats://127.0.0.1:1"), 69, "cannot connect to NATS at"),
        (
            ("rebuild", "sessions", "--format", "xml"),
            2,
            "unknown format 'xml': must be one of table",
        ),
        (("rebuild", "wills", "--format", "parquet"), 2, "--format parquet also needs"),
        (
            ("rebuild", "wills", "--output", "x", "--format", "table"),
            2,
            "--format table and --output cannot be combined",
        ),
        (
            ("rebuild", "queues", "--output", "/"),
            73,
            "--output /: already exists, give another directory",
        ),
        (("rebuild", "pending", "--at", "1.x"), 2, 'not a point in time: "1.x"'),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_invalid_arguments_are_reported_before_spark_starts(
    arguments: tuple[str, ...], exit_code: int, says: str
) -> None:
    assert says in refused(foldmq("spark", *arguments), exit_code)


def test_spark_submit_has_the_flags_of_the_session() -> None:
    result = foldmq("spark", "audit", "--memory", "2g", env={"PYSPARK_GATEWAY_PORT": "1"})
    assert "spark-submit starts Spark" in refused(result, 2)


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4]", "local[2,3]"])
def test_masters_on_this_machine(master: str) -> None:
    assert is_local(master)


@pytest.mark.parametrize("master", ["yarn", "spark://h:7077", "local-cluster[2,1,1024]", "k8s://x"])
def test_masters_elsewhere(master: str) -> None:
    assert not is_local(master)


# ---------------------------------------------------------------------------------- errors

IN_EXECUTOR = """An error occurred while calling o87.count.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/a/pyspark.zip/pyspark/worker.py", line 1, in main
    process()
{error}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(X.scala:1)
"""


@pytest.mark.parametrize(
    ("text", "exit_code", "says"),
    [
        (
            IN_EXECUTOR.format(
                error="ModuleNotFoundError: No module named 'projections.state.single_session'"
            ),
            69,
            "the executors do not have foldmq: ship foldmq and its dependencies with the job",
        ),
        (
            IN_EXECUTOR.format(error="ModuleNotFoundError: No module named 'orjson'"),
            69,
            "the executors do not have the package orjson: ",
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in\
 driver: 3.11, PySpark cannot run with different minor versions.",
            69,
            "the executors have another Python (3.9) than the driver (3.11)",
        ),
        (
            'Caused by: java.io.IOException: Cannot run program "./environment/bin/python": error',
            69,
            "the executors cannot run ./environment/bin/python",
        ),
        (
            "Caused by: java.io.IOException: No space left on device",
            74,
            "no space left for Spark's temporary files or its output",
        ),
        ("java.lang.OutOfMemoryError: Java heap space", 71, "Spark ran out of memory"),
        ("System memory 99614720 must be at least 471859200.", 2, "set --memory to at least 450m"),
        ("Python worker exited unexpectedly (crashed)", 71, "a Python worker of Spark ended"),
        (
            "[PATH_ALREADY_EXISTS] Path hdfs://h/out already exists. Set mode as overwrite",
            73,
            "hdfs://h/out already exists",
        ),
        ("Could not parse Master URL: 'mesos://x'", 2, "not a master of Spark: mesos://x"),
        ("All masters are unresponsive! Giving up.", 69, "the master of the Spark cluster does"),
        (
            IN_EXECUTOR.format(error="ValueError: what nobody thought of\x1b[2J"),
            70,
            "Spark failed: ValueError: what nobody thought of?[2J",
        ),
        (
            IN_EXECUTOR.format(error="spark.tables.event_groups.UnusualEvent: a run of no kind"),
            70,
            "Spark failed: spark.tables.event_groups.UnusualEvent: a run of no kind",
        ),
        ("java.lang.IllegalStateException: odd\nCaused by: java.io.IOException: even", 70, "even"),
    ],
)
def test_what_an_error_of_spark_means(text: str, exit_code: int, says: str) -> None:
    from spark.runtime.explain_failure import explain

    error = explain(RuntimeError(text))
    assert says in str(error)
    assert error.exit_code == exit_code
    assert str(error).isprintable()


def test_foldmq_errors_take_precedence_over_those_of_spark() -> None:
    from spark.runtime.explain_failure import explain

    ours = MarkedError(CorruptLog(7, "has a wrong checksum"))
    error = explain(
        RuntimeError(IN_EXECUTOR.format(error=f"spark.runtime.marked_errors.MarkedError: {ours}"))
    )
    assert str(error).startswith("the log is damaged: record 7 has a wrong checksum; ")
    assert error.exit_code == CorruptLog.exit_code


@pytest.fixture
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a session that is none, and leave alone the one that other tests may have."""
    monkeypatch.setattr(session, "_jvm", None)
    monkeypatch.setattr(session, "spark_session", lambda *_args, **_kwargs: None)


@pytest.mark.usefixtures("no_jvm")
@pytest.mark.parametrize(
    ("error", "exit_code", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 74, "no space left for Spark"),
        (
            OSError(errno.EIO, "Input/output error", "/tmp/x\n"),
            74,
            r"temporary files: /tmp/x\n: Input/",
        ),
        (ConnectionResetError(errno.ECONNRESET, "reset"), 70, "Spark failed: "),
    ],
)
def test_an_error_of_the_disk_in_our_process(error: OSError, exit_code: int, says: str) -> None:
    with pytest.raises(SparkError) as failed, session.running_session():
        raise error
    assert says in str(failed.value)
    assert failed.value.exit_code == exit_code


@pytest.mark.usefixtures("no_jvm")
def test_the_reader_of_the_output_may_close_it() -> None:
    with pytest.raises(BrokenPipeError), session.running_session():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_a_disk_without_room_for_spark_s_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark.runtime.jvm import Jvm

    def full(**_anything: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/foldmq-spark-x")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(OutOfDisk, match="its temporary files: /tmp/foldmq-spark-x: No space left"):
        Jvm()


@pytest.mark.parametrize("works", [True, False])
def test_an_error_of_spark_that_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    """As of one log among several; if Spark has ended, whoever started it says why."""
    from pyspark.errors import PySparkException

    monkeypatch.setattr(session, "_works", lambda: works)
    ours = MarkedError(CorruptLog(7, "has a wrong checksum"))
    with pytest.raises(SparkFailure if works else PySparkException), session.translate_errors():
        raise PySparkException(
            IN_EXECUTOR.format(error=f"spark.runtime.marked_errors.MarkedError: {ours}")
        )


def test_a_jvm_that_has_gone() -> None:
    from spark.runtime.explain_failure import explain

    assert explain(ConnectionRefusedError("x"), "", has_ended=True).exit_code == 71
    said = "# java.lang.OutOfMemoryError: Java heap space"
    assert "--memory" in str(explain(ConnectionRefusedError("x"), said, has_ended=True))


YARN = """WARNING: Using incubator modules: jdk.incubator.vector
26/11/21 17:20:02 WARN Utils: Your hostname resolves to a loopback address
Exception in thread "main" org.apache.spark.SparkException: HADOOP_CONF_DIR must be set
\tat org.apache.spark.X(Y.scala:1)
"""
NO_MODULE = """Error occurred during initialization of boot layer
java.lang.module.FindException: Module jdk.incubator.vector not found
"""
NO_ROOM = """Error occurred during initialization of VM
Could not reserve enough space for 966367641600KB object heap
"""


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (YARN, "Spark does not start: HADOOP_CONF_DIR must be set"),
        (NO_MODULE, "this Java lacks a module that Spark needs"),
        (NO_ROOM, "--memory is more than this machine has"),
        ("", "Spark does not start: it exits immediately"),
    ],
)
def test_a_jvm_that_does_not_start(said: str, says: str) -> None:
    from spark.runtime.explain_failure import not_started

    assert says in str(not_started(said))


# ---------------------------------------------------------------------------------- claims


def test_the_state_of_a_broker_becomes_claims() -> None:
    from cli.spark.claimed_states import _claims_in

    said = LiveState(
        "n", position(5, 0), [LivePage(position(6, 2), {"a": 255, "b": None}, {"t": 1})]
    )
    rows = [(one.kind, one.name, one.bound, one.digest) for one in _claims_in("n", said)]
    assert rows == [
        ("all", "", position(5, 0), None),
        ("session", "a", position(6, 2), "00000000000000ff"),
        ("session", "b", position(6, 2), None),
        ("retained", "t", position(6, 2), "0000000000000001"),
    ]


def test_projections_become_claims_as_of_their_mark_or_later() -> None:
    from cli.spark.claimed_states import _stored

    old, new = StoredItem(position(3, 0), 1), StoredItem(position(9, 1), 2)
    stored = StoredProjections(
        {"old": old, "new": new}, {"t": old}, mark=ProjectionMark(7, "00", 0, 0)
    )
    end = position(20, 0)
    mark = position(8, 0)
    bounds = {(one.kind, one.name): one.bound for one in _stored("n", stored, end)}
    assert bounds == {
        ("all", ""): mark,
        ("session", "old"): mark,
        ("session", "new"): position(9, 1),
        ("retained", "t"): mark,
    }
    stored.torn = {"other"}
    assert "all" not in {one.kind for one in _stored("n", stored, end)}
    unmarked = StoredProjections({}, {"t": old})
    assert [one.bound for one in _stored("n", unmarked, end)] == [position(3, 1)]


# ------------------------------------------------------------------------------------ place


def test_executors_elsewhere_cannot_read_a_data_directory(tmp_path: Path) -> None:
    import asyncio
    import contextlib

    from cli.logs.source_flags import SourceFlags
    from cli.spark.log_location import find
    from cli.spark.spark_flags import SparkFlags

    async def look(flags: SparkFlags) -> None:
        async with contextlib.AsyncExitStack() as stack:
            await find(stack, stack, flags)

    source = SourceFlags({"data_dir": str(tmp_path)})
    with pytest.raises(UsageError, match="cannot read a local data directory"):
        asyncio.run(look(SparkFlags(source, archive="a", master="yarn")))


def test_paths_for_spark() -> None:
    from cli.spark.log_location import absolute

    assert absolute("a") == str(Path("a").absolute())
    assert absolute("~/a") == str(Path.home() / "a")
    assert absolute("s3://bucket/a") == "s3://bucket/a"
    with pytest.raises(
        NoHome, match="~nosuchuser/x: the home directory of nosuchuser is not known"
    ):
        absolute("~nosuchuser/x")
    for name in ("/a/\udcff", "s3://bucket/\udcff"):
        with pytest.raises(UsageError, match=r"udcff: the name is not UTF-8") as refusal:
            absolute(name)
        assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    "arguments",
    [
        ("stats", "--levels", "3000000000"),
        ("stats", "--top", "3000000000"),
        ("rebuild", "retained", "--limit", "3000000000"),
    ],
)
def test_numbers_that_spark_does_not_have_are_refused(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["spark", *arguments])
    assert result.exit_code == 2
    assert f"Invalid value for '{arguments[-2]}'" in result.output


def test_results_are_json_that_can_be_read_back() -> None:
    from pyspark.sql import Row

    from cli.spark.output import _object

    row = Row(topic="t", payload=None, payload_base64="/w==", will=Row(ref="1.0"))
    assert json.loads(json.dumps(_object(row))) == {
        "topic": "t",
        "payload_base64": "/w==",
        "will": {"ref": "1.0"},
    }
    assert _object(Row(payload="a", payload_base64=None)) == {"payload": "a"}
    assert _object(Row(payload=None, payload_base64=None)) == {"payload": None}
