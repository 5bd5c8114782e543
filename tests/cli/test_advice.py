"""The sentences about problems in ``foldmq doctor`` and on the page of problems."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli.commands.advice import _KINDS, advise, merge_advice
from cli.commands.broker_advice import advise_on_broker, advise_on_disk
from cli.commands.refusal_advice import _REFUSALS, advise_on_refusals
from cli.commands.status import crash_text
from cli.logs.next_commands import SERVER_LOG, NextCommands
from cli.logs.source_flags import SourceFlags
from eventstore.format.node_events import LogEndUnproven
from projections.log_proof import Doubt, doubt_object, unproven_end

HOSTILE = 'evil\x1b[2J\n"; rm -rf'
SOURCE = Path(__file__).resolve().parents[2] / "actors" / "inspection" / "problems.py"

PROBLEMS: list[dict[str, Any]] = [
    {
        "code": "queue_full", "queue": "queue_messages", "queued": 9, "max_queued": 9,
        "queued_bytes": 90, "max_queued_bytes": 900, "connected": False, "offline_ms": 60_000,
    },
    {
        "code": "queue_filling", "queue": "", "queued": 8, "max_queued": 9, "queued_bytes": 90,
        "max_queued_bytes": 900, "connected": True, "offline_ms": None,
    },
    {
        "code": "window_full", "filter": HOSTILE, "outstanding": 5, "window": 5, "queued": 3,
        "age_ms": 20_000,
    },
    {"code": "receive_maximum", "outstanding": 3, "window": 3, "queued": 0, "age_ms": 20_000},
    {"code": "drops", "count": 5, "by": {"queue_bytes": 3, "odd\n": 2}, "age_ms": 500},
    {"code": "denied", "count": 2, "what": {f"publish {HOSTILE}": 2}, "age_ms": 500},
    {
        "code": "duplicate", "takeovers": 4, "recent_takeovers": 3, "recent": 0, "age_ms": 500,
        "hosts": ["192.0.2.1"],
    },
    {
        "code": "flapping", "connects": 9, "recent": 5, "failed": 4, "last_close": "keep_alive",
        "age_ms": 500,
    },
    {
        "code": "unacknowledged", "count": 2, "filters": {HOSTILE: 2}, "age_ms": 40_000,
        "silent_ms": 40_000, "quiet_ms": 40_000, "sent_again": True,
    },
    {"code": "slow_acks", "count": 2, "filters": {}, "age_ms": 40_000, "quiet_ms": 900},
    {"code": "stuck_release", "count": 2, "age_ms": 40_000},
    {"code": "stuck_publish", "count": 2, "connected": True, "first": 1 << 20},
    {"code": "slow_reader", "unsent": 5000, "max_unsent": 9000, "address": "[::1]:4"},
    {"code": "no_member", "queued": 3, "members": 2},
    {"code": "replay_stopped", "filter": HOSTILE, "state": "damaged"},
    {"code": "replay_behind", "filter": HOSTILE, "connected": False},
    {"code": "of a later broker"},
]  # fmt: skip


def shell_words(command: str) -> list[str]:
    """Return the words of a command as a shell reads it."""
    printed = subprocess.run(
        ["/bin/bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True, text=True
    )
    return printed.stdout.split("\0")[:-1]


@pytest.mark.system
@pytest.mark.parametrize("name", ["-v", "a b", "a -- b", "it's", HOSTILE, "-\x07'\\é\u202e"])
def test_the_command_that_shows_a_session_names_it(name: str) -> None:
    command = advise({"client": name, **PROBLEMS[0]}).next
    words = shell_words(NextCommands(SourceFlags({"data_dir": "d"})).complete(command))
    assert words[1:3] == ["sessions", "show"]
    given = words[3:] if not name.startswith("-") else [words[-1], *words[3:-2]]
    assert given == [name, "--data-dir", "d"]
    if name.startswith("-"):
        assert words[-2] == "--"


@pytest.mark.system
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: str(one["code"]))
def test_each_problem_has_evidence_cause_and_command(problem: dict[str, Any]) -> None:
    advice = advise({"client": HOSTILE, **problem})
    assert all(line.isprintable() for line in advice[:-1])
    assert advice.next.startswith("foldmq ")
    assert shell_words(advice.next).count(HOSTILE) == 1  # also a name that is not printable
    if problem["code"] in _KINDS:
        assert advice.evidence
        assert advice.cause
    plain = advise({"client": "pump 7", **problem})
    assert "'pump 7'" in plain.next


@pytest.mark.parametrize(
    "code", ["window_full", "receive_maximum", "stuck_release", "unacknowledged", "slow_acks"]
)
def test_deliveries_of_an_earlier_connection_are_older_than_known(code: str) -> None:
    (problem,) = [one for one in PROBLEMS if one["code"] == code]
    age = f"the oldest for {problem['age_ms'] // 1000} s"
    assert age in advise({"client": "a", **problem, "resumed": False}).evidence
    least = age.replace("for ", "for at least ")
    assert least in advise({"client": "a", **problem, "resumed": True}).evidence


@pytest.mark.parametrize("key", ["", "the key"])
def test_a_salvage_names_the_directory_of_a_settings_file(tmp_path: Path, key: str) -> None:
    file = tmp_path / "foldmq.toml"
    data_dir = tmp_path / "the data"
    more = f"encryption_key_file = '{tmp_path / key}'\n" if key else ""
    file.write_text(f"data_dir = '{data_dir}'\n{more}")
    advice = "or use foldmq salvage --data-dir DIR --to NEWDIR (while no broker runs)"
    text = NextCommands(SourceFlags(config=file)).in_text(advice)
    assert f" salvage --data-dir '{data_dir}' --to '{data_dir}.salvaged'" in text
    assert (f"--encryption-key-file '{tmp_path / key}'" in text) is bool(key)
    file.write_text("nats_url = 'nats://example.com'\n")
    assert NextCommands(SourceFlags(config=file)).in_text(advice) == advice


DENIED: dict[str, Any] = {
    "client": "pump", "code": "denied", "count": 1, "what": {"publish a/b": 1}, "age_ms": 500,
    "permissions": "/etc/rules.toml", "user": None, "groups": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({}, "- pump publish a/b --permissions /etc/rules.toml"),
        (
            {"user": "o'neill", "groups": ["ops", "a b"], "permissions": "/my rules"},
            "'o'\"'\"'neill' pump publish a/b --permissions '/my rules' --group ops --group 'a b'",
        ),
        (
            {"client": "-v", "what": {"subscribe #": 1}},
            "--permissions /etc/rules.toml -- - -v subscribe '#'",
        ),
    ],
)
def test_the_check_of_a_denial_can_be_pasted(about: dict[str, Any], words: str) -> None:
    assert advise({**DENIED, **about}).next == f"foldmq acl check {words}"


@pytest.mark.parametrize(
    "about",
    [
        {"permissions": None}, {"user": "-"}, {"user": "a\n"}, {"what": {"will a/b": 1}},
        {"what": {"publish a\\\\b": 1}}, {"what": {f"publish {'a' * 200}...(9 more)": 1}},
    ],
)  # fmt: skip
def test_a_denial_that_cannot_be_checked_shows_the_session(about: dict[str, Any]) -> None:
    assert advise({**DENIED, **about}).next == "foldmq sessions show pump"


def test_every_problem_that_the_broker_finds_has_sentences() -> None:
    found = set(re.findall(r'"code": "(\w+)"', SOURCE.read_text("utf-8")))
    found |= set(re.findall(r'"(queue_full|queue_filling)"', SOURCE.read_text("utf-8")))
    assert found == set(_KINDS)
    assert found <= {one["code"] for one in PROBLEMS}


def test_drops_are_reported_once() -> None:
    full = {"client": "a", **PROBLEMS[0]}
    drops = {"client": "a", "code": "drops", "count": 5, "by": {"queue_messages": 5}, "age_ms": 1}
    (one,) = merge_advice([full, drops])
    assert one["lost"] == 5
    assert "9 of 9 messages wait, 5 messages dropped since" in advise(one).evidence
    other = {"client": "b", **drops, "by": {"queue_messages": 4, "slow_reader": 1}}
    assert [one["client"] for one in merge_advice([{**other, "client": "b"}, full])] == ["a", "b"]
    denied = {"client": "c", **PROBLEMS[5]}
    lost = {"client": "c", "code": "drops", "count": 2, "by": {"not_permitted": 2}, "age_ms": 1}
    assert merge_advice([lost, denied]) == [denied]


@pytest.mark.parametrize(
    ("by", "types"),
    [
        ({"slow_reader": 2}, ["MessageDropped"]),
        ({"expired": 2}, ["Expired"]),
        ({"expired": 2, "queue_bytes": 1}, ["MessageDropped", "Expired"]),
    ],
)
def test_the_command_for_drops_lists_the_events_that_record_them(
    by: dict[str, int], types: list[str]
) -> None:
    drops = {"client": "a", "code": "drops", "count": 3, "by": by, "age_ms": 1}
    words = shlex.split(advise(drops).next)
    assert [words[at + 1] for at, word in enumerate(words) if word == "--type"] == types


@pytest.mark.parametrize(
    ("unrecorded", "types"),
    [
        ({"expired": 2}, ["MessageDropped"]),
        ({"expired": 1}, ["MessageDropped", "Expired"]),
        ({"queue_bytes": 1}, ["Expired"]),
        ({"queue_bytes": 1, "expired": 2}, []),
    ],
)
def test_no_command_lists_drops_without_events(
    unrecorded: dict[str, int], types: list[str]
) -> None:
    by = {"expired": 2, "queue_bytes": 1}
    drops = {"client": "a", "code": "drops", "count": 3, "by": by, "age_ms": 1}
    advice = advise({**drops, "unrecorded": unrecorded})
    words = shlex.split(advice.next)
    assert [words[at + 1] for at, word in enumerate(words) if word == "--type"] == types
    count = sum(unrecorded.values())
    assert f"; {count} without an event of their own in the log" in advice.evidence
    if not types:
        assert advice.next == "foldmq sessions show a"
        gone = advise({**drops, "unrecorded": unrecorded, "session": False})
        assert gone.next == "foldmq log --session a -n 5"


def test_a_client_that_no_longer_flaps_is_a_notice() -> None:
    (flapping,) = (one for one in PROBLEMS if one["code"] == "flapping")
    assert advise({"client": "a", **flapping, "lasts": True}).severity == "warning"
    over = advise({"client": "a", **flapping, "lasts": False})
    assert (over.severity, over.title) == ("notice", "connected again and again; it no longer does")


@pytest.mark.parametrize("last_close", ["disconnect", "taken_over", "kicked", "broker_stopped"])
def test_an_orderly_end_is_no_fault_of_what_a_flapping_client_sends(last_close: str) -> None:
    (flapping,) = (one for one in PROBLEMS if one["code"] == "flapping")
    advice = advise({"client": "a", **flapping, "last_close": last_close})
    assert advice.cause == "the client fails after it connected, or its network does"


@pytest.mark.parametrize(
    ("about", "command"),
    [
        ({"reason": "subscribe_rate", "session": True}, "foldmq sessions show pump"),
        ({"reason": "subscribe_rate", "session": False}, "foldmq log --session pump -n 5"),
        ({"reason": "protocol_error", "closed": False}, SERVER_LOG),
    ],
)
def test_the_command_for_a_refused_client_finds_it(about: dict[str, Any], command: str) -> None:
    refusal = {"count": 20, "recent": 10, "age_ms": 1, "client": "pump", **about}
    (advice,) = advise_on_refusals([refusal])
    assert advice.next == command


@pytest.mark.parametrize(
    ("limits", "full"),
    [
        ({}, "1 min 40 s"),
        ({"keep_s": 50.0}, None),
        ({"keep_s": 500.0}, "1 min 40 s"),
        ({"keep_s": 500.0, "keep_bytes": 700}, None),
        ({"keep_s": 50.0, "keep_until_archived": True}, "1 min 40 s"),
    ],
)
def test_a_disk_runs_out_unless_the_log_is_cut_before(
    limits: dict[str, Any], full: str | None
) -> None:
    kept = limits_in_gigabytes(limits)
    status = writing(free=1000 * 10**9, rate=10 * 10**9)
    found = [one.evidence.partition(": full in ")[2] for one in advise_on_disk([status], [kept])]
    assert found == ([] if full is None else [full])
    assert not [*advise_on_disk([writing(free=1000 * 10**9, rate=0)], [kept])]


def writing(free: int | None, rate: int, held: int = 0) -> dict[str, Any]:
    """Return the status of a broker that has written for 100 s at a rate."""
    log = {"disk_free": free, "bytes": rate * 100, "stream_bytes": held}
    return {"log": log, "time_ms": 100_000, "started_ms": 0}


def limits_in_gigabytes(limits: dict[str, Any]) -> dict[str, Any]:
    """Return limits whose sizes are in gigabytes, in bytes."""
    return {**limits, "keep_bytes": limits.get("keep_bytes", 0) * 10**9}


def test_several_logs_fill_a_disk_together() -> None:
    """Each log fits alone: 30 of 50 GB."""
    statuses = [writing(free=50 * 10**9, rate=10**9) for _ in range(2)]
    limits = [{"keep_bytes": 30 * 10**9}] * 2
    assert not [*advise_on_disk(statuses[:1], limits[:1])]
    (advice,) = advise_on_disk(statuses, limits)
    assert advice.severity == "problem"
    assert "full in 25 s" in advice.evidence
    unknown = [statuses[0], writing(free=None, rate=10**9)]
    assert not [*advise_on_disk(unknown, limits)]


def test_advice_on_the_broker() -> None:
    status: dict[str, Any] = {
        "trouble": ["the log cannot be written\x1b"], "overload": "commit_latency",
        "time_ms": 200_000, "started_ms": 0, "crashed_ms": None,
        "log": {"disk_free": 5 * 10**8, "bytes": 10**6, "stream_bytes": 10**6},
    }  # fmt: skip
    found = [
        *advise_on_broker(status, ["replica n2 is 5 records behind"]),
        *advise_on_disk([status], [{"keep_s": 604_800}]),
    ]
    assert [(one.severity, one.subject) for one in found] == [
        ("problem", "the broker"),
        ("problem", "the log"),
        ("problem", "the disk"),
    ]
    assert all(text.isprintable() for one in found for text in one[:-1])
    healthy = {**status, "trouble": [], "overload": None, "log": {"disk_free": None}}
    assert [*advise_on_broker(healthy, []), *advise_on_disk([healthy], [{}])] == []


def test_a_store_that_is_gone_is_reported_once() -> None:
    gone = "the store of the log in /data/jetstream is gone: records 1 to 7 are lost"
    status: dict[str, Any] = {
        "trouble": [f"the log cannot be written: {gone}"], "time_ms": 200_000, "started_ms": 0,
        "log": {"disk_free": None, "store_damage": gone},
    }  # fmt: skip
    (one,) = advise_on_broker(status, [])
    assert (one.severity, one.title, one.evidence) == ("problem", "lost files of the log", gone)


def test_a_damaged_record_is_a_problem_of_a_broker_that_serves() -> None:
    status: dict[str, Any] = {
        "trouble": [], "time_ms": 200_000, "started_ms": 0,
        "log": {"store_damage": None, "damage": "record 7 has a wrong checksum"},
    }  # fmt: skip
    (one,) = advise_on_broker(status, [])
    assert (one.severity, one.subject, one.title) == ("problem", "the log", "is damaged")
    assert (one.evidence, one.next) == ("record 7 has a wrong checksum", "foldmq log verify")


@pytest.mark.parametrize("trouble", ["", "personal_key_file = k: cannot be written: I/O error"])
def test_an_erasure_that_is_not_finished_is_named(trouble: str) -> None:
    status: dict[str, Any] = {
        "trouble": [], "time_ms": 200_000, "started_ms": 0,
        "erasures": {"pending": 1, "keys": 7, "trouble": trouble},
    }  # fmt: skip
    (one,) = advise_on_broker(status, [])
    assert (one.severity, one.title) == ("problem" if trouble else "warning", "is not finished")
    assert one.evidence == (trouble or "it was requested, and its keys still exist")
    assert [*advise_on_broker({**status, "erasures": {"pending": 0}}, [])] == []


@pytest.mark.parametrize(
    ("counts", "delay", "slow"),
    [
        ([100, 300, 700, 0], 0.003, True),
        ([100, 600, 500, 0], 0.003, False),
        ([10, 30, 70, 0], 0.003, False),
        ([100, 300, 700, 0], 0.01, False),
    ],
)
def test_a_slow_disk_is_a_reason_for_a_longer_commit_delay(
    counts: list[int], delay: float, *, slow: bool
) -> None:
    status: dict[str, Any] = {
        "trouble": [], "time_ms": 200_000, "started_ms": 0,
        "log": {"disk_free": None, "commit_delay": delay},
        "commit": {"bounds": [0.001, 0.006, 0.1], "counts": counts, "count": sum(counts)},
    }  # fmt: skip
    found = [*advise_on_broker(status, [])]
    assert len(found) == slow
    for one in found:
        assert one.severity == "notice"
        assert "commit_delay = 10ms" in one.cause


def test_a_failed_reload_is_a_problem_until_one_succeeds() -> None:
    failed = {"time_ms": 140_000, "error": "perm.toml: not TOML\x1b", "restart": []}
    status: dict[str, Any] = {
        "trouble": [], "time_ms": 200_000, "started_ms": 0, "reload": failed,
    }  # fmt: skip
    (one,) = advise_on_broker(status, [])
    assert (one.severity, one.title) == ("problem", "did not take its new settings")
    assert one.evidence == "perm.toml: not TOML\\u001b; 1 min ago"
    assert one.next == "foldmq reload"
    assert not [*advise_on_broker({**status, "reload": {**failed, "error": ""}}, [])]
    assert not [*advise_on_broker({**status, "reload": None}, [])]


def refusal(**about: Any) -> dict[str, Any]:
    """Return a protocol error of a client."""
    return {
        "reason": "protocol_error", "count": 1, "recent": 1, "age_ms": 12_000, "client": "pump",
        "address": "192.0.2.1:5000", "error": "invalid flags", **about,
    }  # fmt: skip


def test_a_protocol_error_is_a_notice_that_names_the_client() -> None:
    (one,) = advise_on_refusals([refusal()])
    assert one.severity == "notice"
    assert f"{one.subject} {one.title}" == (
        "a connection was closed: the client violated the protocol"
    )
    assert one.evidence == "12 s ago: client pump, from 192.0.2.1:5000 (invalid flags)"
    assert one.next == "foldmq log --type SessionClosed --session pump -n 6"
    (one,) = advise_on_refusals([refusal(count=60, recent=10)])
    assert one.severity == "warning"
    assert f"{one.subject} {one.title}".startswith("connections were closed: ")
    assert one.evidence.startswith(
        "10 or more in the last hour, 60 since the broker's start; the last 12 s ago: client pump"
    )
    (one,) = advise_on_refusals([refusal(client=None)])
    assert one.next == SERVER_LOG
    (one,) = advise_on_refusals([refusal(reason="slow_reader", error=None)])
    assert (one.severity, one.cause.startswith("the client or its network")) == ("warning", True)


def test_a_packet_that_is_too_large_leads_to_the_setting() -> None:
    error = "packet of 70011 bytes, at most 65536 are accepted [MQTT-4.8.0-1]"
    (one,) = advise_on_refusals([refusal(error=error)])
    assert one.cause.endswith("raise max_packet_size")
    flapping = {
        "code": "flapping", "client": "camera", "connects": 9, "since_ms": 1, "recent": 5,
        "failed": 4, "last_close": "protocol_error",
    }  # fmt: skip
    assert advise(flapping).cause.startswith("the broker ends its connections")
    assert "its network" in advise({**flapping, "last_close": "keep_alive"}).cause


def test_each_refusal_has_a_sentence() -> None:
    source = (SOURCE.with_name("status_metrics.py")).read_text("utf-8")
    exported = re.search(r"^REFUSED = \((.*?)^\)", source, re.DOTALL | re.MULTILINE)
    assert exported is not None
    assert {*re.findall(r'"(\w+)"', exported[1])} <= {*_REFUSALS}
    for reason in [*_REFUSALS, "of a later broker"]:
        (one,) = advise_on_refusals([refusal(reason=reason, client=HOSTILE, user=HOSTILE)])
        assert all(line.isprintable() for line in one[:-1])
        assert one.cause
        assert one.next == SERVER_LOG or one.next.startswith("foldmq ")


def test_takeovers_have_two_explanations() -> None:
    (problem,) = [one for one in PROBLEMS if one["code"] == "duplicate"]
    one = advise({"client": "a", **problem})
    assert one.evidence == (
        "3 of its connections were taken over in the last 10 minutes, the last 500 ms ago; all "
        "from 192.0.2.1"
    )
    assert "two programs" in one.cause
    assert "lost its network" in one.cause
    hosts = {"hosts": ["192.0.2.1", "192.0.2.7"], "recent_takeovers": 16}
    one = advise({"client": "a", **problem, **hosts})
    assert one.evidence.startswith("16 or more of its connections")
    assert one.evidence.endswith("; from 192.0.2.1 and 192.0.2.7")
    assert "different hosts" in one.cause
    assert "moves between networks" in one.cause


def test_a_crash_is_reported_for_an_hour() -> None:
    status: dict[str, Any] = {
        "trouble": [], "time_ms": 400_000, "started_ms": 100_000, "crashed_ms": 40_000,
    }  # fmt: skip
    (one,) = advise_on_broker(status, [])
    assert (one.severity, one.title) == ("warning", "started after a crash")
    assert one.evidence == (
        "it started 5 min ago; the previous run did not end cleanly, its last write was 1 min "
        "before that"
    )
    assert not [*advise_on_broker({**status, "time_ms": 3_700_000}, [])]
    assert not [*advise_on_broker({**status, "crashed_ms": None}, [])]


@pytest.mark.parametrize(
    ("code", "title"),
    [
        ("duplicate", "connected again and again while it was connected; it no longer does"),
        ("denied", "was denied what it asked for"),
    ],
)
def test_what_is_over_is_a_notice_about_the_past(code: str, title: str) -> None:
    (problem,) = [one for one in PROBLEMS if one["code"] == code]
    assert advise({"client": "a", **problem, "lasts": True}).severity != "notice"
    past = advise({"client": "a", **problem, "lasts": False})
    assert (past.severity, past.title) == ("notice", title)


def test_next_commands_run_for_this_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.argv", ["./bin/foldmq", "doctor"])
    monkeypatch.chdir(tmp_path)
    flags = SourceFlags({"data_dir": "da ta", "nats_password": "geheim"}, node="a-p1")
    here = NextCommands(flags)
    assert here.complete("foldmq top") == "./bin/foldmq top --data-dir 'da ta' --node a-p1"
    assert here.complete("foldmq top --node b").endswith("top --node b --data-dir 'da ta'")
    assert here.complete("foldmq acl check a") == "./bin/foldmq acl check a"
    assert here.complete("nats server report jetstream").startswith("./bin/foldmq status --data")
    assert here.complete(SERVER_LOG) == here.complete("foldmq status")
    monkeypatch.setenv("FOLDMQ_NATS_URL", "nats://n:4222")
    monkeypatch.setenv("FOLDMQ_NATS_PASSWORD", "geheim")
    page = NextCommands(flags, elsewhere=True).complete("foldmq top")
    assert f"--nats-url nats://n:4222 --data-dir '{tmp_path}/da ta'" in page
    assert "geheim" not in page
    assert page.startswith("/")
    monkeypatch.setenv("FOLDMQ_NATS_URL", "nats://ann:geheim@n:4222")
    monkeypatch.setenv("FOLDMQ_CLUSTER", "c1")
    of_cluster = SourceFlags({"data_dir": "d"})
    page = NextCommands(of_cluster, elsewhere=True).complete("foldmq top")
    assert page.endswith(" top --nats-url nats://n:4222 --node c1")
    monkeypatch.setenv("FOLDMQ_PARTITIONS", "2")
    page = NextCommands(of_cluster, elsewhere=True).complete("foldmq top")
    assert page.endswith(" top --nats-url nats://n:4222")


def test_a_log_that_is_not_proven_is_urgent_for_a_day() -> None:
    day = 86_400_000
    copy = unproven_end(LogEndUnproven("copy", 12, 1000, 17), 13, 5000)
    status: dict[str, Any] = {"trouble": [], "time_ms": 4999 + day, "started_ms": 0}

    def found(doubt: Doubt, time_ms: int) -> tuple[str, str, str]:
        log = {"not_proven": [doubt_object(doubt)]}
        (one,) = advise_on_broker({**status, "time_ms": time_ms, "log": log}, [])
        assert "nothing can be said about" in one.evidence
        return one.severity, one.title, one.next

    command = "foldmq log --from 13.0 -n 3"
    assert found(copy, 4999 + day) == ("problem", "lacks records", command)
    assert found(copy, 5000 + day) == ("notice", "lacks records", command)
    unknown = copy._replace(missing=0)
    assert found(unknown, 4999 + day) == ("warning", "may lack records", command)
    assert found(unknown, 5000 + day) == ("notice", "may lack records", command)


def test_a_crash_is_told_with_what_is_known_of_the_end_of_the_log() -> None:
    status: dict[str, Any] = {
        "trouble": [], "time_ms": 400_000, "started_ms": 100_000, "crashed_ms": 40_000,
    }  # fmt: skip
    reached = "the log reaches the last record that was noted as acknowledged"
    (one,) = advise_on_broker(status, [])
    assert one.cause.endswith(reached)
    assert crash_text(status).endswith(reached)
