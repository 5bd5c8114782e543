"""All bounds of a node in one place: what the broker asks when somebody comes, and every second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

from actors.limits.addresses import network_of
from actors.limits.connection_quota import ConnectionQuotas
from actors.limits.flapping import Flapping
from actors.limits.overload import Overload
from actors.limits.publish_rates import PublishRates, RateLimiter
from actors.limits.rejection_log import RejectionLog
from actors.limits.slow_readers import Reader, SlowReader, SlowReaders
from actors.limits.topic_limits import TopicLimits
from actors.limits.unauthenticated import Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping

    from actors.configuration import LimitOptions, Quota

_log = structlog.get_logger("foldmq")

ReaderT = TypeVar("ReaderT", bound=Reader)

_MOST_DEBT = 2.0
"""Seconds for which an address or user may have to wait before it gets no further connection."""
_LINES = 10
"""Lines in ten seconds about clients that break the standard or say nothing."""
_LOGINS = 100
"""The same about logins that are refused: who comes in vain wants to know why."""


class ClientLimits(Generic[ReaderT]):
    """Keeps the broker up; ``listeners`` has the quota of each listener by its name.

    A connection comes in with :meth:`arrive` and is over with :meth:`leave`. In between it is
    :attr:`unauthenticated`, is identified (:meth:`identify`), and gets its :meth:`rate_limiter`.
    Times are monotonic seconds. Whatever is refused is counted in :attr:`refused`.
    """

    __slots__ = (
        "_admission",
        "_faulty",
        "_flapping",
        "_listeners",
        "_options",
        "_rates",
        "broken",
        "late",
        "overload",
        "refused",
        "slow",
        "topics",
        "unauthenticated",
        "unwelcome",
    )  # fmt: skip

    def __init__(self, options: LimitOptions, listeners: Mapping[str, Quota]) -> None:
        self._options = options
        self._listeners = dict(listeners)
        self._admission = ConnectionQuotas(listeners, options.address, options.user, options.burst)
        self._flapping = Flapping(*_flapping_of(options))
        self._faulty = Flapping(*_faults_of(options))
        self._rates = PublishRates(self._listeners, *_rates_of(options))
        self.overload = Overload(
            options.overload_lag, options.overload_commit, options.overload_after
        )
        self.refused = RejectionLog("clients refused or closed")
        self.late = RejectionLog("not connected in time", _LINES, self.refused.counts)
        self.unwelcome = RejectionLog("connection refused", _LOGINS, self.refused.counts)
        self.broken = RejectionLog("protocol error", _LINES, self.refused.counts)
        self.slow: SlowReaders[ReaderT] = SlowReaders(
            options.slow_reader_time, options.max_unread_bytes
        )
        self.topics = _topics(options)
        self.unauthenticated: Unauthenticated[ReaderT] = Unauthenticated(
            options.max_unauthenticated, options.max_unauthenticated_bytes
        )

    def change(self, options: LimitOptions, listeners: Mapping[str, Quota]) -> None:
        """Take other bounds; who is in stays in. Rate limiters given before go on as they were.

        Those who are jailed or in debt remain so unless the bounds in question changed.
        """
        before, self._options = self._options, options
        known, self._listeners = self._listeners, dict(listeners)
        self._admission.change(listeners, options.address, options.user, options.burst)
        if _flapping_of(before) != _flapping_of(options):
            self._flapping = Flapping(*_flapping_of(options))
        if _faults_of(before) != _faults_of(options):
            self._faulty = Flapping(*_faults_of(options))
        if (known, _rates_of(before)) != (self._listeners, _rates_of(options)):
            self._rates = PublishRates(self._listeners, *_rates_of(options))
        self.overload.change(options.overload_lag, options.overload_commit, options.overload_after)
        self.slow.patience = options.slow_reader_time
        self.slow.max_unread = options.max_unread_bytes
        self.topics = _topics(options)
        self.unauthenticated.max_connections = options.max_unauthenticated
        self.unauthenticated.max_bytes = options.max_unauthenticated_bytes

    def refuses(self, listener: str, address: str, now: float) -> bool:
        """Return whether a connection that is being accepted is to be closed at once.

        That costs least: nothing was made for it. It is not counted in, so several at a time may
        pass where one may come in. ``address`` is the host, without the port; it is empty for a
        Unix socket, and where it is only known later (:meth:`locate`).
        """
        reason = "overload" if self.overload.reason is not None else None
        reason = reason or self._blamed(address, now)
        reason = reason or self._admission.refusal(listener, address, now)
        if reason is not None:
            self.refused.add(reason, now, listener=listener, address=address)
        return reason is not None

    def _blamed(self, address: str, now: float) -> str | None:
        """Return for what an address is turned away before anything is made for it."""
        if self._faulty.jailed(network_of(address), now):
            return "faults"
        if self._rates.debt(address, None, now) > _MOST_DEBT:
            return "publish_debt"
        return None

    def count_fault(self, address: str, now: float) -> None:
        """Count a connection that ended through its own fault; "" is nobody's address."""
        network = network_of(address)
        if network and not self._faulty.jailed(network, now):
            wait = self._faulty.connects(network, now)
            if wait:
                _log.warning("turned away for its faults", address=address, seconds=round(wait))

    def arrive(self, listener: str, address: str, now: float) -> str | None:
        """Count a new connection in; return why it is refused, None if it is not."""
        reason = self._admission.arrive(listener, address, now)
        if reason is not None:
            self.refused.add(reason, now, listener=listener, address=address)
        return reason

    def locate(self, listener: str, address: str, now: float) -> str | None:
        """Count a connection in for the address that a PROXY header told, or say why not.

        If it is refused it must leave without an address, as it arrived.
        """
        reason = self._blamed(address, now) or self._admission.locate(address, now)
        if reason is not None:
            self.refused.add(reason, now, listener=listener, address=address)
        return reason

    def identify(self, user: str | None, address: str, now: float) -> str | None:
        """Count a connection in for its user, or say why not; it must leave without it then."""
        reason = self._admission.identify(user, now)
        if reason is not None:
            self.refused.add(reason, now, user=user, address=address)
        return reason

    def leave(self, listener: str, address: str, user: str | None) -> None:
        """Count a connection out: what it was counted in for."""
        self._admission.leave(listener, address, user)

    def connections(self, listener: str) -> int:
        """Return how many connections a listener has."""
        return self._admission.at_listener(listener)

    def flaps(self, key: Hashable, now: float, client: str, address: str) -> float:
        """Count an accepted CONNECT; return for how many seconds it is refused, mostly 0."""
        wait = self._flapping.connects(key, now)
        if wait:
            self.refused.add("flapping", now, 1, client=client, address=address)
        return wait

    def owes(self, address: str, user: str | None, now: float) -> bool:
        """Say whether a new connection is refused, as its address or user published too much.

        Else whoever is slowed down would be better off with another connection for each message.
        """
        if self._rates.debt(address, user, now) <= _MOST_DEBT:
            return False
        self.refused.add("publish_debt", now, address=address, user=user)
        return True

    def rate_limiter(
        self, listener: str, address: str, user: str | None, now: float
    ) -> RateLimiter | None:
        """Return what counts for a connection that it publishes; None: nothing bounds it."""
        return self._rates.rate_limiter(listener, address, user, now)

    def sweep(self, connections: Collection[ReaderT], now: float) -> list[SlowReader[ReaderT]]:
        """Forget what no longer matters; return clients to close. To be called once a second."""
        self._admission.sweep(now)
        self._flapping.sweep(now)
        self._faulty.sweep(now)
        self._rates.sweep(now)
        return self.slow.sweep(connections, now)


def _flapping_of(options: LimitOptions) -> tuple[int, float, float]:
    return options.flapping_connects, options.flapping_window, options.flapping_jail


def _faults_of(options: LimitOptions) -> tuple[int, float, float]:
    return options.address_faults, options.fault_jail, options.fault_jail


def _rates_of(options: LimitOptions) -> tuple[Quota, Quota, Quota, float, float]:
    return (
        options.address, options.user, options.client, options.burst, options.publish_patience,
    )  # fmt: skip


def _topics(options: LimitOptions) -> TopicLimits:
    return TopicLimits(
        options.max_subscriptions,
        options.max_topic_levels,
        options.max_wildcards,
        options.max_wildcard_patterns,
        options.max_wildcard_patterns_total,
    )
