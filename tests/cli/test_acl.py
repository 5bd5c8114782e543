"""``foldmq acl``: permissions are checked, and rules of Mosquitto imported."""

import json
from pathlib import Path

import pytest
from harness import forkserver
from harness.broker import environment

from actors.access.rules_file import parse_rules
from cli.users.acl_import import translate

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


@pytest.mark.system
def test_allowed(path: Path) -> None:
    assert check(path, "ann", "c1", "publish", "orders/c1") == (
        0,
        [
            f"allowed: allow publish orders/%c ({path}:9: [[allow]] 2)",
            "user ann (groups ops), client c1: publish orders/c1",
        ],
    )


@pytest.mark.system
def test_a_group_from_a_token(path: Path) -> None:
    assert check(path, "bob", "c1", "publish", "orders/c1")[0] == 1
    assert check(path, "bob", "c1", "publish", "orders/c1", "--group", "vouched")[0] == 0


@pytest.mark.system
def test_denied_by_a_rule(path: Path) -> None:
    assert check(path, "bob", "c1", "subscribe", "plant/a/secret") == (
        1,
        [
            f"denied: deny subscribe plant/+/secret ({path}:13: [[deny]] 1)",
            "user bob, client c1: subscribe to plant/a/secret",
        ],
    )


@pytest.mark.system
def test_denied_as_no_rule_allows_it(path: Path) -> None:
    assert check(path, "-", "c1", "publish", "plant/a") == (
        1,
        ["denied: no rule allows it", "no user, client c1: publish plant/a"],
    )


@pytest.mark.system
def test_a_subscription_of_which_topics_are_denied(path: Path) -> None:
    code, lines = check(path, "bob", "c1", "subscribe", "plant/#")
    assert code == 0
    assert lines[2:] == [
        "but messages are withheld by:",
        f"  deny subscribe plant/+/secret ({path}:13: [[deny]] 1)",
    ]


@pytest.mark.system
def test_a_subscription_of_which_a_part_would_be_allowed(path: Path) -> None:
    code, lines = check(path, "bob", "c1", "subscribe", "+/a")
    assert code == 1
    assert lines[0] == "denied: no rule allows all of it"
    assert lines[3].strip().startswith("allow publish and subscribe plant/# (")


@pytest.mark.system
@pytest.mark.parametrize(("action", "topic"), [("publish", "$SYS/a"), ("subscribe", "$JS/#")])
def test_topics_reserved_for_the_broker(path: Path, action: str, topic: str) -> None:
    path.write_text('[[allow]]\nboth = ["#", "$SYS/#", "$JS/#"]\n')
    code, lines = check(path, "bob", "c1", action, topic)
    assert code == 1
    assert "reserved for the broker" in lines[0]


@pytest.mark.system
def test_json(path: Path) -> None:
    code, lines = check(path, "bob", "c1", "subscribe", "plant/#", "--json")
    assert code == 0
    said = json.loads(lines[0])
    assert said["allowed"] is True
    assert said["rule"]["filter"] == "plant/#"
    assert [row["where"] for row in said["partly"]] == [f"{path}:13: [[deny]] 1"]


@pytest.mark.system
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


@pytest.mark.system
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


@pytest.mark.system
def test_a_bad_file(path: Path) -> None:
    path.write_text("[[allow]]\nboth = ['a#']\n")
    code, out, err = run("bob", "c1", "publish", "a", "--permissions", str(path))
    assert (code, out) == (78, "")
    assert err.startswith(f"foldmq: {path}:1: [[allow]] 1: both: ")
    path.unlink()
    code, _, err = run("bob", "c1", "publish", "a", "--permissions", str(path))
    assert code == 78
    assert "cannot read permissions" in err


@pytest.mark.system
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


ACL = """\
# general
topic read news/#
topic deny news/secret

user ann
topic readwrite home/ann/#
topic write log/ann
topic deny home/ann/safe
topic readwrite plain/topic with space
topic write cost/50%u

user bob builder
topic read home/#

pattern write dev/%c/up
pattern read dev/%u/down
pattern read shared/#
"""


def permits(toml: str, user: str | None, action: str, topic: str, client: str = "c1") -> bool:
    access = parse_rules(Path("x"), toml).access(user, (), client)
    return access.explain(action, topic).allowed  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("user", "action", "topic", "allowed"),
    [
        (None, "subscribe", "news/a", True),
        (None, "publish", "news/a", False),
        (None, "subscribe", "news/secret", False),
        ("ann", "subscribe", "news/a", False),  # only for clients without a user name
        ("ann", "publish", "home/ann/x", True),
        ("ann", "subscribe", "home/ann/x", True),
        ("ann", "publish", "home/ann/safe", False),
        ("ann", "publish", "log/ann", True),
        ("ann", "subscribe", "log/ann", False),
        ("ann", "publish", "plain/topic with space", True),
        ("ann", "publish", "cost/50%u", True),
        ("ann", "publish", "cost/50ann", False),
        ("bob builder", "subscribe", "home/x", True),
        ("bob builder", "publish", "home/x", False),
        ("ann", "publish", "dev/c1/up", True),
        ("ann", "publish", "dev/c2/up", False),
        (None, "publish", "dev/c1/up", True),
        ("ann", "subscribe", "dev/ann/down", True),
        ("ann", "subscribe", "dev/bob/down", False),
        (None, "subscribe", "shared/x", True),
    ],
)
def test_rules(user: str | None, action: str, topic: str, allowed: bool) -> None:
    found = translate(ACL, "acl")
    assert found.problems == ()
    assert permits(found.toml, user, action, topic) is allowed


def test_lines_that_cannot_be_translated_are_named() -> None:
    content = "topic a\ntopic maybe b\nnonsense\nuser x*\ntopic c\nuser ann\ntopic a/#/b\ntopic d\n"
    found = translate(content, "acl")
    assert [number for number, _ in found.problems] == [2, 3, 4, 5, 7]
    assert permits(found.toml, "ann", "publish", "d")
    assert not permits(found.toml, "xy", "publish", "c")


def test_a_denial_by_a_pattern_is_stricter() -> None:
    found = translate("user ann\ntopic a/#\npattern deny a/b\n", "acl")
    ((number, reason),) = found.problems
    assert number == 3
    assert reason.startswith("translated, but stricter")
    assert not permits(found.toml, "ann", "publish", "a/b")
    assert translate("pattern read a/#\npattern deny a/b\n", "acl").problems == ()


@pytest.mark.system
def test_the_command(tmp_path: Path) -> None:
    source, output = tmp_path / "acl", tmp_path / "permissions.toml"
    source.write_bytes(b"\xef\xbb\xbf" + ACL.encode())

    def run(*arguments: str) -> tuple[int, str, str]:
        code, out, err = forkserver.run(["acl", *arguments], environment(), 60)
        return code, out.decode(), err.decode()

    assert run("import", str(source)) == (0, translate(ACL, str(source)).toml, "")
    assert run("import", str(source), "--output", str(output))[0] == 0
    asked = ("check", "ann", "c1", "publish", "home/ann/x", "--permissions", str(output))
    assert run(*asked)[0] == 0
    assert "exists already" in run("import", str(source), "--output", str(output))[2]
    source.write_text(ACL + "what\n")
    code, out, err = run("import", str(source))
    assert (code, out) == (1, translate(ACL, str(source)).toml)
    assert err == f"{source}:18: not a line of an acl_file: what\n"
    source.write_text("")
    code, _, err = run("import", str(source))
    assert code == 78
    assert "nothing is allowed" in err
    assert "cannot read" in run("import", str(tmp_path / "none"))[2]
