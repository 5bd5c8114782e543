"""The file with the users of NATS clients: both of its forms, and the refusal of errors."""

import contextlib
import json
import re
import subprocess
from pathlib import Path

import pytest
from harness.broker import nats_server
from hypothesis import given
from hypothesis import strategies as st

from eventstore.server.config_parser import NatsConfError, parse
from eventstore.server.users_file import (
    NatsPermissions,
    NatsUser,
    NatsUsersError,
    SubjectRules,
    read_users,
    readable_by_others,
)

NKEY = "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK"
SEED = "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y"
HASH = "$2b$04$abcdefghijklmnopqrstuu5vI3ZRTjKCPRqBc8t0Ueb2foafP8H66"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users"


def refusal(file: Path, text: str | bytes) -> str:
    """The error about a file, after its name."""
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(NatsUsersError) as caught:
        read_users(file)
    said = str(caught.value)
    assert caught.value.exit_code == 78
    assert "\n" not in said
    assert said.startswith(f"{file}:")
    return said.removeprefix(f"{file}:")


def test_names_with_passwords_hashes_and_nkeys(file: Path) -> None:
    file.write_text(
        f"# the users\n\nalice:a: b\nbob:{HASH}\r\n{NKEY}\n  \n#carl:x\nd e:{HASH[3:]}", "utf-8"
    )
    users = read_users(file)
    assert users == (
        NatsUser("alice", "a: b"),
        NatsUser("bob", HASH),
        NatsUser(nkey=NKEY),
        NatsUser("d e", HASH[3:]),
    )
    assert [user.entry() for user in users[:3]] == [
        {"user": "alice", "password": "a: b"},
        {"user": "bob", "password": HASH},
        {"nkey": NKEY},
    ]
    assert [user.hashed for user in users] == [False, True, True, False]
    assert "a: b" not in repr(users)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("alice", "expected NAME:PASSWORD, NAME:BCRYPT-HASH or the public nkey of a user"),
        (
            ":secret",
            "a user name must not be empty, contain a control character or have outer spaces",
        ),
        (" alice:secret", "a user name must not be empty"),
        ("al\x1b[1mice:secret", "a user name must not be empty"),
        ("alice:", "the password of user alice is empty"),
        ("alice:sec\x01ret", "the password of user alice has a control character"),
        ("foldmq:secret", "user foldmq is reserved for the broker: choose another name"),
        ("alice:$2a$11$secret", "begins like a bcrypt hash but is not one"),
        (f"alice:{HASH}x", "begins like a bcrypt hash but is not one"),
        (f"alice:{HASH.replace('$04$', '$03$')}", "its cost is not from 04 to 31"),
        (SEED, "this is the secret half of an nkey"),
        (NKEY[:-1] + "L", "this nkey is mistyped: its checksum is wrong"),
        (NKEY[:-1], "the public nkey of a user, which begins with U and has 56 characters"),
        ("A" + NKEY[1:], "the public nkey of a user, which begins with U"),
        (NKEY.lower(), "the public nkey of a user, which begins with U"),
        ("bob:secret\u2028", "the password of user bob has a control character"),
    ],
)
def test_bad_line_is_named_without_its_secret(file: Path, line: str, problem: str) -> None:
    said = refusal(file, f"# first\n{line}\n")
    assert said.startswith("2: ")
    assert problem in said
    assert said.isprintable()
    assert "secret" not in said.replace("the secret half", "")
    assert SEED not in said
    assert HASH[7:] not in said


@pytest.mark.parametrize("line", ["alice:one", NKEY])
def test_duplicate_users_are_refused(file: Path, line: str) -> None:
    said = refusal(file, f"{line}\n{line}\n")
    assert said == f"2: user {line.partition(':')[0]} appears twice"


@pytest.mark.parametrize("text", ["", "# nobody\n\n"])
def test_a_file_without_users_is_refused(file: Path, text: str) -> None:
    assert refusal(file, text) == " contains no user of NATS: no client could connect"


def test_a_line_that_is_not_text_is_reported(file: Path) -> None:
    assert refusal(file, b"alice:x\nb\xff:x\n") == "2: not UTF-8 text"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NatsUsersError, match="cannot read the users of NATS: No such file"):
        read_users(tmp_path / "none")


@pytest.mark.parametrize(
    ("mode", "line", "told"),
    [
        (0o600, "alice:secret", False),
        (0o640, "alice:secret", False),
        (0o644, "alice:secret", True),
        (0o644, f"alice:{HASH}", False),
        (0o644, NKEY, False),
    ],
)
def test_passwords_that_others_can_read_are_noticed(
    file: Path, mode: int, line: str, *, told: bool
) -> None:
    file.write_text(line + "\n")
    file.chmod(mode)
    assert readable_by_others(file, read_users(file)) is told


# The form of nats-server's configuration, with permissions.

BARE = HASH.replace("$2b$", "$2a$")
"""The only kind of hash that nats-server takes without quotes."""
BLOCK = f"""
# as in nats-server.conf
authorization {{
  default_permissions = {{ subscribe: ["hall.>", "_INBOX.>"] }}  // who has none
  users = [
    {{ user: plant, password: "a: b",
      permissions: {{
        publish: {{ allow: ["plant.>", 'a"b'], deny: plant.secret }}
        subscribe = "jobs workers"
        allow_responses: {{ max: 5, expires: "1m" }}
      }}
    }}
    {{ user = "d e"; pass = {BARE} }},
    {{ nkey: {NKEY}, permissions: {{ pub: {{ deny: ">" }}, allow_responses: true }} }}
  ]
}}
"""
USERS = (
    NatsUser(
        "plant",
        "a: b",
        permissions=NatsPermissions(
            SubjectRules(("plant.>", 'a"b'), ("plant.secret",)),
            SubjectRules(("jobs workers",)),
            {"max": 5, "expires": "1m"},
        ),
    ),
    NatsUser(
        "d e", BARE, permissions=NatsPermissions(subscribe=SubjectRules(("hall.>", "_INBOX.>")))
    ),
    NatsUser(nkey=NKEY, permissions=NatsPermissions(SubjectRules(deny=(">",)), responses=True)),
)


def test_users_with_permissions(file: Path) -> None:
    file.write_text(BLOCK)
    assert read_users(file) == USERS
    assert [user.entry() for user in USERS] == [
        {
            "user": "plant",
            "password": "a: b",
            "permissions": {
                "publish": {"allow": ["plant.>", 'a"b'], "deny": ["plant.secret"]},
                "subscribe": {"allow": ["jobs workers"]},
                "allow_responses": {"max": 5, "expires": "1m"},
            },
        },
        {
            "user": "d e",
            "password": BARE,
            "permissions": {"subscribe": {"allow": ["hall.>", "_INBOX.>"]}},
        },
        {
            "nkey": NKEY,
            "permissions": {"publish": {"deny": [">"]}, "allow_responses": True},
        },
    ]


def test_further_subjects_can_be_denied() -> None:
    plant, _, nkey = (user.entry(("foldmq.>",))["permissions"] for user in USERS)
    assert isinstance(plant, dict)
    assert plant["publish"] == {"allow": ["plant.>", 'a"b'], "deny": ["plant.secret", "foldmq.>"]}
    assert plant["subscribe"] == {"allow": ["jobs workers"], "deny": ["foldmq.>"]}
    assert nkey == {
        "publish": {"deny": [">", "foldmq.>"]},
        "subscribe": {"deny": ["foldmq.>"]},
        "allow_responses": True,
    }


def test_examples_of_the_manual_are_valid(file: Path) -> None:
    manual = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    (shown,) = re.findall(r"```\n(users = \[.*?)```", manual, re.DOTALL)
    file.write_text(shown.replace("$2y$10$...", HASH).replace("UDXU4R...", NKEY))
    users = read_users(file)
    assert [user.identity for user in users] == ["plant", NKEY]
    assert users[0].permissions.publish == SubjectRules(
        ("plant.>", "_INBOX.>"), ("plant.secret.>",)
    )
    assert users[1].permissions.subscribe == SubjectRules(("hall.>",))


@pytest.mark.parametrize(
    "text",
    [
        'users = [{user: ann, password: "x"}]',
        'users: [ {"user": "ann", "password": "x"} ]',
        '{"users": [{"user": "ann", "password": "x"}]}',
        '{"authorization": {"users": [{"username": "ann", "pass": "x"}]}}',
        "# first\n\nusers [\n{\nuser ann\npassword x\n}\n]\n",
    ],
)
def test_ways_to_write_it(file: Path, text: str) -> None:
    file.write_text(text)
    assert read_users(file) == (NatsUser("ann", "x"),)


@pytest.mark.system
def test_a_nats_server_reads_the_same(file: Path, tmp_path: Path) -> None:
    """What is read here nats-server takes as well, and what is made of it too."""
    made = tmp_path / "made.conf"
    file.write_text(BLOCK)
    made.write_text(
        json.dumps({"authorization": {"users": [user.entry() for user in read_users(file)]}})
    )
    for config in (file, made):
        checked = subprocess.run(
            [nats_server(), "-t", "-c", str(config)], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stderr


ANN = '{ user: ann, password: "secret" '


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("users = [\n" + ANN + "\n", "3: a brace { is not closed"),
        ("users = [\n" + ANN + "}\n", "3: a bracket [ is not closed"),
        ("users = []\n", " contains no user of NATS"),
        ("users = {}\n", "1: users must be a list in brackets [ ]"),
        ("users = [ ann ]\n", "1: a user must be a map in braces { }"),
        ("users = [\n{ user: 1, password: secret } ]", "2: user must be text: put it in quotes"),
        ("users = [ { user: ann } ]", "1: the password of user ann is empty"),
        (
            "users = [ { user: foldmq, password: secret } ]",
            "1: user foldmq is reserved for the broker",
        ),
        (f"users = [ {{ nkey: {NKEY[:-1]}L }} ]", "1: this nkey is mistyped"),
        (f"users = [ {{ nkey: {NKEY}, user: a, password: b }} ]", "1: a user has an nkey, or"),
        (f"users = [ {ANN}, user: bob }} ]", "1: a name occurs twice in a map"),
        (f"users = [ {ANN}, username: bob }} ]", "1: user occurs twice in a map"),
        (f"users = [ {ANN}}}\n{ANN}}} ]", "2: user ann appears twice"),
        (f"users = [ {ANN}, account: A }} ]", "1: account is not known, expected user, password,"),
        (f"users = [ {ANN}}} ]\naccounts {{}}", "2: accounts is not known, expected users,"),
        (
            f"authorization {{ users = [ {ANN}}} ] }}\nport: 4222",
            "2: this file may contain nothing but authorization",
        ),
        ("users = [ { user: ann, password: $SECRET } ]", "1: variables are not supported"),
        ("users = [\n include ./more.conf\n]", "2: a user must be a map in braces"),
        ("users = [ { include 'more.conf' } ]", "1: include is not supported"),
        ("users = [ { user: ann, password: (secret) } ]", "1: blocks in parentheses are not"),
        ('users = [ { user: ann, password: "secret } ]', "1: a quotation mark is not closed"),
        (
            r'users = [ { user: "a\q", password: "secret" } ]',
            r"1: in quotes, \ must be followed by",
        ),
        (f"{{users = [ {ANN}}} ]}} more", "1: nothing may follow the last closing brace"),
        ("users = [ { user: ann, password: } ]", "1: a value is missing"),
        (f"users = {'[' * 30}", "1: nested too deeply"),
    ],
)
def test_errors_name_the_line(file: Path, text: str, problem: str) -> None:
    said = refusal(file, text)
    assert said.startswith(problem)
    assert "secret" not in said


@pytest.mark.parametrize(
    ("permissions", "problem"),
    [
        ("{ publish: [] }", "to a NATS server an empty list of subjects means all of them"),
        (
            "{ publish: { allow: [] } }",
            "to a NATS server an empty list of subjects means all of them",
        ),
        ('{ publish: "a b" }', '"a b" is not a subject'),
        ('{ subscribe: "a b c" }', '"a b c" is not a subject'),
        ('{ publish: "a..b" }', '"a..b" is not a subject'),
        ('{ publish: "a.>.b" }', '"a.>.b" is not a subject'),
        ('{ publish: "" }', '"" is not a subject'),
        ("{ publish: [1] }", "a subject must be text: put it in quotes"),
        ("{ publish: { allowed: a } }", "allowed is not known, expected allow, deny"),
        ("{ publsh: a }", "publsh is not known, expected publish, subscribe, allow_responses"),
        ("{ publish: a, pub: b }", "publish occurs twice in a map"),
        ("all", "permissions must be a map in braces { }"),
        ("{ allow_responses: 5 }", "allow_responses, unless it is true or false, must be a map"),
        ("{ allow_responses: { max: yes } }", "max of allow_responses must be a whole number"),
        ("{ allow_responses: { ttl: soon } }", "expires of allow_responses must be a time"),
    ],
)
def test_permissions_that_would_not_hold_are_refused(
    file: Path, permissions: str, problem: str
) -> None:
    said = refusal(file, f"users = [\n{ANN}, permissions: {permissions} }} ]")
    assert said.startswith(f"2: {problem}")


def test_the_old_form_stays_as_it_was(file: Path) -> None:
    file.write_text("users:secret\nauthorization:x\n# {\nbob:{ }\n")
    assert [user.name for user in read_users(file)] == ["users", "authorization", "bob"]


def test_reading_takes_time_in_proportion(file: Path) -> None:
    """Comments and blanks without an end make no work that grows faster than they do."""
    for text in ("#" * 100_000, " " * 100_000, "//" * 100_000, "users = [" + "#" * 100_000):
        file.write_text(text)
        with pytest.raises(NatsUsersError):
            read_users(file)
    with pytest.raises(NatsConfError):
        parse('"' + "\\x" * 50_000)


@given(st.text(alphabet=" \n{}[]()\"'\\:=,;#/$au1x", max_size=40) | st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(NatsConfError):
        parse(text)
