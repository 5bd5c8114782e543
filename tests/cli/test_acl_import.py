"""``foldmq acl import``: the rules of Mosquitto's acl_file."""

from pathlib import Path

import pytest
from harness import forkserver
from harness.broker import environment

from actors.access.rules_file import parse_rules
from cli.users.acl_import import translate

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
