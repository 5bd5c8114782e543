"""The benchmark without its loads: rows, ratios, failure conditions, tables, the generated page."""

import subprocess
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import run
from bench.brokers.broker_processes import (
    BenchError,
    Foldmq,
    Mosquitto,
    NatsServer,
    Released,
)
from bench.comparison import optimised_python, released_version, rounds, tables
from bench.loads import mqtt5_loads
from bench.loads.compared_loads import LOADS
from cli.common import interpreter

ROOT = Path(__file__).resolve().parent.parent
PAIRS = next(load for load in LOADS if load.name == "pairs")
FAN_IN = next(load for load in LOADS if load.name == "fanin10k")


def delivered(*rates: float) -> list[dict[str, Any]]:
    """Runs of the load "pairs" with these rates."""
    return [
        {"recv_per_s": rate, "received": 1000, "broker_cpu_s": 0.5, "apart_cpu_s": 0.1}
        for rate in rates
    ]


def waited(*milliseconds: float) -> list[dict[str, Any]]:
    """Runs of the load "fanin10k" with these latencies."""
    return [{"latency_us": {"p50": each * 1000, "p99": each * 9000}} for each in milliseconds]


def rows(own: list[dict[str, Any]], theirs: list[dict[str, Any]], **others: Any) -> list[Any]:
    runs = {"foldmq": own, "released": theirs, **others}
    load = FAN_IN if "latency_us" in (*own, *theirs)[0] else PAIRS
    return rounds.rows_of(load, runs, quick=False)


@pytest.fixture(autouse=True)
def release_of_its_own() -> Iterator[None]:
    before = Released.root, Released.title, Released.commit
    Released.title, Released.commit = "foldmq 0.1.0", "abc1234"
    yield
    Released.root, Released.title, Released.commit = before


# ----------------------------------------------------------------- which rows


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rows", "pairz"], "there is no row 'pairz'; rows are devices, bulk, mqtt5, own"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--write", "--quick"], "--write needs a full run"),
        (["--write", "--rows", "pairs"], "--write needs all rows of a group"),
        (["--write", "--beside", "nothing"], "--write needs all brokers"),
        (["--beside", "emqx"], "there is no broker 'emqx'; there are released, mosquitto, nats"),
    ],
)
def test_invalid_arguments_are_refused_in_a_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run.parse_arguments(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


# ----------------------------------------------------------------- ratios and verdicts


def test_a_ratio_is_the_median_of_those_of_the_pairs() -> None:
    (row,) = rows(delivered(100, 50, 90), delivered(100, 100, 100))
    assert row.ratios["released"] == 0.9
    assert row.values == {"foldmq": 90, "released": 100}


def test_pairs_beyond_those_of_another_broker_do_not_count_for_it() -> None:
    (row,) = rows(delivered(100, 10), delivered(100, 10), mosquitto=delivered(200))
    assert row.ratios == {"released": 1, "mosquitto": 0.5}


@pytest.mark.parametrize(
    ("own", "expected"), [(95.1, 0), (94.9, 1), (200.0, 0)], ids=["as much", "less", "more"]
)
def test_a_rate_may_be_worse_by_five_percent(own: float, expected: int) -> None:
    found = rows(delivered(own), delivered(100))
    assert len(rounds.worse(found)) == expected
    assert run.verdict(found, judged=True) == expected


@pytest.mark.parametrize(
    ("own", "expected"), [(2.09, 0), (2.11, 1), (1.0, 0)], ids=["as long", "longer", "shorter"]
)
def test_of_a_latency_less_is_better(own: float, expected: int) -> None:
    assert len(rounds.worse(rows(waited(own), waited(2.0)))) == expected


def test_a_99th_percentile_is_not_judged() -> None:
    own = [{"latency_us": {"p50": 2000.0, "p99": 90_000.0}}]
    assert rounds.worse(rows(own, waited(2.0))) == []


def test_a_run_in_which_foldmq_loses_messages_fails(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows([{**delivered(100)[0], "problem": "lost 3"}], delivered(100))
    assert run.verdict(found, judged=True) == 1
    said = capsys.readouterr().err
    assert "failed: pairs failed: lost 3" in said
    assert "pairs: delivered /s has no value, foldmq 0.1.0 has 100" in said


def test_a_broker_that_loses_messages_has_no_figure_and_fails_nothing() -> None:
    lost = [{**delivered(100)[0], "problem": "lost 3"}]
    found = rows(delivered(100), delivered(100), nats=lost)
    assert found[0].values["nats"] is None
    assert found[0].ratios["nats"] is None
    assert run.verdict(found, judged=True) == 0


def test_a_target_that_is_not_met_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    conn = next(load for load in LOADS if load.name == "conn")
    result = {"connected": 9_999, "conn_per_s": 1.0, "kib_per_conn": 1.0}
    found = rounds.rows_of(conn, {"foldmq": [result]}, quick=False)
    assert run.verdict(found, judged=True) == 1
    assert "target not met: conn: accepted is 9,999, not >= 10,000" in capsys.readouterr().err
    assert run.verdict(found, judged=False) == 0


# ----------------------------------------------------------------- level 5 beside 3.1.1


def at_level_5(
    name: str, monkeypatch: pytest.MonkeyPatch, pairs: int = 0, **rates: list[float]
) -> list[Any]:
    """The rows of a comparison whose runs gave these rates."""
    comparison = next(one for one in mqtt5_loads.COMPARISONS if one.name == name)
    left = {comparison.arguments: iter(rates["own"]), comparison.other: iter(rates["other"])}

    def measured(_one: Any, arguments: str, _options: Any) -> dict[str, Any]:
        rate = next(left[arguments])
        used = {"received": 1000, "broker_cpu_s": 5 / rate}
        return {"recv_per_s": rate, "latency_us": {"p50": rate, "p99": rate}, **used}

    monkeypatch.setattr(mqtt5_loads, "_run", measured)
    monkeypatch.setattr(mqtt5_loads, "PAIRS", pairs or len(rates["own"]))
    return mqtt5_loads.measure_comparison(comparison, run.parse_arguments(["--rounds", "1"]))


@pytest.mark.parametrize(
    ("name", "own", "expected"),
    [
        ("5-qos1", [96.0, 50.0, 97.0], 0),
        ("5-qos1", [94.0, 200.0, 93.0] * 2, 1),
        ("5-qos1", [94.0, 50.0, 97.0, 96.0, 97.0, 98.0], 0),
        ("5-props-qos1", [81.0, 81.0, 79.0], 0),
        ("5-mixed1", [84.0, 84.0, 86.0] * 2, 1),
        ("5-shared", [89.0, 91.0, 91.0], 0),
        ("5-latency", [104.0, 104.0, 107.0], 0),
        ("5-latency", [106.0, 104.0, 107.0] * 2, 1),
    ],
)
def test_level_5_is_judged_by_the_median_ratio_of_its_pairs(
    monkeypatch: pytest.MonkeyPatch, name: str, own: list[float], expected: int
) -> None:
    """Where the median of three pairs misses the target, that of six counts."""
    found = at_level_5(name, monkeypatch, 3, own=own, other=[100.0] * len(own))
    assert run.verdict(found, judged=True) == expected


def test_a_comparison_in_which_messages_are_lost_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = {"recv_per_s": 100.0, "problem": "lost 3"}
    monkeypatch.setattr(mqtt5_loads, "_run", lambda *_: lost)
    monkeypatch.setattr(mqtt5_loads, "PAIRS", 1)
    comparison = mqtt5_loads.COMPARISONS[-1]
    found = mqtt5_loads.measure_comparison(comparison, run.parse_arguments(["--rounds", "1"]))
    assert run.verdict(found, judged=True) == 1


# ----------------------------------------------------------------- rounds


class Machine:
    """Replaces the runs: records the order of the brokers, and returns the given rates."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **rates: float) -> None:
        self.ran: list[str] = []
        self.rates = rates
        monkeypatch.setattr(rounds, "_run", self.run)

    def run(self, _load: Any, broker: Any, _options: Any) -> dict[str, Any]:
        self.ran.append(broker.name)
        rate = self.rates[broker.name]
        return delivered(rate)[0] if rate else {**delivered(1)[0], "problem": "idle"}


def test_brokers_take_turns_and_the_order_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, foldmq=100, released=100, mosquitto=300)
    chosen = [Foldmq, Released, Mosquitto]
    rounds.measure(PAIRS, chosen, run.parse_arguments(["--rounds", "2"]))
    assert machine.ran == [
        *("foldmq", "released", "mosquitto"),
        *("mosquitto", "released", "foldmq"),
    ]


def test_a_row_that_looks_worse_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, foldmq=80, released=100, mosquitto=300)
    options = run.parse_arguments(["--rounds", "2"])
    (row,) = rounds.measure(PAIRS, [Foldmq, Released, Mosquitto], options)
    assert machine.ran[6:] == ["foldmq", "released", "released", "foldmq"]
    assert row.ratios["released"] == 0.8


def test_a_broker_that_failed_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, foldmq=100, nats=0)
    (row,) = rounds.measure(PAIRS, [Foldmq, NatsServer], run.parse_arguments(["--rounds", "3"]))
    assert machine.ran.count("nats") == 1
    assert row.problems == {"nats": "idle"}


# ----------------------------------------------------------------- tables


def test_a_page_gets_other_tables_between_its_marks() -> None:
    page = "a\n<!-- make bench: bulk -->\nold\n<!-- end of bulk -->\nb\n"
    assert tables.replaced(page, "bulk", "new") == (
        "a\n<!-- make bench: bulk -->\n\nnew\n\n<!-- end of bulk -->\nb\n"
    )
    with pytest.raises(BenchError, match="exactly one part"):
        tables.replaced(page, "devices", "new")


def test_the_page_of_benchmarks_has_all_marks_devices_first() -> None:
    text = (ROOT / "bench" / "results.md").read_text("utf-8")
    for group in tables.GROUPS:
        text = tables.replaced(text, group, "new")
    places = [text.index(f"<!-- make bench: {group} -->") for group in tables.GROUPS]
    assert places == sorted(places)


# ----------------------------------------------------------------- release and interpreter


@pytest.mark.parametrize(
    ("compared", "told_to", "build", "refused"),
    [
        (True, False, False, True),
        (True, True, False, False),
        (False, False, False, False),
        (True, False, True, False),
        (True, False, None, False),
    ],
)
def test_nothing_is_compared_on_a_build_that_is_not_optimised(
    monkeypatch: pytest.MonkeyPatch,
    compared: bool,
    told_to: bool,
    build: bool | None,
    refused: bool,
) -> None:
    monkeypatch.setattr(interpreter, "own", lambda: build)
    found = optimised_python.refusal(compared=compared, told_to=told_to)
    assert (found is not None) is refused
    assert found is None or "--any-python" in found


def test_the_last_release_is_a_tag_or_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(released_version, "_git", lambda *_: "v1.2.3")
    assert released_version.last() == ("1.2.3", "v1.2.3")
    monkeypatch.setattr(released_version, "_git", lambda *_: None)
    monkeypatch.setattr(released_version, "RECORDED", tmp_path / "released_version.txt")
    with pytest.raises(BenchError, match="--released COMMIT"):
        released_version.last()
    (tmp_path / "released_version.txt").write_text("1.0.0 abcdef\n")
    assert released_version.last() == ("1.0.0", "abcdef")


@pytest.mark.parametrize("folder", ["", "foldmq_packages/"])
def test_compiled_modules_of_a_release_take_the_place_of_its_sources(
    tmp_path: Path, folder: str
) -> None:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    (tmp_path / "actors").mkdir()
    (tmp_path / "actors/kernel.py").touch()
    with zipfile.ZipFile(tmp_path / "wheel.whl", "w") as wheel:
        wheel.writestr(f"{folder}actors/kernel{suffix}", b"")
        wheel.writestr(f"{folder}abc__mypyc{suffix}", b"")
    with zipfile.ZipFile(tmp_path / "wheel.whl") as wheel:
        compiled = released_version.compiled_beside_sources(wheel, tmp_path)
    assert compiled == [f"{tmp_path}/actors/kernel"]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of one commit, tagged v0.1.0, in the place of this one."""
    place = tmp_path / "clone"
    (place / "cli").mkdir(parents=True)
    (place / "cli" / "main.py").write_text("released\n")
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "m"], ["tag", "v0.1.0"]):
        subprocess.run(["git", *who, *words], cwd=place, check=True)
    (place / "cli" / "main.py").write_text("changed\n")
    monkeypatch.setattr(released_version, "ROOT", place)
    return place


@pytest.mark.system
def test_a_commit_is_checked_out_separately(clone: Path, tmp_path: Path) -> None:
    with released_version.checked_out("v0.1.0", tmp_path):
        assert (Released.root / "cli" / "main.py").read_text() == "released\n"
        assert Released.root != clone
    assert not Released.root.exists()
