"""Suggested commands, as they run on this machine for this broker.

Advice names commands without flags, and :data:`SERVER_LOG` for the log lines of the broker;
:class:`NextCommands` completes them. :func:`completed` does so for other text, with the flags of
this process.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cli.settings.log_settings import NATS_SETTINGS, PATH_SETTINGS, load_log_settings
from cli.settings.setting_sources import CONFIG_VARIABLE, PREFIX, ConfigError, flag_of
from eventstore.datadir import DataDir
from eventstore.errors import SALVAGE
from eventstore.nats.server_urls import without_secrets

if TYPE_CHECKING:
    from cli.logs.source_flags import SourceFlags

SERVER_LOG: Final = "the log lines of the broker"
"""Stands for the command that shows them."""
_STATUS: Final = "foldmq status"
"""The command where no other one is known to run."""
_SHOW: Final = "sessions show "
_SHOW_FLAGLIKE: Final = f"{_SHOW}-- "
_WITH_FLAGS: Final = frozenset(
    {
        "actors",
        "backup",
        "confirm-clock",
        "diff",
        "doctor",
        "erase",
        "history",
        "log",
        "nodes",
        "outbox",
        "reload",
        "replay",
        "retained",
        "sessions",
        "status",
        "subscriptions",
        "top",
        "verify",
        "why",
    }
)
"""Commands with flags that select the broker."""
_WITH_SETTINGS: Final = frozenset({"config", "serve"})
"""Commands with the same flags, but for --node."""
_IN_TEXT: Final = re.compile(
    rf"\bfoldmq (?:{'|'.join(sorted(_WITH_FLAGS | _WITH_SETTINGS))})(?![\w-])"
    r"(?: (?:check|ls|pause|purge|refused|resume|retry|rm|show|skip|tail|usage|verify)\b)?"
    r"(?! --data-dir)"
)
"""A command in a sentence, up to its flags."""
_SALVAGE: Final = "foldmq salvage --data-dir DIR --to NEWDIR"
_OR_SALVAGE: Final = re.compile(rf", or [a-z ]+: {re.escape(SALVAGE)}")
"""The remedy that a directory with several logs does not have."""


def shell_word(name: str) -> str:
    """Return a name as a word of a command; an unprintable one as bash and zsh write it."""
    if name.isprintable():
        return shlex.quote(name)
    return "$'" + "".join(map(_in_quotes, name)) + "'"


def _in_quotes(char: str) -> str:
    if char in "\\'":
        return "\\" + char
    if char.isprintable():
        return char
    return "".join(f"\\x{byte:02x}" for byte in char.encode())


def show_session(name: str) -> str:
    """Return the command that shows a session."""
    return f"foldmq {_SHOW_FLAGLIKE if name.startswith('-') else _SHOW}{shell_word(name)}"


class NextCommands:
    """Completes the next commands for the broker that ``flags`` select.

    ``pids`` are the processes of the brokers that answered. With ``elsewhere`` the commands run in
    another shell than this process: paths are absolute, and the settings of this process' own
    environment are flags.
    """

    def __init__(
        self, flags: SourceFlags, pids: Iterable[int] = (), *, elsewhere: bool = False
    ) -> None:
        values: dict[str, object] = {}
        if elsewhere:
            for name in (*NATS_SETTINGS, "encryption_key_file"):
                if value := os.environ.get(PREFIX + name.upper()):
                    values[name] = value
            if value := os.environ.get(CONFIG_VARIABLE):
                values["config"] = value
        values |= flags.settings
        if flags.config is not None:
            values["config"] = flags.config
        values.pop("nats_password", None)  # never shown
        if "nats_url" in values:
            values["nats_url"] = without_secrets(str(values["nats_url"]))
        self._node = flags.node
        cluster = os.environ.get(f"{PREFIX}CLUSTER") if elsewhere else None
        if cluster is not None and flags.node is None and flags.config is None:
            # The data directory would select this node, which may not lead.
            values.pop("data_dir", None)
            if os.environ.get(f"{PREFIX}PARTITIONS", "1") == "1":
                self._node = cluster
        self._given, self._config = values, flags.config
        self._data_dir = values.get("data_dir")
        if self._data_dir is None and flags.config is None and "nats_url" not in values:
            self._data_dir = os.environ.get(f"{PREFIX}DATA_DIR", "foldmq-data")
        self._flags = [
            f"{flag_of(name)} {shlex.quote(_absolute(name, value) if elsewhere else str(value))}"
            for name, value in values.items()
        ]
        self._program = _program(elsewhere=elsewhere)
        self._pids = list(pids)

    def complete(self, command: str) -> str:
        """Return a command of an advice as it runs here; or two, joined by ``&&``."""
        first, joined, then = command.partition(" && ")
        if joined:  # the broker has completed the first one
            return f"{first} && {self.complete(then)}"
        if command == SERVER_LOG:
            command = next(filter(None, map(_log_command, self._pids)), _STATUS)
        program, _, arguments = command.partition(" ")
        if program != "foldmq":
            if shutil.which(program) is not None:
                return command
            arguments = _STATUS.partition(" ")[2]
        name = ""
        if arguments.startswith(_SHOW_FLAGLIKE):  # flags come before a name that looks like one
            arguments, name = _SHOW_FLAGLIKE[:-4], " -- " + arguments[len(_SHOW_FLAGLIKE) :]
        words = [self._program, arguments]
        command = arguments.split(" ", 1)[0]
        if command in _WITH_FLAGS | _WITH_SETTINGS:
            words += self._flags
            if command in _WITH_FLAGS and self._node is not None and "--node " not in arguments:
                words.append(f"--node {shlex.quote(self._node)}")
        return " ".join(words) + name

    def in_text(self, text: str) -> str:
        """Return text with the commands in it completed."""
        if "foldmq " not in text:
            return text
        if _SALVAGE in text:
            text = self._with_salvage(text)
        return _IN_TEXT.sub(lambda match: self.complete(match[0]), text)

    def _with_salvage(self, text: str) -> str:
        """Return text with the command that salvages the log, if its data directory is known."""
        data_dir, key = self._data_dir, self._given.get("encryption_key_file")
        if data_dir is None and self._config is not None:
            values = {name: self._given[name] for name in self._given if name != "config"}
            with contextlib.suppress(ConfigError):
                settings = load_log_settings(values, os.environ, self._config)
                data_dir = settings.data_dir if settings.nats_url is None else None
                key = settings.encryption_key_file
        if data_dir is None:
            return text
        place = Path(str(data_dir)).absolute()
        if DataDir(place).processes.exists():
            text = _OR_SALVAGE.sub("", text)
        new = place.with_name(f"{place.name}.salvaged")
        command = f"{self._program} salvage --data-dir {_quoted(place)} --to {_quoted(new)}"
        if key is not None:
            command += f" {flag_of('encryption_key_file')} {_quoted(key)}"
        return text.replace(_SALVAGE, command)


_own: list[NextCommands] = []
"""The commands for the flags of this process; empty: it has none."""


def select(flags: SourceFlags, *, elsewhere: bool = False) -> None:
    """Let :func:`completed` complete commands for the broker or log that ``flags`` select."""
    _own[:] = [NextCommands(flags, elsewhere=elsewhere)]


def completed(text: str) -> str:
    """Return text whose commands run as pasted for the broker or log of this process."""
    for commands in _own:
        return commands.in_text(text)
    return text


def _quoted(path: object) -> str:
    return shlex.quote(str(Path(str(path)).absolute()))


def _absolute(name: str, value: object) -> str:
    return str(Path(str(value)).absolute()) if name in (*PATH_SETTINGS, "config") else str(value)


def _program(*, elsewhere: bool) -> str:
    """Return the word that runs this program in a shell."""
    program = Path(sys.executable).with_name("foldmq")
    installed = shutil.which("foldmq")
    if installed is not None and (not program.exists() or program.samefile(installed)):
        return "foldmq"
    called = sys.argv[0] if sys.argv else ""
    if not elsewhere and Path(called).name == "foldmq" and "/" in called:
        return shlex.quote(called)  # as it was typed
    return shlex.quote(str(program)) if program.exists() else "foldmq"


def _log_command(pid: int) -> str | None:
    """Return the command that shows the last lines of a broker on this machine; None: unknown."""
    process = Path("/proc", str(pid))
    try:
        if b"foldmq" not in (process / "cmdline").read_bytes():
            return None  # the broker runs on another machine, or in a container
        target = str((process / "fd/2").readlink())
        if target.startswith("/") and stat.S_ISREG(Path(target).stat().st_mode):
            return f"tail -n 50 {shlex.quote(target)}"
        if not target.startswith("socket:") or not _environment(process).get("JOURNAL_STREAM"):
            return None
        unit = (process / "cgroup").read_text("utf-8").strip().rpartition("/")[2]
    except (OSError, UnicodeDecodeError):
        return None
    if not unit.endswith(".service") or shutil.which("journalctl") is None:
        return None
    return f"journalctl -u {shlex.quote(unit)} -n 50"


def _environment(process: Path) -> Mapping[str, str]:
    entries = (process / "environ").read_bytes().decode(errors="replace").split("\0")
    return dict(entry.partition("=")[::2] for entry in entries)
