"""The files of a recipe as a user has them, at the paths and ports of a test."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from e2e.passwordfiles import add_user
from e2e.tools import run
from harness.broker import Broker, free_port

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "deploy" / "recipes"
PASSWORD = "a test's password"
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


def program(name: str) -> str:
    """The path of another project's program; skips the test if it is not installed."""
    path = shutil.which(name, path=_PATH)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def adapted(text: str, changes: Mapping[str, str]) -> str:
    """The text of a file with paths and addresses of this machine; each one must be in it."""
    for old, new in changes.items():
        assert old in text, f"{old!r} is not in the file"
        text = text.replace(old, new)
    return text


class RecipeBroker(Broker):
    """A broker with the listeners of its file, not one of the test's choice."""

    def command(self) -> list[str]:
        """Its command line."""
        command = super().command()
        if "--listen" in command:
            at = command.index("--listen")
            del command[at : at + 2]
        return command


def broker_of(
    folder: Path, name: str, changes: Mapping[str, str], users: tuple[str, ...], port: int
) -> RecipeBroker:
    """A broker with the recipe's foldmq.toml, not started; /etc/foldmq is `folder`."""
    folder.mkdir(exist_ok=True)
    # One hash for all, which takes most of the time.
    add_user(folder / "users", users[0], PASSWORD)
    line = (folder / "users").read_text("utf-8")
    lines = (line.replace(users[0], user, 1) for user in users)
    (folder / "users").write_text("".join(lines))
    text = (RECIPES / name / "foldmq.toml").read_text("utf-8")
    config = adapted(text, {"/etc/foldmq": str(folder), **changes})
    return RecipeBroker(folder, config=config, forked=True, port=port)


def home_broker(folder: Path, *recipes: str, users: tuple[str, ...]) -> RecipeBroker:
    """The broker of the recipes for a house, with the permissions of these recipes appended."""
    port = free_port()
    changes = {"0.0.0.0:1883": f"127.0.0.1:{port}"}
    broker = broker_of(folder, "home-assistant", changes, users, port=port)
    rules = [RECIPES / name / "permissions.toml" for name in ("home-assistant", *recipes)]
    (folder / "permissions.toml").write_text("\n".join(one.read_text("utf-8") for one in rules))
    return broker


def addresses(broker: Broker) -> dict[str, str]:
    """The address from which each client has connected, as the log has it."""
    opened = run(
        "log", "--data-dir", str(broker.data_dir), "--type", "SessionOpened", "--json"
    ).objects
    return {one["session"]: one["address"] for one in opened}
