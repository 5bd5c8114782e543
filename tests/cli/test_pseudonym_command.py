"""``foldmq pseudonym``: for a data directory, and for the key of a cluster."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.connection.pseudonyms import pseudonym
from cli.serve.auth_factory import pseudonym_key, pseudonym_of
from cli.settings.setting_sources import ConfigError
from cli.settings.settings import Settings
from eventstore.datadir import DataDir


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
