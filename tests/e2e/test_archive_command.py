"""``foldmq spark archive`` with a real broker: only archived records may be removed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import packets as p
from harness.broker import Broker
from harness.fixtures import Clients
from harness.objectstore import ObjectStoreServer, object_store
from harness.packets import Puback
from harness.rawclient import RawClient
from harness.waiting import until

from e2e.tools import run, run_beside_cuts, run_here
from eventstore.format.records import ChainChecker, decode_record
from spark.tables.archive_log import archived_logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

__all__ = ["object_store"]  # a fixture

PAYLOAD = bytes(32 * 1024)
CONFIG = 'keep_bytes = "16MiB"\nkeep_until_archived = true\nlog_format = "json"\n'


def load(client: RawClient, mebibytes: int) -> None:
    """Publishes this many bytes without subscribers, at QoS 1."""
    for _ in range(mebibytes):
        client.send(*(p.publish("filler", PAYLOAD, 1, pid) for pid in range(1, 33)))
        for pid in range(1, 33):
            client.expect(Puback(pid))


def records_of(directory: Path | str) -> list[tuple[int, bytes]]:
    (stored,) = archived_logs(str(directory))
    return list(stored.read(1, 1 << 40))


def test_only_archived_records_are_cut_off(
    make_broker: Callable[..., Broker], tmp_path: Path, spark: SparkSession
) -> None:
    broker = make_broker(CONFIG)
    broker.start()
    where = ("--data-dir", str(broker.data_dir))
    archive = tmp_path / "archive"
    with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
        filler = clients.connect("filler")
        until(lambda: load(filler, 4) or broker.told("log exceeds keep_bytes"), "a warning", 120)
        (warning,) = broker.told("log exceeds keep_bytes")
        assert (warning["level"], warning["archived"], warning["first"]) == ("warning", 0, 1)
        assert not broker.told("log cut")

        ran = run_here(spark, "spark", "archive", str(archive), *where)
        (line,) = ran.lines
        found = re.fullmatch(
            r"FOLDMQ_LOG_\w+: archived ([\d,]+) records \([\d.]+ MiB, [\d.]+ [KM]iB in \d+ "
            r"files?\), up to record (\d+) of [\d :.-]+",
            line,
        )
        assert found is not None, line
        assert found[1].replace(",", "") == found[2]
        assert ran.err == ""
        through = int(found[2])
        until(lambda: broker.told("log cut"), "a cut")
        (news,) = broker.told("log archived")
        assert (news["through"], news["where"]) == (through, str(next(archive.iterdir())))
        cut = run("log", *where, "--type", "LogCut", "--json").objects[-1]
        assert cut["reason"] == "archived"
        assert 1 < cut["first"] <= through + 1
        load(filler, 24)

    # What is left continues what is archived, and is archived in turn.
    (told,) = run_here(spark, "spark", "archive", str(archive), *where, "--json").objects
    assert told["records"] > 0
    assert told["told"]
    assert told["through"] > through
    # The broker is about to cut it off as well.
    ran = run_beside_cuts("log", *where, "--type", "LogArchived", "--json")
    assert ran.objects[-1]["by"].count("@") == 1

    # Without a broker it works as well; the broker is notified by the next run.
    broker.stop()
    ran = run_here(spark, "spark", "archive", str(archive), *where, "--json")
    assert re.fullmatch(
        r"foldmq: the broker will be notified at the next run: no broker is running on .*\n",
        ran.err,
    )
    (rest,) = ran.objects
    assert rest["records"] > 0
    assert not rest["told"]
    (again,) = run_here(spark, "spark", "archive", str(archive), *where, "--json").objects
    assert (again["records"], again["through"]) == (0, rest["through"])
    checker = ChainChecker()
    for sequence, data in records_of(archive):
        checker.check(decode_record(sequence, data))
    assert (checker.sequence, checker.link.hex()) == (rest["through"], rest["link"])
    assert "intact" in run("log", "verify", *where).out

    # A ledger of another history is refused, in one line, before Spark starts.
    ledger = next(archive.glob("node=*/_foldmq/ledger.jsonl"))
    lines = ledger.read_bytes().splitlines(keepends=True)
    link = re.search(rb'"link":"(\w{64})"', lines[-1])
    assert link is not None
    ledger.write_bytes(b"".join([*lines[:-1], lines[-1].replace(link[1], b"ab" * 32)]))
    ran = run("spark", "archive", str(archive), *where, code=65)
    assert ran.out == ""
    (line,) = ran.err.splitlines()
    assert "it was lost, restored or begun anew; archive it into another directory" in line


def test_an_archive_in_a_bucket_lets_the_broker_cut(
    make_broker: Callable[..., Broker],
    object_store: ObjectStoreServer,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
) -> None:
    """Written, continued and audited by its URI; errors are one line."""
    broker = make_broker(CONFIG)
    broker.start()
    where = ("--data-dir", str(broker.data_dir))
    uri, plain = object_store.uri("archive"), "s3://bucket/archive"
    with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
        filler = clients.connect("filler")
        until(lambda: load(filler, 4) or broker.told("log exceeds keep_bytes"), "a warning", 120)
        (told,) = run_here(spark, "spark", "archive", uri, *where, "--json").objects
        assert told["told"]
        assert re.fullmatch(f"{plain}/node=[^/?]+", told["where"])
        until(lambda: broker.told("log cut"), "a cut")
        (news,) = broker.told("log archived")
        assert (news["through"], news["where"]) == (told["through"], told["where"])
        load(filler, 1)
    broker.stop()
    (rest,) = run_here(spark, "spark", "archive", uri, *where, "--json").objects
    assert rest["records"] > 0
    checker = ChainChecker()
    for sequence, data in records_of(uri):
        checker.check(decode_record(sequence, data))
    assert (checker.sequence, checker.link.hex()) == (rest["through"], rest["link"])

    # The same by settings of the environment, in processes that start no Spark.
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    assert run("spark", "audit", "--archive", plain).out.startswith("kept: ")
    (again,) = run("spark", "archive", plain, *where, "--json").objects
    assert (again["records"], again["through"]) == (0, rest["through"])

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for command in (("archive", plain, *where), ("audit", "--archive", plain)):
        ran = run("spark", *command, code=69)
        assert ran.out == ""
        (line,) = ran.err.splitlines()
        assert line.startswith(f"foldmq: {plain} cannot be read: NETWORK_CONNECTION ")
