"""``foldmq acl``: checks a client's permissions."""

import os
from collections.abc import Sequence
from pathlib import Path

import typer

from actors.access import rules_file
from actors.access.rules import Explanation, Permissions, Rule
from cli.common import text
from cli.settings.setting_sources import CONFIG_VARIABLE
from cli.settings.settings import load_settings
from cli.users.acl_command import QueryFlags
from eventstore.errors import UsageError
from protocol.mqtt.topics import (
    TopicError,
    is_bridge_state,
    is_reserved_filter,
    is_reserved_topic,
    validate_topic_filter,
    validate_topic_name,
)

_LONGEST = 300
"""Maximum number of characters shown of a rule."""


def check_permission(question: QueryFlags, *, as_json: bool) -> bool:
    """Print whether it is allowed and the rule that decides; return whether it is.

    Raises UsageError for an invalid topic or without a file, ConfigError and PermissionFileError
    for an invalid file.
    """
    validate = validate_topic_name if question.action == "publish" else validate_topic_filter
    try:
        validate(question.topic)
    except TopicError as error:
        raise UsageError(f"{text.name(question.topic)}: {error.reason}") from None
    rules = _permissions(question.permissions, question.config)
    explained = _explain(rules, question)
    groups = sorted(rules.groups_of(question.user_name).union(question.groups or ()))
    typer.echo(_json(explained) if as_json else _sentence(question, groups, explained))
    return explained.allowed


def _permissions(path: Path | None, config: Path | None) -> Permissions:
    if path is not None:
        return rules_file.load(path)
    settings = load_settings({}, os.environ, config)
    if settings.permissions is not None:
        return rules_file.load(settings.permissions)
    if config is None and not os.environ.get(CONFIG_VARIABLE):
        raise UsageError("give --permissions FILE, or the broker's settings with --config FILE")
    return Permissions()


def _explain(permissions: Permissions, question: QueryFlags) -> Explanation:
    publish = question.action == "publish"
    reserved = is_reserved_topic if publish else is_reserved_filter
    if reserved(question.topic) and not (publish and is_bridge_state(question.topic)):
        return Explanation(False, None, "reserved for the broker, whatever the permissions")
    access = permissions.access(question.user_name, question.groups or (), question.client)
    return access.explain(question.action, question.topic)


def _sentence(question: QueryFlags, groups: Sequence[str], explained: Explanation) -> str:
    user = "no user"
    if question.user_name is not None:
        user = f"user {text.name(question.user_name)}"
    if groups:
        user += f" (groups {', '.join(map(text.name, groups))})"
    verb = f"{question.action}{' to' if question.action == 'subscribe' else ''}"
    lines = [
        f"{'allowed' if explained.allowed else 'denied'}: {text.escaped(explained.text, _LONGEST)}",
        f"{user}, client {text.name(question.client)}: {verb} {text.name(question.topic)}",
    ]
    if explained.partly:
        allowed = explained.allowed
        lines.append("but messages are withheld by:" if allowed else "partly matched by:")
        lines += [f"  {_shown(rule)}" for rule in explained.partly]
    return "\n".join(lines)


def _shown(rule: Rule) -> str:
    return text.escaped(str(rule), _LONGEST)


def _json(explained: Explanation) -> str:
    return text.json_line(
        {
            "allowed": explained.allowed,
            "reason": explained.text,
            "rule": _row(explained.rule),
            "partly": [_row(rule) for rule in explained.partly],
        }
    )


def _row(rule: Rule | None) -> dict[str, object] | None:
    if rule is None:
        return None
    return {
        "allow": rule.allow,
        "publish": rule.publish,
        "subscribe": rule.subscribe,
        "history": rule.history,
        "filter": rule.filter,
        "where": rule.where,
    }
