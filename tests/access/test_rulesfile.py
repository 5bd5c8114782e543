"""The permission file: its meaning, and a line for each of its errors."""

import re
from pathlib import Path
from textwrap import dedent

import pytest

from actors.access.rules import BRIDGE, Permissions, Rule
from actors.access.rules_file import PermissionFileError, load, parse_rules

FILE = Path("/etc/foldmq/permissions.toml")
GOOD = """
    # Who may do what
    [groups]
    ops = ["ann", "op-*"]
    empty = []

    [[allow]]
    users = ["ann"]
    groups = ["ops"]
    clients = ["pump-*", "c1"]
    publish = ["a/%u", "100%%"]
    subscribe = ["b/#"]
    both = ["c"]

    [[deny]]
    both = ["c/secret"]

      [[ allow ]]
    anonymous = true
    publish = ["guests/#"]
"""


def read(text: str) -> str:
    """The error for a text."""
    with pytest.raises(PermissionFileError) as caught:
        parse_rules(FILE, dedent(text))
    message = str(caught.value)
    assert caught.value.exit_code == 78
    assert message.startswith(str(FILE))
    assert message.isprintable()
    assert len(message) < 500
    return message.removeprefix(str(FILE))


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "permissions.toml"
    path.write_bytes(b'\xef\xbb\xbf[[allow]]\nboth = ["#"]\n')
    assert load(path).access("ann", (), "c").explain("publish", "a").allowed


def test_a_file() -> None:
    permissions = parse_rules(FILE, dedent(GOOD))
    who = {
        "users": frozenset({"ann"}),
        "groups": frozenset({"ops"}),
        "clients": frozenset({"pump-*", "c1"}),
        "where": f"{FILE}:7: [[allow]] 1",
    }
    assert list(permissions.rules) == [
        Rule(True, True, False, "a/%u", **who),
        Rule(True, True, False, "100%%", **who),
        Rule(True, False, True, "b/#", **who),
        Rule(True, True, True, "c", **who),
        Rule(True, True, False, "guests/#", where=f"{FILE}:18: [[allow]] 2", anonymous=True),
        Rule(False, True, True, "c/secret", where=f"{FILE}:15: [[deny]] 1"),
    ]
    assert permissions.groups_of("ann") == {"ops"}
    access = permissions.access("op-7", (), "pump-1")
    assert access.may_publish("100%")
    assert access.may_subscribe("b/x/+")
    assert not access.may_publish("guests/a")
    assert permissions.access(None, (), "c").may_publish("guests/a")
    assert access.explain("publish", "c/secret").rule == permissions.rules[-1]


def test_unknown_lines_are_omitted_from_errors() -> None:
    text = 'allow = [{both = ["a"]}]\n[[deny]]\nboth = ["""\n[[deny]]\n"""]\n'
    assert [rule.where for rule in parse_rules(FILE, text).rules] == [
        f"{FILE}: [[allow]] 1",
        f"{FILE}: [[deny]] 1",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "nothing is allowed"),
        ('[groups]\na = ["b"]\n', "nothing is allowed"),
        ('[[deny]]\nboth = ["#"]', "nothing is allowed"),
        ("x = ", "not TOML: Invalid value (at end of document)"),
        ("[[allow]]\nboth = ['a\x1b']", "not TOML"),
        ("x = " + "[" * 100_000, "not TOML: nested too deeply"),
        ("x = " + "9" * 5_000, "not TOML"),
        ("[allow]\n", "allow must be tables, each begun by [[allow]]"),
        ("deny = 3\n", "deny must be tables, each begun by [[deny]]"),
        ('alow = ["a"]', 'unknown key "alow" (did you mean "allow"?)'),
        ('"\\u001b[31m" = 1', r'unknown key "\u001b[31m"'),
        ("groups = 1", "groups must be a table"),
        ("[groups]\nops = 'ann'", '[groups]: "ops" must be a list'),
        ('[groups]\nops = [""]', '[groups]: "ops": a user is empty'),
        ('[groups]\n"" = []', "the name of a group is empty"),
        (
            '[[allow]]\npublsh = ["a"]',
            ':1: [[allow]] 1: unknown key "publsh" (did you mean "publish"',
        ),
        ("[[allow]]\nusers = ['ann']", ":1: [[allow]] 1: contains no topics"),
        ("[[allow]]\nboth = 'a'", ":1: [[allow]] 1: both must be a list, with each topic filter"),
        ("[[allow]]\nboth = [1]", ":1: [[allow]] 1: both must be a list"),
        ("[[allow]]\nboth = []", "must have at least one topic filter"),
        (
            "[[allow]]\nusers = []\nboth = ['a']",
            "users must have at least one user, or be left out",
        ),
        ("[[allow]]\nclients = true\nboth = ['a']", "clients must be a list, with each client"),
        ("[[allow]]\nanonymous = false\nboth = ['a']", 'write users = ["*"]'),
        ("[[allow]]\nanonymous = 1\nboth = ['a']", "anonymous must be true"),
        (
            "\n[[allow]]\nboth = ['a']\n\n[[deny]]\nsubscribe = ['ok', 'a#']",
            """:5: [[deny]] 1: subscribe: "a#": '#' is not a whole level""",
        ),
        ("[[allow]]\nboth = ['50%']", "'%' is not part of %u, %c or %%"),
        ("[[allow]]\nboth = ['" + "x" * 70_000 + "']", "70000 bytes long"),
        ('[[allow]]\nboth = ["\\u202ea+"]', r'"\u202ea+": ' + "'+' is not a whole level"),
    ],
)
def test_an_error_is_one_line(text: str, expected: str) -> None:
    assert expected in read(text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "permissions.toml"
    with pytest.raises(PermissionFileError, match="cannot read permissions: No such file"):
        load(path)
    path.write_bytes(b"[[allow]]\nboth = ['\xff']\n")
    with pytest.raises(PermissionFileError, match=r"permissions\.toml:2: not UTF-8 text"):
        load(path)
    path.write_text('[[allow]]\nboth = ["a"]\n', "utf-8")
    assert load(path).access(None, (), "c").may_publish("a")


def test_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "permissions.toml"
    path.write_bytes(b'\r\n[[allow]]\r\nboth = ["a"]\r\n')
    assert load(path).rules[0].where == f"{path}:2: [[allow]] 1"


def test_the_files_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "permissions.md").read_text("utf-8")
    blocks = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    first, requests, bridge = (parse_rules(Path("permissions.toml"), block) for block in blocks)
    pump, olga = first.access("pump7", (), "c"), first.access("olga", (), "c")
    told = [pump.explain("publish", "sensors/pump7/flow"), olga.explain("subscribe", "sensors/#")]
    told += [pump.explain("publish", "sensors/interlock/x")]
    lines = [str(rule) for one in told for rule in (one.rule, *one.partly)]
    for line in lines:
        assert line in text
    assert [one.allowed for one in told] == [True, True, False]
    asking = requests.access("ann", (), "c1")
    assert asking.may_subscribe("reply/c1/#")
    assert not asking.may_subscribe("reply/c2/#")
    nats = bridge.access(BRIDGE, (), BRIDGE)
    assert nats.may_publish("a")
    assert not nats.may_read("internal/a")


# The digest depends on the rules, not on their text.

RULES = """
[groups]
ops = ["ann", "bob"]
[[allow]]
groups = ["ops"]
both = ["a/#", "b/#"]
[[deny]]
publish = ["a/x"]
"""
SAME = """
# The same, in another order.
[[deny]]
publish = ["a/x"]
[[allow]]
both = ["b/#", "a/#"]
groups = ["ops"]
[groups]
ops = ["bob", "ann"]
"""


def digest(text: str) -> str:
    return parse_rules(FILE, text).digest


def test_without_rules_there_is_no_digest() -> None:
    assert Permissions().digest == ""


def test_comments_order_and_places_do_not_count() -> None:
    assert digest(RULES) == digest(SAME) != ""


@pytest.mark.parametrize(
    ("old", "new"),
    [("a/x", "a/y"), ("publish", "both"), ("deny", "allow"), ('"bob"', '"eve"'), ("b/#", "b/+")],
)
def test_every_other_change_counts(old: str, new: str) -> None:
    assert digest(RULES.replace(old, new)) != digest(RULES)
