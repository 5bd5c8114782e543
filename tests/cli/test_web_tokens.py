"""Tokens of the web page: their file, roles and expiry, and the commands that create them."""

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
import structlog
from harness import forkserver
from harness.broker import environment
from structlog.testing import capture_logs

from cli.users import line_files
from cli.web import tokens as module
from cli.web.own_token import Token, cookie_of, find_token
from cli.web.tokens import BadTokens, Grant, Role, Tokens, mark_of, parse, read

pytestmark = pytest.mark.system

NOW = 1_700_000_000
SECRET = "a-token-of-the-tests"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "web.tokens"


@pytest.fixture
def own(tmp_path: Path) -> Token:
    return find_token(tmp_path / "web.token")


def grant(name: str, secret: str, role: Role = Role.VIEW, expires: int | None = None) -> Grant:
    return Grant(name, role, mark_of(cookie_of(secret)), expires)


def put(file: Path, *grants: Grant) -> None:
    line_files.write_lines(file, ["# tokens", "", *(one.line for one in grants)])


# ------------------------------------------------------------------------------- who gets in


def test_the_pages_own_token_may_do_everything(own: Token, file: Path) -> None:
    known = Tokens(own, file)
    first = known.of_token(own.secret)
    assert first is not None
    assert (first.name, first.role, first.expires) == ("web.token", Role.OPERATE, None)
    assert known.of_token(f" {own.secret}\n") == known.of_cookie(own.cookie) == first
    assert own.secret not in own.cookie
    for wrong in ("", own.secret[:-1], own.secret + "x", own.cookie, "\udcff\udcfe", "ä"):
        assert known.of_token(wrong) is None
    for wrong in ("", own.secret, own.cookie[:-1], "\udcff", first.mark):
        assert known.of_cookie(wrong) is None


def test_roles_allow_more_and_more() -> None:
    viewing = [role for role in Role if role.views]
    assert [role.sees_payloads for role in viewing] == [False, True, True]
    assert [role.makes_changes for role in viewing] == [False, False, True]
    # One that may publish sees nothing, and changes nothing on a page.
    assert [role for role in Role if not role.views] == [Role.PUBLISH]
    assert not Role.PUBLISH.sees_payloads
    assert not Role.PUBLISH.makes_changes


def test_named_tokens_count_as_soon_as_they_are_in_the_file(own: Token, file: Path) -> None:
    known = Tokens(own, file)
    assert known.of_token(SECRET) is None
    put(file, grant("ann", SECRET))
    found = known.of_token(SECRET)
    assert found == grant("ann", SECRET)
    assert known.of_cookie(cookie_of(SECRET)) == found
    # Nothing that is in the file lets anybody in.
    for word in file.read_text().split():
        assert known.of_token(word) is None
        assert known.of_cookie(word) is None
    put(file, grant("ann", SECRET, Role.VIEW_ALL))
    changed = known.of_cookie(cookie_of(SECRET))
    assert changed is not None
    assert changed.role is Role.VIEW_ALL
    put(file)
    assert known.of_cookie(cookie_of(SECRET)) is None
    put(file, grant("ann", SECRET))
    assert known.of_token(SECRET)
    file.unlink()
    assert known.of_token(SECRET) is None
    assert known.of_token(own.secret)


def test_a_token_ends(own: Token, file: Path) -> None:
    put(file, grant("ann", SECRET, expires=NOW + 60), grant("bob", SECRET + "2"))
    clock = [NOW + 0.0]
    known = Tokens(own, file, lambda: clock[0])
    ann, bob = known.of_token(SECRET), known.of_token(SECRET + "2")
    assert ann is not None
    assert bob is not None
    assert (known.holds(ann), known.seconds_left(ann, 100), known.seconds_left(ann, 30)) == (
        True,
        60,
        30,
    )
    clock[0] += 60
    assert (known.holds(ann), known.seconds_left(ann, 100)) == (False, 0)
    assert (known.holds(bob), known.seconds_left(bob, 100)) == (True, 100)


def test_while_the_file_is_bad_only_the_pages_own_token_counts(
    own: Token, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that was taken out must not count because of a slip in another line."""
    put(file, grant("ann", SECRET), grant("bob", SECRET + "2"))
    known = Tokens(own, file)
    assert known.of_token(SECRET)
    file.write_text(grant("ann", SECRET).line + "\nbob view\n")
    with capture_logs() as lines:
        monkeypatch.setattr(module, "log", structlog.get_logger("foldmq"))
        assert known.of_token(SECRET) is None
        assert known.of_token(own.secret)
        assert known.of_token(SECRET) is None
    assert [line["log_level"] for line in lines] == ["error"], "it is told once"
    assert "web.tokens, line 2: must be NAME ROLE EXPIRY MARK" in lines[0]["reason"]
    put(file, grant("ann", SECRET))
    assert known.of_token(SECRET)


# ------------------------------------------------------------------------------- the file


def test_written_tokens_are_read_back(file: Path) -> None:
    grants = [grant("ann", "1", Role.VIEW, NOW), grant("b.o-b_2@x", "2", Role.OPERATE)]
    put(file, *grants)
    assert list(read(file).values()) == grants
    assert f"ann view 2023-11-14T22:13:20Z {grants[0].mark}" in file.read_text()
    assert read(file.with_name("missing")) == {}


MARK = "0" * 64


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("ann view never", "must be NAME ROLE EXPIRY MARK"),
        (f"ann view never {MARK} x", "must be NAME ROLE EXPIRY MARK"),
        (f"ann root never {MARK}", "role root: must be one of view, view-all, operate"),
        (
            f"ann view soon {MARK}",
            "expiry soon: must be a time such as 2026-12-31T23:59:59Z, or never",
        ),
        (f"ann view 2026-13-31T00:00:00Z {MARK}", "must be a time"),
        (f"ann view never {MARK[1:]}", "the mark must have 64 hexadecimal digits"),
        (f"ann view never {MARK.replace('0', 'G')}", "the mark must have 64 hexadecimal digits"),
        (f"a\x1b[2J view never {MARK}", r"name a\u001b[2J: must have at most 64"),
        (f"web.token view never {MARK}", "reserved for the token in web.token"),
        (f"first view never {MARK}", "first is a duplicate"),
    ],
)
def test_a_bad_line_is_named(file: Path, line: str, wrong: str) -> None:
    with pytest.raises(BadTokens) as caught:
        parse(file, f"# x\nfirst view never {MARK}\n{line}\n")
    assert str(caught.value).startswith(f"{file}, line 3: ")
    assert wrong in str(caught.value)
    assert str(caught.value).isprintable()
    assert caught.value.exit_code == 78


def test_a_file_that_is_too_large_or_no_file(file: Path) -> None:
    file.write_bytes(b"#" * (2 << 20))
    with pytest.raises(BadTokens, match="larger than"):
        read(file)
    with pytest.raises(BadTokens, match="cannot be read"):
        read(file.parent)


# ------------------------------------------------------------------------------- commands


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    code, out, err = forkserver.run(("web-token", *arguments), environment(), 60, b"")
    return subprocess.CompletedProcess(arguments, code, out.decode(), err.decode())


def refused(*arguments: str, code: int = 2) -> str:
    ran = run(*arguments)
    assert (ran.returncode, ran.stdout) == (code, ""), ran.stderr
    assert ran.stderr.startswith("foldmq: ")
    assert ran.stderr.count("\n") == 1
    return ran.stderr


def test_tokens_are_made_listed_and_removed(tmp_path: Path, file: Path, own: Token) -> None:
    where = ("--data-dir", str(tmp_path))
    ran = run("add", "ann", "--role", "view-all", "--expires", "12h", *where)
    assert ran.returncode == 0, ran.stderr
    secret = ran.stdout.strip()
    assert len(secret) >= 32
    assert "role view-all, expires at 2" in ran.stderr
    assert secret not in ran.stderr
    assert secret not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = Tokens(own, file).of_token(secret)
    assert found is not None
    assert (found.name, found.role) == ("ann", Role.VIEW_ALL)
    assert found.expires is not None
    assert run("add", "bob", "--role", "operate", "--expires", "never", *where).returncode == 0
    listed = [json.loads(line) for line in run("ls", "--json", *where).stdout.splitlines()]
    assert [(one["name"], one["role"], one["expired"]) for one in listed] == [
        ("ann", "view-all", False),
        ("bob", "operate", False),
    ]
    assert (listed[0]["expires"] is None, listed[1]["expires"]) == (False, None)
    assert run("rm", "ann", "--tokens", str(file)).stdout == f"token ann removed from {file}\n"
    assert run("ls", *where).stdout == "bob operate never\n"
    assert Tokens(own, file).of_token(secret) is None


def test_an_expired_token_is_reported(file: Path) -> None:
    put(file, grant("ann", SECRET, expires=NOW))
    assert run("ls", "--tokens", str(file)).stdout == "ann view 2023-11-14T22:13:20Z (expired)\n"


def test_the_comments_of_the_file_stay(file: Path) -> None:
    put(file, grant("ann", SECRET))
    assert run("add", "bob", "--role", "view", "--tokens", str(file)).returncode == 0
    assert run("rm", "ann", "--tokens", str(file)).returncode == 0
    assert file.read_text().startswith("# tokens\n\nbob view 2")


def test_a_new_file_belongs_to_whom_its_directory_does(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root makes a token for a broker that runs as another user."""
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda handle, user, group: given.append((user, group)))
    line_files.write_lines(file, [], as_directory=True)
    owner = file.parent.stat()
    assert given == [(owner.st_uid, owner.st_gid)]


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (("add", "a b", "--role", "view"), '"a b" cannot be used: must have at most 64'),
        (("add", "web.token", "--role", "view"), "reserved for the token in web.token"),
        (("add", "first", "--role", "view"), "already has a token first: remove it first"),
        (("add", "x", "--role", "view", "--expires", "soon"), '--expires "soon" must be a time'),
        (("add", "x", "--role", "view", "--expires", "0"), "must be a time"),
        (("add", "x", "--role", "view", "--expires", "999999999d"), "must be a time"),
        (("rm", "nobody"), "has no token nobody"),
    ],
)
def test_errors_name_the_cause(file: Path, arguments: tuple[str, ...], wrong: str) -> None:
    put(file, grant("first", SECRET))
    before = file.read_text()
    code = 1 if arguments[0] == "rm" else 2
    assert wrong in refused(*arguments, "--tokens", str(file), code=code)
    assert file.read_text() == before


def test_a_file_with_a_bad_line_is_left_alone(file: Path) -> None:
    file.write_text("ann view never\n")
    for arguments in (("add", "bob", "--role", "view"), ("rm", "ann"), ("ls",)):
        assert "line 1: must be NAME" in refused(*arguments, "--tokens", str(file), code=78)
    assert file.read_text() == "ann view never\n"


def test_without_a_data_directory_the_file_must_be_given(tmp_path: Path) -> None:
    said = refused("ls", "--data-dir", str(tmp_path / "missing"), code=66)
    assert "does not exist" in said
    assert "--tokens FILE" in said
