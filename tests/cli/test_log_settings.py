"""The settings of the log: its location, its bound, and its key."""

import contextlib
from pathlib import Path
from typing import Any, cast

import pytest
from nats.aio.client import Client

from actors.access.login_backoff import LoginRank
from cli.commands.node_list import cluster_access
from cli.logs.source import find_location
from cli.logs.source_flags import SourceFlags
from cli.serve.auth_factory import KNOWN_LOGINS, Access
from cli.serve.log_bound import log_bound
from cli.settings.broker_child import environment_for
from cli.settings.log_settings import LogSettings, load_log_settings
from cli.settings.setting_sources import ConfigError
from cli.settings.settings import Settings, load_settings
from eventstore.datadir import DataDir

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


MIB = 1024 * 1024
GIB = 1024 * MIB
STREAM = "FOLDMQ_LOG_n1"


@pytest.fixture
def datadir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataDir:
    """A data directory on a disk with 40 GiB of free space."""
    free_space(monkeypatch, 40 * GIB)
    return DataDir(tmp_path)


def free_space(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(DataDir, "free_bytes", lambda _self: size)


def hold(datadir: DataDir, size: int, stream: str = STREAM) -> None:
    """Set the size of a log in bytes, without writing them."""
    folder = datadir.blocks(stream)
    folder.mkdir(parents=True)
    with (folder / "1.blk").open("wb") as block:
        block.truncate(size)


def test_a_new_log_gets_a_quarter_of_the_free_space(datadir: DataDir) -> None:
    assert log_bound(Settings(), datadir).bytes == 10 * GIB


def test_the_bound_does_not_shrink_because_the_log_has_grown(
    datadir: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(datadir, 8 * GIB)
    free_space(monkeypatch, 32 * GIB)
    assert log_bound(Settings(), datadir, STREAM).bytes == 10 * GIB


def test_several_logs_share_the_disk(datadir: DataDir) -> None:
    assert log_bound(Settings(processes=4), datadir).bytes == 10 * GIB // 4


def test_a_larger_log_keeps_what_it_has(datadir: DataDir) -> None:
    """It is cut at three quarters of its bound: the next start finds the same bound."""
    hold(datadir, 60 * GIB)
    bound = log_bound(Settings(), datadir, STREAM)
    assert bound.bytes == 80 * GIB
    assert bound.shown(604_800) == (
        "7 d, at most 80.0 GiB (what it has now, and room to grow; set keep_bytes)"
    )


def test_a_larger_log_may_use_half_of_what_is_free(
    datadir: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(datadir, 60 * GIB)
    free_space(monkeypatch, 8 * GIB)
    assert log_bound(Settings(), datadir, STREAM).bytes == 64 * GIB


def test_a_small_disk(datadir: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    free_space(monkeypatch, 40 * MIB)
    assert log_bound(Settings(), datadir).bytes == 16 * MIB


@pytest.mark.parametrize(
    ("settings", "embedded", "shown"),
    [
        (Settings(keep_bytes=GIB), True, "7 d, at most 1.0 GiB (keep_bytes)"),
        (Settings(keep_bytes=0), True, "7 d (no limit)"),
        (Settings(keep=0), True, "for ever (keep = 0: no limit unless keep_bytes is set)"),
        (Settings(keep=0, keep_bytes=GIB), True, "for ever, at most 1.0 GiB (keep_bytes)"),
        (
            Settings(),
            False,
            "7 d (no limit: the space of the NATS server is not known; set keep_bytes)",
        ),
    ],
)
def test_what_the_banner_says(
    datadir: DataDir, settings: Settings, embedded: bool, shown: str
) -> None:
    assert log_bound(settings, datadir if embedded else None).shown(settings.keep) == shown


def test_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert DataDir(tmp_path / "not" / "yet").free_bytes() > 0


async def streams(settings: dict[str, Any], flags: SourceFlags) -> list[str]:
    async with contextlib.AsyncExitStack() as stack:
        location = await find_location(stack, load_log_settings(settings, {}), flags)
        return await location.streams(cast("Client", None))


async def test_a_cluster_with_several_logs_is_not_the_log_of_a_data_directory(
    tmp_path: Path,
) -> None:
    (tmp_path / "node").write_text("abcdefgh\n")
    settings: dict[str, Any] = {"nats_url": "nats://a", "data_dir": str(tmp_path)}
    flags = SourceFlags({})
    assert await streams(settings, flags) == ["FOLDMQ_LOG_abcdefgh"]
    settings |= {"cluster": "c1"}
    assert await streams(settings, flags) == ["FOLDMQ_LOG_c1"]
    settings |= {"partitions": 2}
    assert await streams(settings, flags) == ["FOLDMQ_LOG_c1-p0", "FOLDMQ_LOG_c1-p1"]
    assert await streams(settings, SourceFlags({}, node="c1-p1")) == ["FOLDMQ_LOG_c1-p1"]


def test_nodes_are_listed_without_the_settings_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that a command does not need are not read."""
    monkeypatch.setenv("FOLDMQ_PARTITIONS", "2")
    flags = SourceFlags({"nats_url": "nats://a", "cluster": "c1"})
    name, access = cluster_access(flags, None)
    assert (name, access.urls) == ("c1", ("nats://a",))


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
