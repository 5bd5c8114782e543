"""Exit codes: the same for the same error in every command, as ``cli/DESIGN.md`` lists them."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from harness import forkserver
from harness.broker import Broker, environment

import cli
import eventstore
import spark
from cli.main import app
from e2e.tools import refused
from protocol.errors import FoldmqError

PAGE = Path(__file__).resolve().parents[2] / "cli" / "DESIGN.md"
READERS = (
    "log",
    "audit",
    "log verify",
    "log usage",
    "history a",
    "replay",
    "diff 1 2",
    "verify",
    "verify --stored",
    "why --client a --topic b",
    "outbox refused a",
    "outbox retry a",
)
LIVE = (
    "actors ls",
    "actors tree",
    "actors show a",
    "actors tail --client a",
    "actors kick a --yes",
    "actors restart a --yes",
    "sessions ls",
    "sessions show a",
    "sessions kick a --yes",
    "sessions rm a --yes",
    "sessions purge --match a --yes",
    "retained ls",
    "retained get a",
    "retained rm a --yes",
    "subscriptions --topic a",
    "topics --seconds 0.5",
    "top --once",
    "status",
    "doctor",
    "confirm-clock",
    "erase --topic a --yes",
    "outbox ls",
    "outbox show a",
    "outbox pause a",
    "outbox resume a",
    "outbox skip a --to 1.0",
)
OTHERS = {
    # these neither read a log nor ask a broker
    "serve", "passwd", "acl check", "pub", "sub", "web-token add", "web-token ls",
    "web-token rm", "config check", "completion", "complete", "version", "pseudonym",
    # tests of their own: the page waits for its broker; salvage is below; copies,
    # reloads and imports have files of their own; Spark in tests/cli
    # nodes asks a cluster: test_cluster.py
    "web", "mcp", "salvage", "backup", "restore", "reload", "acl import", "nodes",
    "nodes move", "import mosquitto", "import nats", "import retained", "outbox run",
    "outbox export",
}  # fmt: skip


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("codes"), forked=True) as broker:
        yield broker


def later(command: str) -> object:
    """All commands find their log or broker in one way: `make drills` runs each of them."""
    return pytest.param(command, marks=pytest.mark.long)


def code_of(arguments: str, *more: str) -> int:
    code, _, err = forkserver.run([*arguments.split(), *more], environment(), 60.0)
    assert b"Traceback" not in err, err
    return code


def test_the_table_names_every_code() -> None:
    for package in (cli, eventstore, spark):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)
    section = PAGE.read_text("utf-8").partition("## Exit codes")[2].partition("\n## ")[0]
    named = set(map(int, re.findall(r"(?m)^\| (\d+) \|", section)))
    used = {kind.exit_code for kind in kinds_of_errors(FoldmqError)}
    assert used <= named


def kinds_of_errors(kind: type[FoldmqError]) -> Iterator[type[FoldmqError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from kinds_of_errors(below)


def test_no_command_is_left_out() -> None:
    root = typer.main.get_command(app)
    covered = {" ".join(one.split()[:2]) for one in LIVE + READERS}
    covered |= {one.split()[0] for one in READERS}
    for name in root.list_commands(None):
        group = getattr(root.get_command(None, name), "commands", None)
        if name == "spark":
            continue
        for command in [name] if not group or name == "log" else [f"{name} {sub}" for sub in group]:
            short = {command, " ".join(command.split()[:2])}
            assert (
                short & covered
                or any(one.startswith(command) for one in LIVE)
                or (command in OTHERS)
            ), command


@pytest.mark.parametrize("command", READERS)
def test_without_a_log(command: str, tmp_path: Path) -> None:
    assert code_of(command, "--data-dir", str(tmp_path / "nothing")) == 66
    (tmp_path / "empty").mkdir()
    assert code_of(command, "--data-dir", str(tmp_path / "empty")) == 66


def test_without_a_log_to_salvage(tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    nothing = str(tmp_path / "nothing")
    assert code_of("salvage", "--data-dir", nothing, "--to", target) == 66


def test_several_logs_to_salvage(tmp_path: Path) -> None:
    """They were called damaged."""
    data = tmp_path / "data"
    (data / "jetstream").mkdir(parents=True)
    (data / "jetstream" / "1.blk").touch()
    (data / "node").write_text("abcd2345\n")
    (data / "processes").write_text("2\n")
    target = tmp_path / "target"
    line = refused("salvage", "--data-dir", str(data), "--to", str(target), code=73)
    assert line.startswith(f"data directory {data}: has 2 logs, and a salvage is of one: ")
    assert not target.exists()


@pytest.mark.parametrize("command", [LIVE[0], "web-token ls", "web", *map(later, LIVE[1:])])
def test_without_a_data_directory(command: str, tmp_path: Path) -> None:
    assert code_of(command, "--data-dir", str(tmp_path / "nothing")) == 66


@pytest.mark.parametrize("command", LIVE)
def test_no_broker_answers(command: str, tmp_path: Path) -> None:
    assert code_of(command, "--data-dir", str(tmp_path)) == 69


@pytest.mark.parametrize("command", [LIVE[0], READERS[0], *map(later, LIVE[1:] + READERS[1:])])
def test_a_setting_is_wrong(command: str) -> None:
    assert code_of(command, "--nats-url", "http://here") == 78


@pytest.mark.parametrize(
    "command",
    [
        "actors show nobody",
        "actors restart nobody --yes",
        "actors kick nobody --yes",
        "sessions show nobody",
        "doctor nobody",
        "sessions kick nobody --yes",
        "sessions rm nobody --yes",
        "retained get nothing",
        "log --session nobody",
        "log --session nobody -n 1",
        "replay --session nobody",
        "diff 1 1 --session nobody",
        "verify --session nobody",
        "why --client nobody --topic nothing",
        "outbox show nothing",
        "outbox pause nothing",
        "outbox retry nothing",
        "outbox refused nothing",
    ],
)
def test_the_requested_object_does_not_exist(command: str, running: Broker) -> None:
    assert code_of(command, "--data-dir", str(running.data_dir)) == 1


@pytest.mark.parametrize(
    "command",
    [
        "subscriptions --topic a/+",
        "retained ls a/#/b",
        "retained rm a/#/b --yes",
        "actors tail --topic a/#/b",
        "actors ls --type nothing",
        "sessions ls --sort nothing",
        "log --topic a/#/b",
        "log --from tomorrow",
        "log --type Nothing",
        "replay --at 999999",
        "diff 1 yesterdayish",
        "why",
    ],
)
def test_invalid_arguments(command: str, running: Broker) -> None:
    assert code_of(command, "--data-dir", str(running.data_dir)) == 2


def test_users_and_tokens_that_do_not_exist(running: Broker, tmp_path: Path) -> None:
    passwords = tmp_path / "users"
    passwords.write_text("")
    assert code_of("passwd --delete", str(passwords), "nobody") == 1
    assert code_of("web-token rm nobody", "--data-dir", str(running.data_dir)) == 1
