"""The digest of users in the log changes with their files, and reveals nothing of them."""

from pathlib import Path

from cli.serve.auth_factory import users_digest
from cli.settings.settings import Settings

SECRET = b"s" * 32


def test_without_users_there_is_no_digest() -> None:
    assert users_digest(Settings(), SECRET) == ""


def test_a_digest_identifies_the_file_and_needs_the_secret(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("ann:$7$1$c2FsdA==$aGFzaA==\n")
    settings = Settings(password_file=file)
    first = users_digest(settings, SECRET)
    assert len(first) == 16
    assert users_digest(settings, SECRET) == first
    assert users_digest(settings, b"t" * 32) != first
    file.write_text("bob:$7$1$c2FsdA==$aGFzaA==\n")
    assert users_digest(settings, SECRET) != first
