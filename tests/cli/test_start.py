"""The modules that a command loads at start: half a second of imports is noticed at each call.

The limit is one of modules, not of time: a busy machine may take ten times as long.
"""

import contextlib
import io
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from cli.main import app
from cli.program.command_table import GROUPS, HIDDEN
from cli.program.help_pages import PageCommand
from cli.settings.setting_flags import SETTING_NAMES
from cli.settings.settings import Settings

ROOT = Path(__file__).resolve().parents[2]

NUMBERS = ("numpy", "pandas", "pyarrow", "pyspark", "matplotlib")
BROKER = ("actors", "cli.settings.settings", "pykka", "uvloop", "spark")
PAGES = ("aiohttp.client", "jinja2", "textual", "prometheus_client", "structlog")
NATS = ("asyncio", "nats", "ssl")
PACKETS = ("nats.js.client", "protocol.mqtt.field_reader", "protocol.mqtt.packets")
"""JetStream, and MQTT: commands that ask a broker over NATS need neither."""
CLIENT = ("asyncio", "http.client", "nats", "projections", "protocol.mqtt.field_reader")
NOTHING = (*NUMBERS, *BROKER, *PAGES, *NATS, "paho", "pydantic", "projections", "rich")


def loaded(commands: Iterable[str], modules: tuple[str, ...]) -> dict[str, list[str]]:
    """Run commands, one after the other, in an interpreter of its own.

    Return which of the modules each loaded, for those that loaded any.
    """
    code = (
        "import sys\nfrom cli.main import main\nbefore = set()\n"
        f"for command in {list(commands)!r}:\n"
        "    sys.argv = ['foldmq', *command.split()]\n"
        "    try:\n        main()\n    except SystemExit:\n        pass\n"
        f"    names = [name for name in {modules!r} if name in sys.modules]\n"
        "    print('LOADED', repr((command, [name for name in names if name not in before])))\n"
        "    before.update(names)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in result.stderr, result.stderr
    lines = [line for line in result.stdout.splitlines() if line.startswith("LOADED ")]
    found: list[tuple[str, list[str]]] = [eval(line.removeprefix("LOADED ")) for line in lines]
    assert [command for command, _ in found] == list(commands)
    return {command: names for command, names in found if names}


@pytest.mark.system
def test_help_loads_nothing_of_what_the_commands_do() -> None:
    assert loaded(["--version", "--help"], NOTHING) == {}


HELP = (
    *("complete -- completion b", "complete -- sessions ls --so", "completion bash"),
    *("pub --help", "sub --help", "sessions ls --help", "subscriptions --help", "top --help"),
    *("log --help", "why --help", "spark audit --help"),
)


@pytest.mark.system
def test_help_of_a_command_loads_no_more_than_the_types_of_its_flags() -> None:
    assert loaded(HELP, tuple(name for name in NOTHING if name != "pydantic")) == {}


@pytest.mark.system
def test_help_of_the_settings_loads_their_fields_only() -> None:
    modules = (*NUMBERS, *PAGES, *NATS, "paho", "projections", "rich")
    broker = ("protocol.mqtt", "protocol.nats", "actors.broker", "pykka", "uvloop", "spark")
    assert loaded(["serve --help", "config check --help"], (*modules, *broker)) == {}


ASKING = ("sessions ls", "retained ls", "subscriptions --topic a", "status", "doctor")
READING = ("log", "why --topic a --client b", "replay")


@pytest.mark.system
@pytest.mark.parametrize(
    ("commands", "modules"),
    [
        # without a broker, so that each ends with an error after its imports
        (["pub -p 1 -t a -m b"], (*NUMBERS, *BROKER, *PAGES, *CLIENT)),
        (["sub -p 1 -t a -W 0"], (*NUMBERS, *BROKER, *PAGES, "asyncio", "nats", "projections")),
        (
            [f"{one} --data-dir none" for one in ASKING],
            (*NUMBERS, *BROKER, *PAGES, *PACKETS, "paho"),
        ),
        ([f"{one} --data-dir none" for one in READING], (*NUMBERS, *BROKER, *PAGES, "paho")),
    ],
    ids=["pub", "sub", "asking", "reading"],
)
def test_a_command_loads_only_what_it_needs(commands: list[str], modules: tuple[str, ...]) -> None:
    assert loaded(commands, modules) == {}


def test_the_table_of_commands_agrees_with_the_commands() -> None:
    """``foldmq --help`` shows the table and loads no command: both must say the same."""
    import typer

    root = typer.main.get_command(app)
    entries = [*(entry for group in GROUPS.values() for entry in group), *HIDDEN]
    assert len({entry.name for entry in entries}) == len(entries)
    for entry in entries:
        command = root.get_command(None, entry.name)
        assert command is not None
        help_text = " ".join((command.help or "").split("\n\n")[0].split())
        assert help_text == entry.help, entry.name


def test_every_flag_has_a_help_text() -> None:
    """Most have it below a field, from where it is read."""
    import typer

    commands = [typer.main.get_command(app)]
    count = 0
    for command in commands:
        if hasattr(command, "list_commands"):
            commands += [command.get_command(None, name) for name in command.list_commands(None)]
        for parameter in command.params:
            shown = not getattr(parameter, "hidden", False) or parameter.rich_help_panel
            assert parameter.help or not shown, (command.name, parameter.name)
            count += 1
    assert count > 1000


def test_every_setting_has_a_topic() -> None:
    assert sorted(SETTING_NAMES) == sorted(Settings.model_fields)
    assert len(set(SETTING_NAMES)) == len(SETTING_NAMES)


def test_commands_have_pages_with_sections() -> None:
    import typer

    root = typer.main.get_command(app)
    assert isinstance(root.get_command(None, "serve"), PageCommand)


@pytest.mark.system
def test_an_idle_broker_loads_no_library_that_it_does_not_use(tmp_path: Path) -> None:
    """Each would take megabytes: HTTP and metrics, certificates, tokens, text in colours."""
    here = "127.0.0.1:0"
    words = ["--data-dir", str(tmp_path / "data"), "--log-format", "json"]
    words += [word for flag in ("--listen", "--web", "--metrics") for word in (flag, here)]
    broker = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "cli.main", "serve", *words],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    imported = set()
    with broker, contextlib.closing(broker.stderr or io.StringIO()) as lines:
        for line in lines:
            imported.add(line.rpartition("|")[2].strip())
            if '"event": "ready"' in line:
                broker.terminate()
    unused = {"aiohttp.web", "aiohttp.client", "cryptography.hazmat", "jinja2", "jwt", "paho"}
    printing = {"prometheus_client", "pygments", "rich.console", "textual", *NUMBERS}
    assert broker.returncode == 0
    assert "cli.serve.http_monitor" in imported
    assert imported & (unused | printing) == set()
    assert [name for name in imported if name.partition(".")[0] == "outbox"] == []  # no destination
