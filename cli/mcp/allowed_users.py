"""The users whom the present rules allow to read a topic."""

import os
from typing import Any, Final

from actors.access import rules_file
from cli.logs.source_flags import SourceFlags
from cli.settings.settings import load_settings
from cli.users.passwd import list_users
from protocol.errors import FoldmqError

_NOTE: Final = "of the rules at present; those of the past are not known"
_ANY_CLIENT: Final = "\ufffd"
"""A client identifier that no rule names."""


def allowed_users(flags: SourceFlags, topic: str) -> dict[str, Any]:
    """Return the users of the password file who may read a topic now, as far as it is known.

    Rules for client identifiers, groups of tokens and answers of a callout are not looked at.
    """
    row: dict[str, Any] = {"kind": "rules", "note": _NOTE}
    try:
        settings = load_settings(flags.settings, os.environ, flags.config)
        if settings.permissions is None:
            if flags.config is None:
                said = "unknown: this server was started without --config, the broker's settings"
                return {**row, "users": said}
            return {**row, "users": "everyone: there is no permission file"}
        rules = rules_file.load(settings.permissions)
        if settings.password_file is None:
            return {**row, "users": "unknown: there is no password file with names of users"}
        users = [name for name, _ in list_users(settings.password_file)]
    except FoldmqError as error:
        return {**row, "users": f"unknown: {error}"}
    allowed = [user for user in users if rules.access(user, (), _ANY_CLIENT).may_read(topic)]
    return {**row, "users": allowed, "of_users": len(users)}
