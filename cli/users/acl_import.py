"""``foldmq acl import``: the rules of a Mosquitto ``acl_file`` as a permission file.

Mosquitto (mosquitto.conf(5), version 2) applies topics before the first ``user`` line to clients
without a user name, those after it to that user, and patterns to all clients. It looks at the
topics of the user first, denials before the others, and then at the patterns.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from actors.access import rules_file
from cli.common import text
from cli.settings.setting_sources import ConfigError
from cli.users import line_files

_ACCESS: Final = {"read": "subscribe", "write": "publish", "readwrite": "both", "deny": "both"}
_NOTE: Final = (
    "# Mosquitto accepts every subscription and withholds messages that may not be read; foldmq",
    "# refuses a subscription that no rule covers.",
)

Whose = str | Literal[True] | None
"""A user; True: clients without a user name; None: all clients."""


class _Line(NamedTuple):
    """A rule of Mosquitto."""

    number: int
    whose: Whose
    deny: bool
    key: str
    """publish, subscribe or both."""
    filter: str
    """As foldmq writes it."""


class AclImport(NamedTuple):
    """The result of an import."""

    toml: str
    problems: tuple[tuple[int, str], ...]
    """Lines that were not translated, or not exactly: number and reason."""


def import_acl(source: Path, output: Path | None) -> bool:
    """Print the rules, or write them to a new file; return whether all lines were translated.

    Raises ConfigError if the file cannot be read or written, or if nothing is allowed.
    """
    if output is not None and output.exists():
        raise ConfigError(f"{output}: exists already: choose another file, or remove it")
    result = read_acl(source)
    for number, reason in result.problems:
        sys.stderr.write(f"{source}:{number}: {text.escaped(reason, 500)}\n")
    if output is None:
        sys.stdout.write(result.toml)
    else:
        line_files.write_lines(output, line_files.lines_of(result.toml))
        sys.stdout.write(f"written to {output}: name it with the setting permissions\n")
    return not result.problems


def read_acl(source: Path) -> AclImport:
    """Return the rules of an ``acl_file`` as TOML that foldmq accepts.

    Raises ConfigError if the file cannot be read, or if nothing is allowed.
    """
    try:
        content = source.read_text("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{source}: cannot read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{source}:{line}: not UTF-8 text") from None
    result = translate(content, str(source))
    try:
        rules_file.parse_rules(source, result.toml)
    except rules_file.PermissionFileError as error:
        raise ConfigError(str(error)) from None
    return result


def translate(content: str, name: str) -> AclImport:
    """Return the rules of the text of an ``acl_file`` as TOML, and what could not be translated."""
    rules: list[_Line] = []
    problems: list[tuple[int, str]] = []
    for rule in _read(content, problems):
        reason = _refused(rule)
        if reason is None:
            rules.append(rule)
        else:
            problems.append((rule.number, reason))
    problems += _overridden(rules)
    lines = [f"# Translated from {text.escaped(name, 300)}.", *_NOTE]
    groups: dict[tuple[Whose, bool], list[_Line]] = {}
    for rule in rules:
        groups.setdefault((rule.whose, rule.deny), []).append(rule)
    for (whose, deny), group in groups.items():
        lines += ["", *_table(whose, group, deny=deny)]
    return AclImport("\n".join(lines) + "\n", tuple(sorted(problems)))


def _read(content: str, problems: list[tuple[int, str]]) -> Iterator[_Line]:
    whose: Whose = True
    for number, raw in enumerate(content.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        keyword, _, words = line.partition(" ")
        words = words.strip()
        if keyword == "user" and words:
            whose = words
            if "*" in words:
                problems.append((number, "a * in a user name stands for any text in foldmq"))
        elif keyword in ("topic", "pattern") and words:
            access, _, topic = words.partition(" ")
            if not topic:
                access, topic = "readwrite", words
            if access not in _ACCESS:
                problems.append((number, f"{access} is not read, write, readwrite or deny"))
                continue
            owner = None if keyword == "pattern" else whose
            if isinstance(owner, str) and "*" in owner:
                problems.append((number, f"not translated: it is of user {owner}"))
                continue
            escaped = topic.strip().replace("%", "%%")
            if keyword == "pattern":
                escaped = escaped.replace("%%u", "%u").replace("%%c", "%c")
            yield _Line(number, owner, access == "deny", _ACCESS[access], escaped)
        else:
            problems.append((number, f"not a line of an acl_file: {line}"))


def _refused(rule: _Line) -> str | None:
    """Return why foldmq would refuse a rule, or None."""
    lines = _table(rule.whose, [rule], deny=rule.deny)
    if rule.deny:  # a file must allow something
        lines += ["[[allow]]", 'both = ["#"]']
    try:
        rules_file.parse_rules(Path("rule"), "\n".join(lines))
    except rules_file.PermissionFileError as error:
        return f"not translated: {str(error).partition('] 1: ')[2] or error}"
    return None


def _overridden(rules: Iterable[_Line]) -> Iterator[tuple[int, str]]:
    """Yield denials by patterns, which the topics of users override in Mosquitto only."""
    rules = [*rules]
    own = any(rule.whose is not None and not rule.deny for rule in rules)
    for rule in rules:
        if own and rule.whose is None and rule.deny:
            yield (
                rule.number,
                (
                    "translated, but stricter: a denial takes precedence over every allow; in "
                    "Mosquitto the topics of a user take precedence over a pattern"
                ),
            )


def _table(whose: Whose, rules: Iterable[_Line], *, deny: bool) -> list[str]:
    lines = ["[[deny]]" if deny else "[[allow]]"]
    if whose is True:
        lines.append("anonymous = true")
    elif whose is not None:
        lines.append(f"users = [{text.toml_value(whose)}]")
    by_key: dict[str, list[_Line]] = {}
    for rule in rules:
        by_key.setdefault(rule.key, []).append(rule)
    for key, group in by_key.items():
        lines.append(f"{key} = [")
        lines += [f"    {text.toml_value(rule.filter)},  # line {rule.number}" for rule in group]
        lines.append("]")
    return lines
