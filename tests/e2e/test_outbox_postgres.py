"""The sink postgres with PostgreSQL of Debian: each message once, whatever is killed and when."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from harness.drill import KILLS
from harness.packets import Publish
from harness.postgres import POSTGRES, Postgres, row_values
from harness.rawclient import RawClient
from harness.waiting import until

from e2e.outbox_process import VICTIMS, strike
from e2e.test_outbox_http import publish
from e2e.tools import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.broker import Broker

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(POSTGRES is None, reason="PostgreSQL is not installed"),
]


@pytest.fixture
def database() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def table(database: Postgres, tmp_path: Path) -> str:
    (tmp_path / "password").write_text(database.password)
    return (
        f'[sink.db]\nkind = "postgres"\nurl = "{database.url}"\nfilters = ["orders/#"]\n'
        f'password_file = "{tmp_path / "password"}"\nretry = "50ms 500ms"\nbatch = 7\n'
    )


def payloads(database: Postgres) -> list[str]:
    rows = database.query(
        "SELECT convert_from(payload, 'UTF8') FROM mqtt_messages ORDER BY record, entry"
    )
    return row_values(rows)


def test_the_columns(make_broker: Callable[..., Broker], database: Postgres, table: str) -> None:
    broker = make_broker(table)
    broker.start()
    publish(broker, '{"t": 21.5}')
    publish(broker, "text", qos=2)
    publish(broker, '"\\u0000"')  # JSON that jsonb does not take
    publish(broker, "other", topic="elsewhere")
    until(lambda: len(payloads(database)) == 3, "the rows")
    rows = database.query(
        "SELECT topic, client, qos, retain, json->>'t', properties, record || '.' || entry, "
        "time > now() - interval '1 hour' FROM mqtt_messages ORDER BY record, entry"
    )
    where = ("--data-dir", str(broker.data_dir))
    first = run("log", *where, "--json", "--type", "MessagePublished").objects[0]["position"]
    assert rows[0] == ["orders/1", "p", "1", "f", "21.5", "", first, "t"]
    assert rows[1][2:5] == ["2", "f", ""]
    assert payloads(database) == ['{"t": 21.5}', "text", '"\\u0000"']
    assert run("outbox", "ls", *where, "--json").objects[0]["refused"] == 0
    broker.stop()


@pytest.mark.drill
@pytest.mark.parametrize("victim", [*VICTIMS, "database", "connection"])
def test_each_message_is_there_once_after_kills(
    make_broker: Callable[..., Broker], database: Postgres, table: str, victim: str
) -> None:
    broker = make_broker(table)
    broker.start()
    sent = 0

    def strike_database() -> None:
        if victim == "database":
            database.kill()
            database.start()
        else:
            database.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )

    for turn in range(KILLS):
        publish(broker, *range(sent, sent + 40))
        sent += 40
        time.sleep(0.05 * turn)  # other steps are under way at each kill
        strike(broker, victim, strike_database)
    expected = [str(number) for number in range(sent)]
    until(lambda: {*payloads(database)} == {*expected}, "all messages", pause=0.2)
    assert payloads(database) == expected
    # What was sent again after the last kill, if anything, was recognised.
    publish(broker, "last")
    until(lambda: payloads(database)[-1] == "last", "the last message", pause=0.2)
    assert payloads(database) == [*expected, "last"]
    broker.stop()


def test_a_cursor_of_the_log_that_is_behind_the_table_repeats_no_row(
    make_broker: Callable[..., Broker], database: Postgres, table: str
) -> None:
    broker = make_broker(table)
    broker.start()
    publish(broker, *range(20))
    until(lambda: len(payloads(database)) == 20, "the rows")
    broker.stop()
    # Removed and added again, it gets the whole log once more.
    broker.configure("")
    broker.start()
    broker.stop()
    broker.configure(table + 'from = "oldest"\n')
    broker.start()
    publish(broker, "new")
    until(lambda: payloads(database)[-1] == "new", "the new message")
    assert payloads(database) == [*(str(number) for number in range(20)), "new"]
    broker.stop()


def test_a_log_that_numbers_its_records_anew_loses_nothing(
    make_broker: Callable[..., Broker], database: Postgres, table: str
) -> None:
    broker = make_broker(table)
    broker.start()
    publish(broker, "a")
    until(lambda: payloads(database) == ["a"], "the row")
    # As if the table had more of the log than a backup from which that was restored.
    database.query("UPDATE foldmq_cursor SET through = through + (1000::bigint << 20)")
    publish(broker, "b")
    until(lambda: payloads(database) == ["a", "b"], "the next row")
    broker.stop()


def test_a_row_that_a_constraint_refuses_and_wrong_settings(
    make_broker: Callable[..., Broker], database: Postgres, table: str, tmp_path: Path
) -> None:
    broker = make_broker(table + 'batch_wait = "300ms"\n')
    broker.start()
    where = ("--data-dir", str(broker.data_dir))
    publish(broker, "a")
    until(lambda: payloads(database) == ["a"], "the row")
    database.query("ALTER TABLE mqtt_messages ADD CHECK (payload <> 'poison')")
    publish(broker, "b", "poison", "c")
    until(lambda: payloads(database) == ["a", "b", "c"], "the other rows")
    until(lambda: run("outbox", "ls", *where, "--json").objects[0]["refused"] == 1, "the refusal")
    (row,) = run("outbox", "refused", "db", *where, "--json").objects
    assert row["reason"].startswith('23514: new row for relation "mqtt_messages" violates check')
    database.query("ALTER TABLE mqtt_messages DROP CONSTRAINT mqtt_messages_payload_check")
    # Details of PostgreSQL have the values of the row.
    assert b"poison".hex() not in row["reason"] + broker.log
    run("outbox", "retry", "db", *where)
    until(lambda: payloads(database) == ["a", "b", "poison", "c"], "the refused row")
    until(lambda: run("outbox", "ls", *where, "--json").objects[0]["refused"] == 0, "the record")

    def shown() -> str:
        return run("outbox", "show", "db", *where).out

    (tmp_path / "password").write_text("wrong")
    broker.restart()
    until(lambda: "misconfigured" in shown(), "the state")
    assert 'password authentication failed for user "foldmq"' in shown()
    # It is read again at the next attempt.
    (tmp_path / "password").write_text(database.password)
    publish(broker, "d")
    until(lambda: payloads(database)[-1] == "d", "the row after the right password")
    database.query("ALTER TABLE mqtt_messages DROP CONSTRAINT mqtt_messages_pkey")
    broker.restart()
    until(lambda: "has no unique key (time, log, record, entry)" in shown(), "the missing key")
    broker.stop()


def test_messages_at_qos_2_that_were_released_late(
    make_broker: Callable[..., Broker], database: Postgres, table: str
) -> None:
    broker = make_broker(table)
    broker.start()
    with RawClient(broker.port) as reader:
        reader.connect("reader")
        reader.subscribe(("orders/#", 0))
        for number in range(5):
            publish(broker, number, qos=2)
            reader.expect_a(Publish)
    until(lambda: payloads(database) == ["0", "1", "2", "3", "4"], "the rows")
    broker.stop()
