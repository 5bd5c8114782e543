"""The batch parser: the same messages as nats-py's parser, whatever the pieces."""

import asyncio
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.protocol.parser import Parser as LibraryParser

from eventstore.nats.batch_transport import (
    LINE_BYTES,
    MESSAGE_BYTES,
    BatchParser,
    Event,
    MalformedStream,
    NatsMessage,
)

words = st.binary(min_size=1, max_size=12).map(
    lambda raw: bytes(33 + byte % 94 for byte in raw)  # what a subject may hold
)
sids = st.integers(0, 1 << 40)
payloads = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"\r\n", b"PING\r\n", b"MSG a 1 0\r\n\r\n", b"x" * 5000]),
)
blocks = st.lists(st.tuples(words, words), max_size=3).map(
    lambda fields: b"NATS/1.0\r\n" + b"".join(b"%b: %b\r\n" % field for field in fields) + b"\r\n"
)
messages = st.builds(
    NatsMessage,
    sids,
    words,
    st.one_of(st.just(b""), words),
    st.one_of(st.just(b""), blocks),
    payloads,
)
lines = st.sampled_from(
    [b"PING", b"PONG", b"+OK", b"-ERR 'Slow Consumer'", b'INFO {"server_id":"a b"}']
)


def render(event: NatsMessage | bytes) -> bytes:
    if isinstance(event, bytes):
        return event + b"\r\n"
    sid, subject, reply, headers, payload = event
    where = b"%b %d" % (subject, sid) + (b" " + reply if reply else b"")
    size = len(headers) + len(payload)
    if headers:
        return b"HMSG %b %d %d\r\n%b%b\r\n" % (where, len(headers), size, headers, payload)
    return b"MSG %b %d\r\n%b\r\n" % (where, size, payload)


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [stream[a:b] for a, b in itertools.pairwise(places)]


def flat(events: list[Event]) -> list[NatsMessage | bytes]:
    return [one for event in events for one in (event if isinstance(event, list) else [event])]


class Heard:
    """The output of nats-py's parser, in the form of ours."""

    def __init__(self) -> None:
        self.events: list[NatsMessage | bytes] = []

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        self.events.append(NatsMessage(sid, bytes(subject), bytes(reply), headers or b"", data))

    async def _process_ping(self) -> None:
        self.events.append(b"PING")

    async def _process_pong(self) -> None:
        self.events.append(b"PONG")

    async def _process_err(self, text: str) -> None:
        self.events.append(b"-ERR " + text.encode())

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.events.append(b"INFO " + json.dumps(info, separators=(",", ":")).encode())


def library_events(parts: list[bytes]) -> list[NatsMessage | bytes]:
    heard = Heard()
    parser = LibraryParser(heard)

    async def parse() -> None:
        for part in parts:
            await parser.parse(part)

    asyncio.run(parse())
    return heard.events


@given(st.lists(st.one_of(messages, messages, lines), max_size=12), st.lists(st.integers(0)))
def test_any_cut_gives_the_messages_that_were_sent(
    sent: list[NatsMessage | bytes], cuts: list[int]
) -> None:
    stream = b"".join(map(render, sent))
    parser = BatchParser()
    got = [event for part in pieces(stream, cuts) for event in parser.feed(part)]
    assert flat(got) == sent
    for event in got:
        if isinstance(event, list):
            assert all(type(message) is NatsMessage for message in event)
            assert event, "a batch has messages"


@given(st.lists(st.one_of(messages, lines), max_size=6), st.lists(st.integers(0), max_size=8))
def test_the_same_as_the_parser_of_nats_py(
    sent: list[NatsMessage | bytes], cuts: list[int]
) -> None:
    parts = pieces(b"".join(map(render, sent)), cuts)
    parser = BatchParser()
    got = flat([event for part in parts for event in parser.feed(part)])
    ours = [
        one.lower() if isinstance(one, bytes) and one.startswith(b"-ERR") else one
        for one in got
        if one != b"+OK"  # of no interest to nats-py
    ]
    theirs = [
        one.lower() if isinstance(one, bytes) and one.startswith(b"-ERR") else one
        for one in library_events(parts)
    ]
    assert ours == theirs


def test_a_read_gives_one_batch() -> None:
    sent = [NatsMessage(number, b"a", b"", b"", b"%d" % number) for number in range(1000)]
    assert BatchParser().feed(b"".join(map(render, sent))) == [sent]


def test_a_pong_keeps_its_place_between_messages() -> None:
    one, two = NatsMessage(1, b"a", b"", b"", b"1"), NatsMessage(1, b"a", b"r", b"", b"2")
    stream = render(one) + b"PONG\r\n" + render(two)
    assert BatchParser().feed(stream) == [[one], b"PONG", [two]]


def test_subjects_with_control_characters_are_no_line_ends() -> None:
    odd = NatsMessage(1, b"a\x0bb\x0c\xff\n", b"\x1b", b"", b"")
    assert BatchParser().feed(render(odd)) == [[odd]]


def test_a_large_message_in_small_pieces_is_put_together_once() -> None:
    sent = NatsMessage(7, b"large", b"", b"NATS/1.0\r\n\r\n", bytes(8 << 20))
    stream = render(sent)
    parser = BatchParser()
    got: list[Event] = []
    for start in range(0, len(stream), 1000):
        assert not got
        got += parser.feed(stream[start : start + 1000])
        assert len(parser._held) <= start // 1000 + 1, "pieces are kept as they came"
    assert got == [[sent]]
    assert not parser._held


@pytest.mark.parametrize(
    "line",
    [
        b"HELLO",
        b"",
        b"msg a 1 0",
        b"MSG a 1",
        b"MSG a 1 r 0 0",
        b"MSG a 1 -1",
        b"MSG a 1 +1",
        b"MSG a 1 1_0",
        b"MSG a 1 \xb2",
        b"MSG a one 1\r\nx",
        b"MSG a  1 1\r\nx",
        b"HMSG a 1 2",
        b"HMSG a 1 r 1 2 3",
        b"HMSG a 1 13 12",
        b"MSG a 1 1" + b"0" * 20,
        b"MSG a 1 %d" % MESSAGE_BYTES,
        b"\x1b[31m",
    ],
)
def test_protocol_errors(line: bytes) -> None:
    with pytest.raises(MalformedStream) as caught:
        BatchParser().feed(line + b"\r\n")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("size", [1, 1000, LINE_BYTES * 2])
def test_a_line_without_end_is_not_kept(size: int) -> None:
    parser = BatchParser()
    fed = 0
    while fed <= LINE_BYTES - size:
        assert parser.feed(b"x" * size) == []
        fed += size
    with pytest.raises(MalformedStream, match="a line of more than"):
        parser.feed(b"x" * (LINE_BYTES - fed + 1))


@given(st.binary(max_size=300), st.lists(st.integers(0), max_size=5))
def test_garbage_is_refused_or_waited_for(garbage: bytes, cuts: list[int]) -> None:
    parser = BatchParser()
    try:
        for part in pieces(garbage, cuts):
            parser.feed(part)
    except MalformedStream:
        return
    assert sum(map(len, parser._held)) <= len(garbage)
