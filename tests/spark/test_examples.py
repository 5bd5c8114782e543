"""The examples for users run: the notebook, and the Python of ``docs/spark.md``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from harness.logs import LogBuilder
from harness.nats import PASSWORD, USER, Nats
from soundlog import sound_log

from protocol.errors import FoldmqError
from spark.runtime import notebook

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "examples" / "event_log.ipynb"
PAGE = ROOT / "docs" / "spark.md"
_ADDRESS = "nats://127.0.0.1:4222"
_MAGIC = re.compile(r"%load_ext ([\w.]+)")


@pytest.fixture(scope="module")
def log(nats: Nats) -> LogBuilder:
    """The log of a broker that kept every promise, with all types of events."""
    log = sound_log()
    log.store(nats)
    return log


@pytest.fixture
def shuffles(spark: SparkSession) -> Iterator[None]:
    """Examples set the number of shuffle partitions."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before or "2")
    spark.catalog.dropTempView("entries")


class Shell:
    """What extensions of IPython see of it, as far as ours does."""

    def __init__(self) -> None:
        self.kinds: tuple[type, ...] = ()
        self.show: Any = None

    def set_custom_exc(self, kinds: tuple[type, ...], show: Any) -> None:
        self.kinds, self.show = kinds, show


@pytest.mark.usefixtures("shuffles", "spark")
def test_the_notebook_runs(nats: Nats, log: LogBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    known: dict[str, Any] = {}
    shell = Shell()
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == []
        text = "".join(cell["source"])
        if magic := _MAGIC.fullmatch(text):
            __import__(magic[1])
            sys.modules[magic[1]].load_ipython_extension(shell)
            continue
        exec(compile(text, NOTEBOOK.name, "exec"), known)
        if "parameters" in cell["metadata"].get("tags", ()):
            assert known["options"]["nats"] == _ADDRESS
            known["options"] |= {"nats": _url(nats), "node": log.node}
    assert shell.show is not None
    assert known["outcome"].kept
    shown = capsys.readouterr().out
    assert "MessagePublished" in shown
    assert known["by_topic"].count() == len(
        {row["topic"] for row in known["published"].select("topic").collect()}
    )


@pytest.mark.usefixtures("shuffles", "spark")
def test_the_examples_of_the_page_run(
    nats: Nats,
    log: LogBuilder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```", PAGE.read_text("utf-8"))
    assert len(blocks) >= 3
    known: dict[str, Any] = {}
    for block in blocks:
        text = block.replace(_ADDRESS, _url(nats)).replace("FOLDMQ_LOG_n1", log.stream)
        exec(compile(text, PAGE.name, "exec"), known)
    written = known["session"].read.parquet(str(tmp_path / "published")).collect()
    assert {row["topic"] for row in written} >= {"t", "r3"}
    assert "sum(size)" in capsys.readouterr().out


def _url(nats: Nats) -> str:
    return f"nats://{USER}:{PASSWORD}@127.0.0.1:{nats.port}"


def test_a_mistake_in_a_notebook_is_one_line(
    spark: SparkSession, nats: Nats, log: LogBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell()
    notebook.load_ipython_extension(shell)

    def told(**options: str) -> str:
        reader = spark.read.format("foldmq").option("nats", _url(nats)).options(**options)
        with pytest.raises(shell.kinds) as caught:
            reader.load().select("session").count()
        assert "Traceback" not in str(caught.value)
        shell.show(SimpleNamespace(), caught.type, caught.value, None, tb_offset=None)
        return capsys.readouterr().err

    node = {"node": log.node}
    assert told(**node, colums="seq") == (
        "foldmq: there is no option 'colums': did you mean columns?\n"
    )
    assert told(node="nobody").startswith("foldmq: there is no log FOLDMQ_LOG_nobody on NATS at ")
    assert told(**node, columns="sesion") == (
        "foldmq: there is no column 'sesion' in rows=entries: did you mean session?\n"
    )
    missing = told(**node, columns="seq")
    assert missing.startswith("foldmq: Spark failed: A column, variable, or function parameter")
    assert missing.count("\n") == 1
    assert FoldmqError in shell.kinds
