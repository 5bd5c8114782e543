"""Checks the keys of sealed contents at a start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.session.content_sealing import ContentSealing
from eventstore.errors import EventStoreError
from eventstore.log.key_file import KeyDamaged

if TYPE_CHECKING:
    from actors.session.node_context import NodeContext


class KeysMissing(EventStoreError):  # noqa: N818 - named for the condition
    """The log has contents sealed under keys, and the broker has none."""

    exit_code = 78


def begin_sealing(node: NodeContext, *, continues: bool) -> None:
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
    damaged = [topic for topic, key in held.by_topic.items() if keys.is_damaged(key.number)]
    if damaged:
        raise KeyDamaged(
            f"personal_key_file = {keys.path}: keys are missing or damaged, and were not erased: "
            f"{len(damaged)} of {len(held.by_topic)}: restore the file from its newest copy"
        )
    node.sealing = ContentSealing(
        node.options.personal_topics, keys, lambda: node.state.keys, node.emit, node.fail
    )
    node.sealing.start(continues=continues)
    node.journal.key = keys.key
