"""The disk under load: temporarily full, and with damaged content.

A damaged store must be refused with one clear line, or be repaired without loss; the account shows
whether there was a loss. Files are damaged while broker and NATS server are down, after kill -9.
"""

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.broker import Broker, BrokerFailedError
from harness.drill import FEW, ROUNDS, SEED, Drill
from harness.fixtures import fill
from harness.waiting import until

pytestmark = [pytest.mark.drill, pytest.mark.timeout(180 + 40 * ROUNDS)]


def test_full_disk(make_broker: Callable[..., Broker], small_disk: Path) -> None:
    broker = make_broker("commit_timeout = 2\nlog_format = 'json'\n")
    broker.data_dir = small_disk / "data"
    broker.start()
    drill = Drill(broker, SEED)
    drill.start()

    def blow() -> None:
        before = len(broker.told("log cannot be written"))
        filler = fill(small_disk)
        until(
            lambda: len(broker.told("log cannot be written")) > before, "a word about the full disk"
        )
        time.sleep(drill.random.uniform(0, 1.5))
        filler.unlink()

    for _ in range(FEW):
        drill.strike(blow)
    drill.judge()
    broker.stop()


def flip(data: bytearray, at: int) -> str:
    data[at // 8] ^= 1 << at % 8
    return f"bit {at % 8} of byte {at // 8} flipped"


def truncate(data: bytearray, at: int) -> str:
    del data[at // 8 :]
    return f"cut at byte {at // 8}"


def blank(data: bytearray, at: int) -> str:
    begin = at // 8 // 4096 * 4096
    data[begin : begin + 4096] = bytes(len(data[begin : begin + 4096]))
    return f"zeros from byte {begin} on for a page"


def damage(store: Path, how: Callable[[bytearray, int], str], source: random.Random) -> str:
    """Damages one file with messages in it, somewhere; returns what was done."""
    files = sorted(file for file in store.rglob("*.blk") if file.stat().st_size)
    file = source.choice(files)
    data = bytearray(file.read_bytes())
    size = len(data)
    done = how(data, source.randrange(size * 8))
    file.write_bytes(data)
    return f"{file.name} of {size} bytes: {done}"


def started(broker: Broker) -> str | None:
    """Starts it on a damaged store; returns the line with which it refused, if it did."""
    before = len(broker.log)
    try:
        broker.start()
    except BrokerFailedError:
        said = broker.log[before:]
        assert broker.returncode == 65, said
        assert "Traceback" not in said
        (line,) = [line for line in said.splitlines() if line.startswith("foldmq: ")]
        assert line.startswith("foldmq: the log is "), line
        return line
    return None


@pytest.mark.parametrize("how", [flip, pytest.param(truncate, marks=pytest.mark.long), blank])
def test_damaged_store(
    make_broker: Callable[..., Broker], how: Callable[[bytearray, int], str]
) -> None:
    broker = make_broker()
    broker.start()
    drill = Drill(broker, SEED)
    drill.start()
    store, copy = broker.data_dir / "jetstream", broker.directory / "copy"

    def blow() -> None:
        broker.kill_all()
        shutil.copytree(store, copy)
        note = damage(store, how, drill.random)
        line = started(broker)
        drill.notes.append(f"{note}: {line or 'started'}")
        if line is not None:
            shutil.rmtree(store)
            copy.rename(store)
            broker.start()
        else:
            shutil.rmtree(copy)

    for _ in range(FEW):
        drill.strike(blow)
    drill.judge()
    broker.stop()
