"""Keys and digests of the files about users and names."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.connection.pseudonyms import pseudonym
from cli.serve.auth_factory import pseudonym_key, pseudonym_of, users_digest
from cli.settings.setting_sources import ConfigError
from cli.settings.settings import Settings
from eventstore.datadir import DataDir

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


def settings(**given: Any) -> Settings:
    return cast("Settings", SimpleNamespace(pseudonyms=True, **given))


def test_a_cluster_has_the_pseudonyms_of_its_key(tmp_path: Path) -> None:
    file = tmp_path / "cluster.key"
    file.write_text("the key of this cluster\n")
    own = settings(cluster="c1", cluster_key_file=file)
    expected = pseudonym("person", pseudonym_key(own, DataDir(tmp_path / "data")))
    assert pseudonym_of("person", Path("nowhere"), file) == expected
    file.write_text("short\n")
    with pytest.raises(ConfigError, match="the key has 5 characters"):
        pseudonym_of("person", Path("nowhere"), file)


def test_a_directory_without_pseudonyms_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"for a cluster, give --cluster-key-file"):
        pseudonym_of("person", tmp_path)
