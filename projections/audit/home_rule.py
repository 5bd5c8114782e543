"""Checks that a session is in the log that the hash of its name says, where there are several."""

from typing import NamedTuple

from eventstore.display import name as shown
from eventstore.format.events import LOG_SESSION, NATS_SESSION
from eventstore.partitions import partition_of
from projections.state.session import SHARED_PART, SessionState
from protocol.mqtt.shared_filters import SHARE


class LogPlace(NamedTuple):
    """The place of a log among the logs of its broker."""

    number: int
    names: tuple[str, ...]
    """The names of all of them, in the order of their numbers."""

    def home_of(self, session: str) -> str:
        """Return the name of the log of a session."""
        return self.names[partition_of(session, len(self.names))]


def has_home(session: str) -> bool:
    """Return whether a session belongs to one of the logs, and not to all."""
    return session != NATS_SESSION and not session.startswith(LOG_SESSION)


def wrong_home(session: str, state: SessionState, place: LogPlace) -> str | None:
    """Return what is wrong with the log that a session is in; None: nothing.

    A shared subscription may have a part in each log. It matches no topics there, and has its queue
    in its home.
    """
    home, here = place.home_of(session), place.names[place.number]
    if not session.startswith(SHARE):
        if home == here:
            return None
        return f"the session of {shown(session)} is in log {here}, but belongs to log {home}"
    for held in state.subscriptions.values():
        if held.filter.startswith(LOG_SESSION):
            continue
        is_part = bool(held.options & SHARED_PART)
        if home == here and is_part:
            return f"{shown(session)} has only a part in log {here}, which is its home"
        if home != here and not is_part:
            return f"{shown(session)} has its queue in log {here}, but its home is log {home}"
    return None
