"""Settings taken from another broker: collected, written as files, and checked as at a start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cli.common import text
from cli.serve import config_check
from cli.settings.setting_sources import ConfigError
from cli.settings.settings import load_settings
from cli.users import line_files, passwd
from eventstore.errors import DataDirError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIG_FILE: Final = "foldmq.toml"
_PERMISSIONS_FILE: Final = "permissions.toml"
_USERS_FILE: Final = "users"
_DATA: Final = "data"


class ImportedSettings:
    """The settings of foldmq that correspond to a configuration file, and what has no counterpart.

    ``target`` is the directory for the files. It is created by :meth:`write`.
    """

    def __init__(self, source: Path, target: Path) -> None:
        """Begin without settings."""
        self.source = source
        self.target = target.absolute()
        self.settings: dict[str, object] = {}
        self.listeners: list[dict[str, object]] = []
        self.connections: dict[str, dict[str, object]] = {}
        """Connections to other brokers, by name."""
        self.permissions = ""
        """Content of the permission file; empty: there is none."""
        self.passwords: dict[str, str] = {}
        """Users to create, with their passwords."""
        self.needs_users = False
        """Create a password file even if there are no users to create."""
        self.unmatched: list[str] = []
        """A line for each thing that has no counterpart, with its place."""
        self.remarks: list[str] = []
        """Lines for the file: what is not needed, or counts in another way."""

    @property
    def data_dir(self) -> Path:
        """The data directory for the broker."""
        return self.target / _DATA

    def unmatch(self, place: str, what: str) -> None:
        """Note a thing without a counterpart; ``place`` is its file and line."""
        self.unmatched.append(f"{place}: {text.escaped(what, 500)}")

    def remark(self, place: str, what: str) -> None:
        """Note something for readers of the file."""
        self.remarks.append(f"{place}: {text.escaped(what, 500)}")

    def check_target(self) -> None:
        """Raise DataDirError unless the directory is new or empty.

        What an import that was killed left of the data directory is checked when it is written.
        """
        try:
            if any(path != self.data_dir for path in self.target.iterdir()):
                raise DataDirError(self.target, "is not empty: name a new directory with --to")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise DataDirError(self.target, f"cannot be used: {error.strerror}") from None

    def write(self) -> None:
        """Write the files. Raises ConfigError or DataDirError."""
        try:
            self.target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataDirError(self.target, f"cannot be created: {error.strerror}") from None
        self.settings["data_dir"] = str(self.data_dir)
        if self.permissions:
            permissions = self.target / _PERMISSIONS_FILE
            line_files.write_lines(permissions, line_files.lines_of(self.permissions))
            self.settings["permissions"] = str(permissions)
        if self.passwords or self.needs_users:
            users = self.target / _USERS_FILE
            line_files.write_lines(users, [])
            for name, password in self.passwords.items():
                passwd.set_user(users, name, password.encode())
            self.settings["password_file"] = str(users)
        line_files.write_lines(self.target / CONFIG_FILE, list(self._lines()))

    def problem(self) -> str | None:
        """Return why a start would refuse the written files, or None."""
        try:
            config_check.check_configuration(load_settings({}, {}, self.target / CONFIG_FILE))
        except ConfigError as error:
            return str(error)
        return None

    def _lines(self) -> Iterator[str]:
        yield f"# Translated from {text.escaped(str(self.source), 300)}."
        for title, lines in (
            ("Has no counterpart", self.unmatched),
            ("Is not needed, or counts in another way", self.remarks),
        ):
            if lines:
                yield from ("#", f"# {title}:", *(f"#   {line}" for line in lines))
        yield ""
        yield from _assignments(self.settings)
        for listener in self.listeners:
            yield from ("", "[[listen]]", *_assignments(listener))
        for name, connection in self.connections.items():
            yield from ("", f"[connection.{name}]", *_assignments(connection))


def _assignments(values: dict[str, object]) -> Iterator[str]:
    return (f"{name} = {text.toml_value(value)}" for name, value in values.items())
