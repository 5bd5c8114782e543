"""Values of the flags of ``foldmq pub`` and ``foldmq sub``: valid values and their meaning."""

from cli.clients.client_errors import BadArgumentError
from cli.common.units import seconds
from eventstore.display import escaped
from protocol.mqtt.topics import TopicError, validate_topic_filter, validate_topic_name

NEVER = 0xFFFFFFFF
"""The Session Expiry Interval of a session that does not expire."""

_LEVELS = {
    **dict.fromkeys(("5", "mqttv5"), 5),
    **dict.fromkeys(("311", "3.1.1", "4", "mqttv311"), 4),
    **dict.fromkeys(("31", "3.1", "3", "mqttv31"), 3),
}
_MAX_BYTES = 65_535

Pairs = tuple[tuple[str, str], ...]


def choose_level(version: str | None, needed_by: list[str]) -> int:
    """Return the protocol level: ``version``, or else 4, and 5 if a given flag needs it.

    Raises BadArgumentError for another version, and for one that does not support these flags.
    """
    if version is None:
        return 5 if needed_by else 4
    level = _LEVELS.get(version.lower())
    if level is None:
        raise BadArgumentError(f'-V "{escaped(version)}": must be 5, 311 or 31')
    if needed_by and level < 5:
        raise BadArgumentError(f"{needed_by[0]} needs MQTT 5, not -V {version}")
    return level


def check_filter_of_level(topic_filter: str, level: int) -> None:
    """Raise BadArgumentError unless a client of this level may subscribe to the filter."""
    check = validate_topic_filter
    if level == 5:
        # foldmq pub does not need the packets of MQTT 5.
        from protocol.mqtt.field_reader import check_topic_filter

        check = check_topic_filter
    try:
        check(topic_filter)
    except TopicError as error:
        raise BadArgumentError(f'topic "{escaped(topic_filter)}": {error}') from None


def as_seconds(flag: str, text: str | None, *, never: bool = False) -> int | None:
    """Return a time in whole seconds; ``never``: the time may be "never"."""
    if text is None:
        return None
    if never and text == "never":
        return NEVER
    try:
        value = float(str(seconds(text)))
    except ValueError as error:
        more = ', or "never"' if never else ""
        raise BadArgumentError(f'{flag} "{escaped(text)}": {error}{more}') from None
    if not value.is_integer() or value > NEVER:
        raise BadArgumentError(f"{flag} {escaped(text)}: must be whole seconds, at most {NEVER}")
    return int(value)


def checked_text(flag: str, text: str | None) -> str | None:
    """Return a text if a packet can carry it."""
    if text is not None:
        _check_text(flag, text)
    return text


def as_topic(flag: str, text: str | None) -> str | None:
    """Return a text if it is a topic name."""
    if text is None:
        return None
    try:
        validate_topic_name(text)
    except TopicError as error:
        raise BadArgumentError(f'{flag} "{escaped(text)}": {error.reason}') from None
    return text


def as_bytes(flag: str, text: str | None) -> bytes | None:
    """Return the bytes of an argument."""
    if text is None:
        return None
    data = text.encode("utf-8", "surrogateescape")
    if len(data) > _MAX_BYTES:
        raise BadArgumentError(f"{flag}: has {len(data)} bytes, at most {_MAX_BYTES} fit")
    return data


def as_pairs(flag: str, texts: list[str] | None) -> Pairs:
    """Return names and values of user properties, in their order."""
    pairs = []
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign:
            raise BadArgumentError(f'{flag} "{escaped(text)}": must be NAME=VALUE')
        _check_text(flag, name)
        _check_text(flag, value)
        pairs.append((name, value))
    return tuple(pairs)


def _check_text(flag: str, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise BadArgumentError(f'{flag} "{escaped(text)}": is not UTF-8') from None
    if size > _MAX_BYTES:
        raise BadArgumentError(f"{flag}: has {size} bytes, at most {_MAX_BYTES} fit")
