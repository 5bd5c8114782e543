"""The file with the users of NATS clients: its syntax, and the refusal of errors."""

from pathlib import Path

import pytest

from eventstore.server.users_file import NatsUser, NatsUsersError, read_users, readable_by_others

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
