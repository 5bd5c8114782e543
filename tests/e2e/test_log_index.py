"""The index of a log in the hands of a user: the same answers with it and without."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.broker import Broker

from e2e.log_scenarios import serving
from e2e.tools import refused, run

QUESTIONS = [
    ("log", "--session", "screen"),
    ("log", "--topic", "hall/+", "--payload"),
    ("log", "--session", "archive", "--type", "SessionOpened"),
    ("replay", "--session", "archive", "--at", "12", "--json"),
    ("replay", "--session", "screen", "--json"),
    ("why", "--client", "screen", "--topic", "hall/#", "--last", "3"),
    ("why", "--client", "nobody", "--topic", "hall/door"),
]


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Broker]:
    with serving(tmp_path, config="ack_wait = 0\n") as (broker, _):
        yield broker


def test_answers_are_the_same_with_an_index(played: Broker) -> None:
    data = ("--data-dir", str(played.data_dir))
    index = played.data_dir / "index"
    assert not index.exists(), "so few records are not indexed by the broker"
    before = [run(*question, *data).out for question in QUESTIONS]
    said = run("log", "index", *data).err
    assert "the index covers records 1 to " in said
    assert "are indexed in" in run("log", "-n", "1", *data, "-v").err
    assert [run(*question, *data).out for question in QUESTIONS] == before

    # A damaged file is not used, and is rebuilt.
    (segment,) = index.rglob("*.index")
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    segment.write_bytes(damaged)
    assert [run(*question, *data).out for question in QUESTIONS] == before
    run("log", "index", *data)
    assert "are indexed in" in run("log", "-n", "1", *data, "-v").err
    shutil.rmtree(index)
    assert [run(*question, *data).out for question in QUESTIONS] == before


def test_the_index_of_another_log_is_replaced(played: Broker, tmp_path: Path) -> None:
    data = ("--data-dir", str(played.data_dir))
    run("log", "index", *data)
    (segment,) = (played.data_dir / "index").rglob("*.index")
    (tmp_path / "other").mkdir()
    with Broker(tmp_path / "other", config="ack_wait = 0\n", forked=True) as other:
        (stream,) = (other.data_dir / "jetstream").rglob("FOLDMQ_LOG_*")
        external = other.data_dir / "index" / stream.name
        external.mkdir(parents=True, mode=0o700)
        shutil.copy(segment, external)
        there = ("--data-dir", str(other.data_dir))
        assert "are indexed" not in run("log", *there, "-v").err
        run("log", "index", *there)
        assert "are indexed" in run("log", *there, "-v").err


def test_a_disabled_index(played: Broker, tmp_path: Path) -> None:
    config = tmp_path / "none.toml"
    config.write_text("index_bytes = 0\n")
    data = ("--data-dir", str(played.data_dir), "--config", str(config))
    said = refused("log", "index", *data, code=78)
    assert said.startswith("index_bytes = 0 disables the index")
