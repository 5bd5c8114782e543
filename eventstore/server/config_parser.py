"""A parser for the part of nats-server's configuration language that a file with users needs.

Maps, lists, strings, numbers, ``true`` and ``false``, comments. Variables, ``include`` and blocks
of text in parentheses are rejected: the file itself must contain all users.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from protocol.errors import FoldmqError

_DEEPEST: Final = 20
_SPACE = re.compile(r"(?:\s|#[^\n]*+|//[^\n]*+)*+")
_SEPARATORS = re.compile(r"(?:[\s,;]|#[^\n]*+|//[^\n]*+)*+")
_KEY = re.compile(r"[^\s:={}\[\],;\"']+")
_ASSIGNS = re.compile(r"\s*[:=]?\s*")
_BARE = re.compile(r"[^\s,;\]}]+")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_QUOTED = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_RAW = re.compile(r"'([^'\n]*)'")
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|.)")
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\"}
_BCRYPT: Final = ("$2a$", "$2b$", "$2x$", "$2y$")
_WORDS: Final = dict.fromkeys(("true", "yes", "on"), True) | dict.fromkeys(
    ("false", "no", "off"), False
)


class NatsConfError(FoldmqError):
    """A text is not valid in this language; ``line`` is the line of the error."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


class Value(NamedTuple):
    """A value, and the line on which it begins."""

    what: Content
    line: int


Content: TypeAlias = "dict[str, Value] | list[Value] | str | int | bool"


def parse(text: str) -> dict[str, Value]:
    """Return the content of a configuration; the outermost braces are optional.

    Raises NatsConfError with the line of the first error; the message contains no values.
    """
    reader = _Reader(text)
    return reader.document()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def document(self) -> dict[str, Value]:
        self._skip(_SPACE)
        if self._next() != "{":
            return self._map("")
        content = self._map("}")
        self._skip(_SEPARATORS)
        if self._next():
            raise self._error("nothing may follow the last closing brace")
        return content

    def _map(self, end: str) -> dict[str, Value]:
        entries: dict[str, Value] = {}
        for _ in self._items(end, "a brace { is not closed"):
            name, line = self._key()
            if name in entries:
                raise NatsConfError(line, "a name occurs twice in a map")
            self._skip(_ASSIGNS)
            entries[name] = self._value()
        return entries

    def _items(self, end: str, unclosed: str) -> Iterator[None]:
        """Yield where an item of a map or list begins, until its closing bracket."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error("nested too deeply")
        self._at += len(end)  # the opening bracket
        while True:
            self._skip(_SEPARATORS)
            if self._next() == end:
                break
            if not self._next():
                raise self._error(unclosed)
            yield
        self._depth -= 1
        self._at += len(end)

    def _key(self) -> tuple[str, int]:
        line = self._line()
        if self._next() in ("'", '"'):
            return self._text_in_quotes(), line
        match = _KEY.match(self._text, self._at)
        if match is None:
            raise self._error("expected a name, such as users or permissions")
        if match[0] == "include":
            raise self._error("include is not supported: write the users into this file")
        self._at = match.end()
        return match[0], line

    def _value(self) -> Value:
        line = self._line()
        match self._next():
            case "{":
                return Value(self._map("}"), line)
            case "[":
                items = self._items("]", "a bracket [ is not closed")
                return Value([self._value() for _ in items], line)
            case "'" | '"':
                return Value(self._text_in_quotes(), line)
            case "(":
                raise self._error("blocks in parentheses are not supported: use quotes")
        match = _BARE.match(self._text, self._at)
        if match is None:
            raise self._error("a value is missing")
        word = match[0]
        if word.startswith("$") and not word.startswith(_BCRYPT):
            raise self._error("variables are not supported: write the value, in quotes")
        self._at = match.end()
        if word.lower() in _WORDS:
            return Value(_WORDS[word.lower()], line)
        return Value(int(word) if _INTEGER.fullmatch(word) else word, line)

    def _text_in_quotes(self) -> str:
        match = (_RAW if self._next() == "'" else _QUOTED).match(self._text, self._at)
        if match is None:
            raise self._error("a quotation mark is not closed on its line")
        try:
            text = match[1] if self._next() == "'" else _ESCAPE.sub(_unescaped, match[1])
        except KeyError:
            raise self._error(
                r'in quotes, \ must be followed by t, n, r, ", \ or x and two hexadecimal digits'
            ) from None
        self._at = match.end()
        return text

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, what: re.Pattern[str]) -> None:
        match = what.match(self._text, self._at)
        if match is not None:
            self._at = match.end()

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _error(self, what: str) -> NatsConfError:
        return NatsConfError(self._line(), what)


def _unescaped(match: re.Match[str]) -> str:
    what = match[1]
    return chr(int(what[1:], 16)) if len(what) == 3 else _ESCAPED[what]
