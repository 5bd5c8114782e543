"""The sink python with the example of docs/sinks.md: kill -9 of each side, and bad classes."""

import os
import re
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.broker import Broker, alive, children_of
from harness.waiting import until

from e2e.outbox_process import VICTIMS, outbox_of, strike
from e2e.test_outbox_http import publish
from e2e.tools import run

pytestmark = pytest.mark.timeout(180)
PAGE = Path(__file__).parents[2] / "docs" / "sinks.md"


class Example:
    """The class of the page, in a folder, and its database."""

    def __init__(self, folder: Path) -> None:
        (code,) = re.findall(r"```python\n(# .*store\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
        self.module = folder / "store.py"
        self.module.write_text(code)
        self.database = folder / "store.db"
        (table,) = re.findall(
            r'```toml\n(\[sink\.store\]\nkind = "python".*?)```', PAGE.read_text(), re.DOTALL
        )
        table = table.replace("/etc/foldmq/sinks", str(folder))
        self.config = table.replace("/var/lib/store.db", str(self.database)) + 'retry = "50ms 1s"\n'

    @property
    def payloads(self) -> list[int]:
        if not self.database.exists():
            return []
        with sqlite3.connect(self.database) as database:
            try:
                rows = database.execute("SELECT payload FROM messages ORDER BY rowid").fetchall()
            except sqlite3.OperationalError:  # the table is not there yet
                return []
        return [int(payload) for (payload,) in rows]


def sink_of(broker: Broker) -> int:
    """The process of the class."""
    return next(iter(children_of(outbox_of(broker))), 0)


@pytest.fixture
def example(tmp_path: Path) -> Example:
    return Example(tmp_path)


@pytest.mark.parametrize("victim", [*VICTIMS, "sink"])
def test_the_example_gets_everything_after_a_kill(
    make_broker: Callable[..., Broker], example: Example, victim: str
) -> None:
    broker = make_broker(example.config)
    broker.start()
    publish(broker, *range(10))
    until(lambda: example.payloads, "the first message")
    process = sink_of(broker)
    strike(broker, victim, lambda: os.kill(process, signal.SIGKILL))
    publish(broker, *range(10, 20))
    until(lambda: len(example.payloads) == 20, "all messages")
    assert example.payloads == [*range(20)]
    until(lambda: not alive(process), "the end of the process that is no longer needed")
    process = sink_of(broker)
    broker.stop()
    assert not alive(process)


def test_a_class_that_hangs_harms_no_other_sink_and_the_broker_says_why(
    make_broker: Callable[..., Broker], example: Example, tmp_path: Path
) -> None:
    (tmp_path / "hung.py").write_text(
        "import time\nclass Hung:\n    def send(self, messages):\n        time.sleep(600)\n"
    )
    hung = f'[sink.hung]\nkind = "python"\ntarget = "hung:Hung"\ndirectory = "{tmp_path}"\n'
    broker = make_broker(example.config + hung + 'filters = ["#"]\ntimeout = "1s"\n')
    broker.start()
    where = ("--data-dir", str(broker.data_dir))
    publish(broker, *range(10))
    until(lambda: example.payloads == [*range(10)], "the other sink")

    def shown() -> str:
        return run("outbox", "show", "hung", *where).out

    until(lambda: "hung:Hung did not return within 1 s" in shown(), "the reason")
    assert "retrying" in shown()
    broker.stop()


def test_refused_messages_are_positions_that_can_be_sent_again(
    make_broker: Callable[..., Broker], example: Example
) -> None:
    code = example.module.read_text()
    refusing = '        return [(m, "no number") for m in messages if m.payload == b"3"]\n'
    example.module.write_text(
        code.replace("for m in messages]", 'for m in messages if m.payload != b"3"]') + refusing
    )
    broker = make_broker(example.config)
    broker.start()
    where = ("--data-dir", str(broker.data_dir))
    publish(broker, *range(6))
    until(lambda: len(example.payloads) == 5, "the others")
    until(lambda: run("outbox", "ls", *where, "--json").objects[0]["refused"] == 1, "the refusal")
    (row,) = run("outbox", "refused", "store", *where, "--json").objects
    assert row["reason"] == "no number"
    # The next process has the class as it is then.
    example.module.write_text(code)
    os.kill(sink_of(broker), signal.SIGKILL)
    run("outbox", "retry", "store", *where)
    until(lambda: example.payloads == [0, 1, 2, 4, 5, 3], "the refused message")
    broker.stop()


def test_config_check_imports_the_class(example: Example, tmp_path: Path) -> None:
    config = tmp_path / "foldmq.toml"
    data = f'data_dir = "{tmp_path / "data"}"\nlisten = "127.0.0.1:0"\n'
    config.write_text(data + example.config)
    run("config", "check", "--config", str(config))
    example.module.write_text("import not_there\n")
    said = run("config", "check", "--config", str(config), code=78).err
    assert 'sink.store.target = "store:Store": ModuleNotFoundError: No module' in said
