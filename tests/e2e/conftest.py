"""Fixtures of real processes: brokers, NATS servers, disks and clients."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.fixtures import (
    EXTERNAL,
    broker,
    clients,
    external,
    foldmq_only,
    make_broker,
    make_disk,
    on_external,
    small_disk,
    topic,
)
from harness.nats import Nats

__all__ = [
    "broker",
    "clients",
    "external",
    "foldmq_only",
    "make_broker",
    "make_disk",
    "mqttjs",
    "on_external",
    "small_disk",
    "topic",
]

MQTTJS_VERSION = "5.16.0"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of these tests only those that use the shared broker are for another one, too."""
    for item in items if EXTERNAL else ():
        known = item._fixtureinfo.name2fixturedefs.get("broker")  # type: ignore[attr-defined]
        if "e2e" in item.path.parts and not (known and known[-1].baseid.endswith("e2e")):
            item.add_marker(pytest.mark.skip(reason="needs to start its own foldmq"))


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Nats]:
    """An external NATS server for the nodes of a cluster."""
    folder = tmp_path / "nats"
    folder.mkdir()
    server = Nats(folder)
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def mqttjs(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """The folder that MQTT.js is installed into; None: it cannot be had."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        return None
    folder = tmp_path_factory.mktemp("mqttjs")
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
    command = [npm, "install", *flags, f"mqtt@{MQTTJS_VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    return None if done.returncode else folder
