"""Shared subscriptions: sessions without a connection that divide messages among members."""

from actors.sharing.shared_session import SharedSession, make_session
from actors.sharing.shared_subscriptions import SharedSubscriptions

__all__ = ["SharedSession", "SharedSubscriptions", "make_session"]
