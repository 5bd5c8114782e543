"""``foldmq acl check``: its output and its exit codes."""

import json
from pathlib import Path

import pytest
from harness import forkserver
from harness.broker import environment

pytestmark = pytest.mark.system

RULES = """
[groups]
ops = ["ann"]

[[allow]]
users = ["*"]
both = ["plant/#"]

[[allow]]
groups = ["ops", "vouched"]
publish = ["orders/%c"]

[[deny]]
subscribe = ["plant/+/secret"]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "permissions.toml"
    path.write_text(RULES)
    return path


def run(*arguments: str, **env: str) -> tuple[int, str, str]:
    code, out, err = forkserver.run(("acl", "check", *arguments), {**environment(), **env}, 30)
    assert b"Traceback" not in err
    return code, out.decode(), err.decode()


def check(path: Path, *arguments: str) -> tuple[int, list[str]]:
    code, out, err = run(*arguments, "--permissions", str(path))
    assert err == ""
    return code, out.splitlines()


def test_allowed(path: Path) -> None:
    assert check(path, "ann", "c1", "publish", "orders/c1") == (
        0,
        [
            f"allowed: allow publish orders/%c ({path}:9: [[allow]] 2)",
            "user ann (groups ops), client c1: publish orders/c1",
        ],
    )


def test_a_group_from_a_token(path: Path) -> None:
    assert check(path, "bob", "c1", "publish", "orders/c1")[0] == 1
    assert check(path, "bob", "c1", "publish", "orders/c1", "--group", "vouched")[0] == 0


def test_denied_by_a_rule(path: Path) -> None:
    assert check(path, "bob", "c1", "subscribe", "plant/a/secret") == (
        1,
        [
            f"denied: deny subscribe plant/+/secret ({path}:13: [[deny]] 1)",
            "user bob, client c1: subscribe to plant/a/secret",
        ],
    )


def test_denied_as_no_rule_allows_it(path: Path) -> None:
    assert check(path, "-", "c1", "publish", "plant/a") == (
        1,
        ["denied: no rule allows it", "no user, client c1: publish plant/a"],
    )


def test_a_subscription_of_which_topics_are_denied(path: Path) -> None:
    code, lines = check(path, "bob", "c1", "subscribe", "plant/#")
    assert code == 0
    assert lines[2:] == [
        "but messages are withheld by:",
        f"  deny subscribe plant/+/secret ({path}:13: [[deny]] 1)",
    ]


def test_a_subscription_of_which_a_part_would_be_allowed(path: Path) -> None:
    code, lines = check(path, "bob", "c1", "subscribe", "+/a")
    assert code == 1
    assert lines[0] == "denied: no rule allows all of it"
    assert lines[3].strip().startswith("allow publish and subscribe plant/# (")


@pytest.mark.parametrize(("action", "topic"), [("publish", "$SYS/a"), ("subscribe", "$JS/#")])
def test_topics_reserved_for_the_broker(path: Path, action: str, topic: str) -> None:
    path.write_text('[[allow]]\nboth = ["#", "$SYS/#", "$JS/#"]\n')
    code, lines = check(path, "bob", "c1", action, topic)
    assert code == 1
    assert "reserved for the broker" in lines[0]


def test_json(path: Path) -> None:
    code, lines = check(path, "bob", "c1", "subscribe", "plant/#", "--json")
    assert code == 0
    said = json.loads(lines[0])
    assert said["allowed"] is True
    assert said["rule"]["filter"] == "plant/#"
    assert [row["where"] for row in said["partly"]] == [f"{path}:13: [[deny]] 1"]


def test_the_file_is_found_through_the_settings(path: Path, tmp_path: Path) -> None:
    config = tmp_path / "foldmq.toml"
    config.write_text(f'permissions = "{path}"\n')
    question = ("bob", "c1", "publish", "plant/a")
    assert run(*question, "--config", str(config))[0] == 0
    assert run(*question, FOLDMQ_CONFIG=str(config))[0] == 0
    assert run(*question, FOLDMQ_PERMISSIONS=str(path))[0] == 0
    config.write_text("")
    code, out, _ = run(*question, "--config", str(config))
    assert (code, out.splitlines()[0]) == (
        0,
        "allowed: no permissions are set, everything is allowed",
    )
    code, _, err = run(*question)
    assert code == 2
    assert err == "foldmq: give --permissions FILE, or the broker's settings with --config FILE\n"


@pytest.mark.parametrize(
    ("action", "topic", "reason"),
    [
        ("publish", "a/+", "a/+: topic name contains a wildcard"),
        ("subscribe", "a/#/b", "a/#/b: '#' is not a whole level at the end of the filter"),
        ("publish", "", '"": empty topic name'),
        ("publish", "x" * 70_000, "topic name is 70000 bytes long"),
    ],
)
def test_invalid_topics(path: Path, action: str, topic: str, reason: str) -> None:
    code, out, err = run("bob", "c1", action, topic, "--permissions", str(path))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert reason in err
    assert len(err) < 300


def test_a_bad_file(path: Path) -> None:
    path.write_text("[[allow]]\nboth = ['a#']\n")
    code, out, err = run("bob", "c1", "publish", "a", "--permissions", str(path))
    assert (code, out) == (78, "")
    assert err.startswith(f"foldmq: {path}:1: [[allow]] 1: both: ")
    path.unlink()
    code, _, err = run("bob", "c1", "publish", "a", "--permissions", str(path))
    assert code == 78
    assert "cannot read permissions" in err


def test_hostile_names_are_harmless(path: Path) -> None:
    path.write_text('[[allow]]\nusers = ["*"]\nboth = ["%u/#"]\n[[deny]]\nboth = ["\\u202ex"]\n')
    nasty = "\x1b[2J\u202e" + "x" * 5000
    code, lines = check(path, nasty, nasty, "subscribe", f"{nasty}/#")
    assert code == 0
    assert all(line.isprintable() and len(line) < 1000 for line in lines)
    code, lines = check(path, nasty, nasty, "publish", f"{nasty}/#"[:-2], "--json")
    assert code == 0
    assert all(line.isascii() and line.isprintable() for line in lines)
    code, lines = check(path, "bob", "c", "publish", "\u202ex")
    assert code == 1
    assert all(line.isprintable() for line in lines)
