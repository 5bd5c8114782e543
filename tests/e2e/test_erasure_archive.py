"""Archives of logs with erased contents and names, and what Spark says of these logs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.broker import Broker
from harness.brokerprocesses import client_of
from harness.fixtures import Clients
from harness.packets import Will

from e2e.test_encryption import forms, unpacked
from e2e.test_erasure import ANNA, ERASED, KEPT, PLAIN, TOPICS
from e2e.tools import run, run_here
from spark.tables.archive_log import archived_logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
PHONE = "phone-älice-7f3a-"


def archived(directory: Path) -> Iterator[bytes]:
    """The records of an archive, and all that is compressed in them."""
    for log in archived_logs(str(directory)):
        for _, record in log.read(1, 1 << 40):
            yield unpacked(record)


def readable(records: list[bytes]) -> set[str]:
    texts = (*ERASED, KEPT, PLAIN, PHONE, ANNA)
    return {
        text for text in texts for form in forms(text) if any(form in record for record in records)
    }


def test_archives_of_several_logs_never_have_contents_or_names(
    tmp_path: Path, spark: SparkSession
) -> None:
    keys = tmp_path / "keys"
    settings = ["--processes", "2", "--personal-topics", "home/+/#", "--personal-users", "änna*"]
    settings += ["--personal-clients", "phone-*", "--personal-key-file", str(keys)]
    phones = [client_of(number, PHONE) for number in range(2)]
    with Broker(tmp_path, args=settings, forked=True) as broker:
        data = ("--data-dir", str(broker.data_dir))
        with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
            for number, name in enumerate(phones):
                reader = clients.connect(client_of(number, "reader"), clean=False)
                reader.subscribe(("home/#", 1), ("news", 1))
                reader.disconnect()
                words = Will(f"{TOPICS}/will", ERASED[2].encode(), 1)
                phone = clients.connect(name, clean=False, username=ANNA, will=words)
                phone.publish(f"{TOPICS}/kept", ERASED[0].encode(), 1, retain=True)
                phone.publish("home/bob/kept", KEPT.encode(), 1, retain=True)
                phone.publish("news", PLAIN.encode(), 1)
                phone.close()
        run_here(spark, "spark", "archive", str(tmp_path / "early"), *data)
        assert "erased in all logs" in run("erase", "--topic", "home/alice/#", "--yes", *data).out
        assert run("erase", "--user", ANNA, "--yes", *data).out.count("erased in ") == 2
        for name in phones:
            erased = run("erase", "--check", name, "--in", str(tmp_path / "early"), *data)
            assert "found nowhere\n" in erased.out
        run_here(spark, "spark", "archive", str(tmp_path / "late"), *data)
        audited = run_here(spark, "spark", "audit", *data).out
        assert "kept:" in audited
        assert "equal" in run("verify", *data).out
        broker.stop()
    for place in ("early", "late"):
        assert readable([*archived(tmp_path / place)]) == {PLAIN}
