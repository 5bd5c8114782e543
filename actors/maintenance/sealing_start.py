"""Checks the keys of sealed contents at a start."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from actors.session.content_sealing import ContentSealing
from actors.session.personal_names import PersonalNames
from eventstore.errors import CorruptLog, EventStoreError
from eventstore.format.erasure_events import TopicsKeyed
from eventstore.format.event_parsing import UnreadableEvent
from eventstore.format.name_entries import CLIENT, USER
from eventstore.format.positions import sequence_of
from eventstore.format.sealing import key_check
from eventstore.log.key_file import KeyDamaged, epoch_of, file_of_epoch

if TYPE_CHECKING:
    from actors.session.node_context import NodeContext
    from eventstore.log.jetstream_log import EventLog
    from eventstore.log.shared_keys import Keys


_AT_ONCE: Final = 1024
"""Topics whose keys are looked at before others have their turn."""


class KeysMissing(EventStoreError):  # noqa: N818 - named for the condition
    """The log has contents sealed under keys, and the broker has none."""

    exit_code = 78


async def begin_sealing(node: NodeContext, *, continues: bool) -> None:
    """Prepare to seal contents, and check the keys that the log uses; call it after recovery.

    ``continues``: no later state of this log is known to exist. Raises KeysMissing or KeyDamaged.
    """
    held, keys = node.state.keys, node.log.keys
    if keys is None:
        if held.last:
            raise KeysMissing(
                "the log has contents sealed under keys, but personal_key_file is not set: name "
                "the file with the keys"
            )
        return
    newest = epoch_of(held.last)
    if newest > epoch_of(keys.end):
        raise KeyDamaged(
            f"personal_key_file = {file_of_epoch(keys.path, newest)}: is missing: restore it from "
            "its newest copy"
        )
    damaged = 0
    for number, topic_keys in enumerate([*held.by_topic.values()], 1):
        damaged += sum(keys.is_damaged(key.number) for key in topic_keys.keys)
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
    if damaged:
        raise KeyDamaged(
            f"personal_key_file = {keys.path}: keys are missing or damaged, and were not erased: "
            f"{damaged} of {held.count}: restore the file from its newest copy"
        )
    await _check_newest(node, keys)
    node.sealing = ContentSealing(
        node.options.personal_topics,
        keys,
        lambda: node.state.keys,
        node.emit,
        node.fail,
        lambda: node.journal.event_ms(),
        round(node.options.personal_keep * 1000),
    )
    node.sealing.start(continues=continues)
    node.journal.cipher = keys.cipher
    await _load_names(node, node.sealing)


async def _load_names(node: NodeContext, sealing: ContentSealing) -> None:
    """Open the names that have tokens; raises KeysMissing if the settings would show some."""
    options = node.options
    partition = node.exchange.partition if node.exchange is not None else (0, 1)
    patterns_of = options.personal_clients, options.personal_users
    names = PersonalNames(*patterns_of, sealing, partition)
    for _ in names.load([*node.state.keys.by_topic]):
        await asyncio.sleep(0)
    for kind, setting in ((CLIENT, "personal_clients"), (USER, "personal_users")):
        patterns = getattr(options, setting)
        if names.has_kind(kind) and not patterns:
            raise KeysMissing(
                f"the log has tokens instead of names, but {setting} is not set: set it, if only "
                "to a pattern that matches no further name"
            )
    if options.personal_clients or options.personal_users:
        node.names = names


async def _check_newest(node: NodeContext, keys: Keys) -> None:
    """Compare the newest key with the hash that the log has of it, unless that was cut off.

    Files of the same node may have other keys under the same numbers, for example if one was made
    for an older copy of the log. Raises KeyDamaged.
    """
    by_topic = node.state.keys.by_topic
    topic = max(by_topic, key=lambda topic: by_topic[topic].keys[-1].number, default=None)
    if topic is None:
        return
    newest = by_topic[topic].keys[-1]
    number, key = newest.number, keys.key(newest.number)
    check = await _check_in_log(node.log, topic, sequence_of(newest.since))
    if key is not None and check not in ("", key_check(key)):
        raise KeyDamaged(
            f"personal_key_file = {keys.path}: key {number} is not the one that the log names: "
            "restore the file from the newest copy that belongs to this log"
        )


async def _check_in_log(log: EventLog, topic: str, sequence: int) -> str:
    """Return the hash of a topic's key in a record; empty: it was cut off, or is damaged."""
    if sequence < log.first:
        return ""
    try:
        async for record in log.read(sequence, sequence):
            for _, event in record.events():
                if isinstance(event, TopicsKeyed) and topic in event.topics:
                    return event.checks[event.topics.index(topic)]
    except (CorruptLog, UnreadableEvent):
        pass  # a start tolerates damage in front of what it folds
    return ""
