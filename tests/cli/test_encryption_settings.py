"""The key of encryption at rest, in the files and child processes of ``foldmq serve``."""

from pathlib import Path

import pytest

from actors.access.login_backoff import LoginRank
from cli.serve.auth_factory import KNOWN_LOGINS, Access
from cli.settings.child_environment import environment_for
from cli.settings.settings import Settings, load_settings
from eventstore.datadir import DataDir

HERE = "192.0.2.1"


def settings(folder: Path, key: str | None) -> Settings:
    given: dict[str, object] = {"data_dir": str(folder / "data")}
    if key is not None:
        (folder / key).write_text(key * 32)
        given["encryption_key_file"] = str(folder / key)
    return load_settings(given, {})


def rank(folder: Path, key: str | None) -> LoginRank:
    """The rank of a user of a broker that starts with a key."""
    access = Access(settings(folder, key), "n1", None)
    access.load_known_users(DataDir(folder / "data"))
    return access._backoff.rank(HERE, "ann")


@pytest.mark.parametrize("key", [None, "k"])
def test_users_are_known_after_a_restart_with_the_same_key(tmp_path: Path, key: str | None) -> None:
    with DataDir(tmp_path / "data") as data:
        access = Access(settings(tmp_path, key), "n1", None)
        access._backoff.succeeded(HERE, "ann")
        secret = access._backoff._key.hex()
        access.store_known_users(data)
    text = (data.path / KNOWN_LOGINS).read_text()
    assert (secret in text) is (key is None)
    ranks = {other: rank(tmp_path, other) for other in (None, "k", "o")}
    assert ranks == {
        other: LoginRank.KNOWN if other == key else LoginRank.NEW for other in (None, "k", "o")
    }


def test_child_processes_get_the_file(tmp_path: Path) -> None:
    """The page and the index need it; the key itself is in no variable of theirs."""
    made = environment_for(settings(tmp_path, "k"), DataDir(tmp_path))
    assert made["FOLDMQ_ENCRYPTION_KEY_FILE"] == str(tmp_path / "k")
    assert not [value for value in made.values() if "k" * 32 in value]
