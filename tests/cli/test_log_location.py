"""The logs that a command reads, by its settings."""

import contextlib
from pathlib import Path
from typing import Any, cast

import pytest
from nats.aio.client import Client

from cli.commands.node_list import cluster_access
from cli.logs.source import find_location
from cli.logs.source_flags import SourceFlags
from cli.settings.log_settings import load_log_settings


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
