"""``foldmq passwd``: users are created, changed, deleted, listed and imported."""

import asyncio
import errno
import fcntl
import os
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import forkserver
from harness.broker import environment

from actors.access import passwords
from actors.access.credentials import Credentials
from actors.access.passwords import PasswordFile
from actors.access.scram import derive_keys
from cli.settings.setting_sources import ConfigError
from cli.users import line_files, passwd
from cli.users.passwd import Imported

pytestmark = pytest.mark.system

# As mosquitto_passwd writes them: -H sha512-pbkdf2 and -H sha512, of the password "secret ä".
PBKDF2 = (
    "$7$101$8FmDYHfjXpgBt6XL$smiDWt+CpW+OhOtvaVmC/Uf3yRX/+ZErAynofgBlPZ4D2/g7QfwDm8Rlkyk7O7LWXIcj"
    "sHPVpo8S9nG8iXcXFA=="
)
SHA512 = (
    "$6$5Dh1Cm/QZclTN1Aj$1swV0QvaE9VPtQ2cJT2cdcX6Woq08bHMOl05rQWE1XKxCyPbQ9uH6lrBN415rOgMbxFcQksNm"
    "eSXfceRQcPTaw=="
)
HINT = "a running broker uses it after a reload: foldmq reload\n"
KIND = "argon2id, scram-sha-256 (15000 iterations)"
ARGON2 = "$argon2id$v=19$m=64,t=1,p=1$MTIzNDU2Nzg$MTIzNDU2Nzg5MDEyMzQ1Ng"


def run(path: Path, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = ("passwd", str(path), *arguments)
    code, out, err = forkserver.run(command, environment(), 60, stdin)
    return subprocess.CompletedProcess(command, code, out, err)


def done(path: Path, *arguments: str, stdin: bytes = b"") -> str:
    """What a command that succeeds prints; all but --list also say how a broker gets to know it."""
    result = run(path, *arguments, stdin=stdin)
    assert (result.returncode, result.stderr) == (0, b"")
    text = result.stdout.decode()
    assert text.endswith(HINT) == ("--list" not in arguments)
    return text.removesuffix(HINT)


def refused(path: Path, *arguments: str, code: int = 78, stdin: bytes = b"") -> str:
    """The one line on stderr, without ``foldmq: ``; there is nothing else."""
    result = run(path, *arguments, stdin=stdin)
    text = result.stderr.decode()
    assert (result.returncode, result.stdout) == (code, b""), text
    assert text.startswith("foldmq: ")
    assert text.count("\n") == 1
    return text.removeprefix("foldmq: ").rstrip("\n")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users"


def accepted(path: Path, user: str, password: str) -> bool:
    users = PasswordFile.load(path)
    verdict = asyncio.run(users.check(Credentials(user, password.encode())))
    users.close()
    return verdict.accepted


# --- one user


def test_create_change_and_delete(path: Path) -> None:
    created = done(path, "ann", "--password-stdin", stdin=b"one\n")
    assert created == f"user ann added to {path}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("# who may connect\n\n" + path.read_text())
    done(path, "bob", "--password-stdin", stdin=b"b\n")
    changed = done(path, "ann", "--password-stdin", stdin=b"two\nrest is ignored\n")
    assert changed == f"user ann changed in {path}\n"
    lines = path.read_text().splitlines()
    assert lines[:2] == ["# who may connect", ""]
    assert [line.split(":")[0] for line in lines[2:]] == ["ann", "bob"]
    assert lines[2].startswith("ann:$argon2id$")
    assert "two" not in path.read_text()
    assert done(path, "ann", "--delete") == f"user ann deleted from {path}\n"
    assert [line.split(":")[0] for line in path.read_text().splitlines()[2:]] == ["bob"]
    assert refused(path, "ann", "--delete", code=1) == f"{path} has no user 'ann'"


def test_the_broker_accepts_created_files(path: Path) -> None:
    done(path, "ann", "--password-stdin", stdin="süß \n".encode())
    assert accepted(path, "ann", "süß ")
    assert not accepted(path, "ann", "süß")


def test_keys_for_scram(path: Path) -> None:
    arguments = ("ann", "--password-stdin")
    done(path, *arguments, stdin=b"one\n")
    assert ":SCRAM-SHA-256$15000:" in path.read_text()
    assert done(path, "--list") == "ann argon2id, scram-sha-256 (15000 iterations)\n"
    done(path, *arguments, "--scram-iterations", "4096", stdin=b"one\n")
    user = PasswordFile.load(path).scram_user("ann")
    salt = user.keys.salt
    assert user.keys == derive_keys(b"one", 4096, salt)
    done(
        path,
        *arguments,
        stdin=b"one\n",
    )
    assert PasswordFile.load(path).scram_user("ann").keys.salt != salt
    assert accepted(path, "ann", "one")
    done(path, *arguments, "--no-scram", stdin=b"one\n")
    assert "SCRAM" not in path.read_text()
    assert done(path, "--list") == "ann argon2id\n"
    assert accepted(path, "ann", "one")


def test_passwords_that_scram_has_no_form_of(path: Path) -> None:
    said = done(path, "ann", "--password-stdin", stdin=b"\xff\n")
    assert said.splitlines() == [
        f"user ann added to {path}",
        "this password cannot be used with SCRAM-SHA-256: it is not UTF-8 text",
    ]
    assert "SCRAM" not in path.read_text()


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (("ann", "--scram-iterations", "4095"), 78, "must be 4096 to 10000000"),
        (("ann", "--scram-iterations", "10000001"), 78, "must be 4096 to 10000000"),
        (("ann", "--no-scram", "--scram-iterations", "5000"), 2, "for setting a password with"),
        (("ann", "--delete", "--scram-iterations", "5000"), 2, "for setting a password with"),
        (("--list", "--no-scram"), 2, "for setting a password"),
    ],
)
def test_bad_use_of_scram(path: Path, more: tuple[str, ...], code: int, says: str) -> None:
    stdin = ("--password-stdin",) if "ann" in more and "--delete" not in more else ()
    assert says in refused(path, *more, *stdin, code=code, stdin=b"x\n")
    assert not path.exists()


@pytest.mark.parametrize("scram", ["--scram", "--no-scram"])
def test_a_name_may_contain_colons(path: Path, scram: str) -> None:
    users = ["dev:a:1", "dev:a", "dev", ":$x:"]
    for number, user in enumerate(users):
        stdin = b"secret %d\n" % number
        assert run(path, user, "--password-stdin", scram, stdin=stdin).returncode == 0
    assert list(passwords.parse_users(path, passwords.read(path))) == users
    assert run(path, "dev:a", "--delete").returncode == 0
    assert list(passwords.parse_users(path, passwords.read(path))) == ["dev:a:1", "dev", ":$x:"]


@pytest.mark.parametrize("user", ["#a", "", "a\nb", "\x1b[31m", "a\u2028b"])
def test_names_that_a_line_cannot_hold(path: Path, user: str) -> None:
    assert "cannot be used" in refused(path, user, "--password-stdin", stdin=b"x\n")
    assert not path.exists()


def test_an_empty_password_and_a_bad_file(path: Path) -> None:
    arguments = ("ann", "--password-stdin")
    assert refused(path, *arguments) == "the password of 'ann' is empty"
    path.write_text("no colon\n")
    assert refused(path, *arguments, stdin=b"x\n").startswith(f"{path}:1: ")
    assert path.read_text() == "no colon\n"


def test_a_link_is_followed_and_the_mode_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("# users\n")
    real.chmod(0o640)
    link.symlink_to(real)
    done(link, "ann", "--password-stdin", stdin=b"x\n")
    assert link.is_symlink()
    assert "ann:" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o640


def test_the_owner_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("# users\n")
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda handle, user, group: given.append((user, group)))
    passwd.set_user(path, "ann", b"x")
    assert given == [(path.stat().st_uid, path.stat().st_gid)]


def test_the_file_is_written_without_the_right_to_change_its_owner(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fchown(handle: int, user: int, group: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    path.write_text("# users\n")
    monkeypatch.setattr(os, "fchown", fchown)
    assert passwd.set_user(path, "ann", b"x")
    assert path.read_text().startswith("# users\nann:$argon2id$")


def test_two_at_once_lose_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = line_files.write_lines
    others: list[threading.Thread] = []

    def slowly(file: Path, lines: list[str]) -> None:
        if not others:
            # Another process comes between reading and writing.
            others.append(threading.Thread(target=passwd.set_user, args=(path, "bob", b"b")))
            others[0].start()
            others[0].join(0.5)
        write(file, lines)

    path.write_text("# users\n")
    monkeypatch.setattr(line_files, "write_lines", slowly)
    passwd.set_user(path, "ann", b"a")
    others[0].join(30)
    assert [line.split(":")[0] for line in path.read_text().splitlines()] == [
        "# users",
        "ann",
        "bob",
    ]
    assert list(path.parent.iterdir()) == [path], "nothing is left behind"


def test_many_at_once_lose_nothing(path: Path) -> None:
    users = [f"user{number}" for number in range(8)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda user: done(path, user, "--password-stdin", stdin=b"x\n"), users))
    assert sorted(user for user, _ in passwd.list_users(path)) == users


@pytest.mark.parametrize("through", ["file", "link"])
def test_a_locked_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    real, link = folder / "users", tmp_path / "link"
    link.symlink_to(real)
    path = real if through == "file" else link
    passwd.set_user(path, "ann", b"x")
    before = real.read_bytes()
    monkeypatch.setattr(line_files, "LOCK_TIMEOUT", 0.1)
    held = os.open(real, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        for change in (
            lambda: passwd.set_user(path, "bob", b"x"),
            lambda: passwd.delete_user(path, "ann"),
            lambda: passwd.import_users(path, real),
        ):
            with pytest.raises(ConfigError, match="locked by another process") as caught:
                change()
            assert str(caught.value).startswith(f"{path}: ")
        assert passwd.list_users(path) == [("ann", KIND)], "who reads does not wait"
    finally:
        os.close(held)
    assert real.read_bytes() == before
    passwd.delete_user(path, "ann")


def test_creating_a_file_waits_for_concurrent_creation(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_files, "LOCK_TIMEOUT", 0.1)
    held = os.open(path.parent, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        with pytest.raises(ConfigError, match="locked by another process"):
            passwd.set_user(path, "ann", b"x")
    finally:
        os.close(held)
    assert passwd.set_user(path, "ann", b"x")
    # Its directory is of no matter once it is there, whoever may keep that locked.
    held = os.open(path.parent, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        assert passwd.set_user(path, "bob", b"x")
    finally:
        os.close(held)


def test_a_link_to_itself(path: Path) -> None:
    path.symlink_to(path)
    assert "cannot read password file" in refused(path, "ann", "--delete")
    assert passwd.set_user(path, "ann", b"x")
    assert passwd.list_users(path) == [("ann", KIND)]


def test_a_file_system_without_locks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert passwd.set_user(path, "ann", b"x")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "none" / "users"
    assert refused(path, "ann", "--password-stdin", stdin=b"x\n") == (
        f"{path}: cannot write: No such file or directory"
    )
    assert "cannot read password file" in refused(path, "ann", "--delete")


def test_lines_of_others_stay_as_they_are(path: Path) -> None:
    # Line ends of Windows, and a name with what Unicode counts as the end of a line.
    before = f"# c\r\na\u2028b:{ARGON2}\r\n#ann:{ARGON2}\n"
    path.write_bytes(before.encode())
    passwd.set_user(path, "ann", b"x")
    after = path.read_bytes().decode()
    assert after.startswith(before)
    passwd.delete_user(path, "ann")
    assert path.read_bytes().decode() == before
    passwd.delete_user(path, "a\u2028b")
    assert path.read_bytes().decode() == f"# c\r\n#ann:{ARGON2}\n"


# --- lists


def test_list(path: Path) -> None:
    path.write_text(f"# c\nann:{ARGON2}\nb b:{PBKDF2}\n\x1b[31m:{SHA512}\n")
    assert done(path, "--list").splitlines() == [
        "ann argon2id",
        '"b b" pbkdf2-sha512, 101 rounds',
        "\\u001b[31m sha512",
    ]
    assert "cannot read password file" in refused(path.with_name("none"), "--list")


# --- what others wrote


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    file = tmp_path / "mosquitto"
    file.write_text(f"# ours\nann:{PBKDF2}\n\nbob:{SHA512}\ncarl:{ARGON2}\n")
    return file


def test_import_into_a_new_file(path: Path, theirs: Path) -> None:
    out = done(path, "--import", str(theirs)).splitlines()
    assert out[0] == f"3 users added to {path}"
    assert out[1].startswith("2 passwords hashed as by Mosquitto")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == f"ann:{PBKDF2}\nbob:{SHA512}\ncarl:{ARGON2}\n"
    assert accepted(path, "ann", "secret ä")
    assert accepted(path, "bob", "secret ä")
    assert not accepted(path, "bob", "secret")
    # Once more is no harm.
    assert done(path, "--import", str(theirs)) == f"0 users added to {path}\n"


def test_existing_users_are_kept(path: Path, theirs: Path) -> None:
    path.write_text(f"# users\nann:{ARGON2}\nbob:{SHA512}\n")
    assert passwd.import_users(path, theirs) == Imported(("carl",), ("ann",), 0)
    assert path.read_text() == f"# users\nann:{ARGON2}\nbob:{SHA512}\ncarl:{ARGON2}\n"
    path.write_text(f"ann:{ARGON2}\n")
    assert "user ann already exists, password unchanged\n" in done(path, "--import", str(theirs))


def test_an_import_is_whole_or_nothing(path: Path, theirs: Path) -> None:
    theirs.write_text(f"ann:{PBKDF2}\nbob:plain text\n")
    message = refused(path, "--import", str(theirs))
    assert message.startswith(f"{theirs}:2: the hash of user 'bob' is neither")
    assert "mosquitto_passwd -U" in message
    assert "plain text" not in message
    assert not path.exists()
    theirs.write_text(f"\x07bell:{PBKDF2}\n")
    with pytest.raises(ConfigError, match=r"'\\u0007bell' cannot be used"):
        passwd.import_users(path, theirs)
    assert not path.exists()


@pytest.mark.skipif(not shutil.which("mosquitto_passwd"), reason="Mosquitto is not installed")
@pytest.mark.parametrize("kind", ["sha512", "sha512-pbkdf2"])
def test_files_written_by_mosquitto(path: Path, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "mosquitto"
    command = ["mosquitto_passwd", "-H", kind, "-b", "-c", str(file), "ann", "geheim: ü"]
    subprocess.run(command, check=True, capture_output=True)
    assert passwd.import_users(path, file) == Imported(("ann",), (), 1)
    assert accepted(path, "ann", "geheim: ü")
    assert not accepted(path, "ann", "geheim: u")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--delete"],
        ["ann", "--list"],
        ["ann", "--import", "x"],
        ["--list", "--import", "x"],
        ["--list", "--delete"],
        ["--import", "x", "--password-stdin"],
    ],
)
def test_contradictory_flags(path: Path, arguments: list[str]) -> None:
    refused(path, *arguments, code=2)
    assert not path.exists()
