"""The settings for the location of the log are read as they are among all settings."""

from pathlib import Path
from typing import Any

import pytest

from cli.settings.log_settings import LogSettings, load_log_settings
from cli.settings.setting_sources import ConfigError
from cli.settings.settings import load_settings

SEVERAL = "cluster = 'c1'\nnats_url = 'nats://a'\ncluster_listen = '127.0.0.1:1'\n"
FIELDS = tuple(LogSettings.model_fields)


def outcome(read: Any, flags: dict[str, object], env: dict[str, str], config: Path | None) -> Any:
    try:
        found = read(flags, env, config)
    except ConfigError as error:
        return str(error)
    return {name: getattr(found, name) for name in FIELDS}


@pytest.mark.parametrize(
    ("flags", "env", "file"),
    [
        ({}, {}, None),
        ({"data_dir": "/flag"}, {"FOLDMQ_DATA_DIR": "/env"}, "data_dir = '/file'\n"),
        ({"nats_url": "nats://a:4222, tls://b"}, {"FOLDMQ_NATS_USER": "u"}, None),
        ({}, {"FOLDMQ_NATS_DOMAIN": "d"}, None),
        ({"nats_url": "nats://a", "nats_domain": "a.b"}, {}, None),
        ({"nats_ca": "ca"}, {}, None),
        ({"nats_ca": "ca"}, {}, "bridge_url = 'nats://a'\n"),
        ({}, {}, "data_dir = 7\n"),
        ({}, {}, "data_dri = 'x'\n"),
        ({}, {"FOLDMQ_DATA_DRI": "x"}, None),
        ({}, {"FOLDMQ_SERVICE_HOST": "x"}, None),
        ({}, {}, "max_ack_pending = 7\nlogin_backoff = '1m'\n"),
        ({}, {"FOLDMQ_CONFIG": "/nowhere.toml"}, None),
        ({}, {"FOLDMQ_PARTITIONS": "3"}, SEVERAL),
        ({}, {"FOLDMQ_PARTITIONS": "33"}, SEVERAL),
    ],
)
def test_they_are_read_as_all_settings_are(
    flags: dict[str, object], env: dict[str, str], file: str | None, tmp_path: Path
) -> None:
    config = None
    if file is not None:
        config = tmp_path / "foldmq.toml"
        config.write_text(file)
    found = outcome(load_log_settings, flags, env, config)
    assert found == outcome(load_settings, flags, env, config)


def test_values_of_other_settings_are_not_their_business(tmp_path: Path) -> None:
    config = tmp_path / "foldmq.toml"
    config.write_text("max_ack_pending = -1\ndata_dir = '/here'\n")
    found = load_log_settings({}, {}, config)
    assert (found.data_dir, "data_dir" in found.model_fields_set) == (Path("/here"), True)
    assert "nats_url" not in found.model_fields_set
