"""All limits on clients of a node: checked for each connection, and swept every second."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import Generic, TypeVar

import structlog

from actors.limits.address_networks import network_of
from actors.limits.limit_options import NO_QUOTA, LimitOptions, Quota
from actors.limits.publish_rates import PublishRates, RateLimiter
from actors.limits.rejection_log import RejectionLog
from actors.limits.slow_readers import Reader, SlowReader, SlowReaders
from actors.limits.token_bucket import Buckets

_log = structlog.get_logger("foldmq")

ReaderT = TypeVar("ReaderT", bound=Reader)

_MAX_DEBT = 2.0
"""Maximum debt in seconds of an address or user that may open another connection."""
_LINES = 10
"""Maximum log lines in ten seconds about rejected logins, protocol errors or silent clients, whose
reasons operators need."""


class ClientLimits(Generic[ReaderT]):
    """The limits on clients; ``listeners`` holds the quota of each listener by name.

    A connection starts with :meth:`arrive` and ends with :meth:`leave`. In between a PROXY header
    may name its address (:meth:`locate`), it is :attr:`unauthenticated`, is identified
    (:meth:`identify`), and gets its :meth:`rate_limiter`.
    Times are monotonic seconds. Rejections are counted in :attr:`refused`.
    """

    def __init__(self, options: LimitOptions, listeners: Mapping[str, Quota]) -> None:
        self._options = options
        self._listeners = dict(listeners)
        self._addresses = KeyedQuota("address", options.address, options.burst)
        self._users = KeyedQuota("user", options.user, options.burst)
        self._quotas = {
            name: KeyedQuota("listener", quota, options.burst) for name, quota in listeners.items()
        }
        self._flapping = Flapping(*_flapping_of(options))
        self._faulty = Flapping(*_faults_of(options))
        self._rates = PublishRates(self._listeners, *_rates_of(options))
        self.overload = Overload(
            options.overload_lag, options.overload_commit, options.overload_after
        )
        self.refused = RejectionLog("clients refused or closed")
        self.late = RejectionLog("not connected in time", _LINES, self.refused)
        self.rejected = RejectionLog("connection refused", _LINES, self.refused)
        self.reauthentications = RejectionLog("re-authentication failed", _LINES, self.refused)
        self.broken = RejectionLog("protocol error", _LINES, self.refused)
        self.slow: SlowReaders[ReaderT] = SlowReaders(
            options.slow_reader_time, options.max_unread_bytes
        )
        self.unauthenticated: Unauthenticated[ReaderT] = Unauthenticated(
            options.max_unauthenticated, options.max_unauthenticated_bytes
        )

    def change(self, options: LimitOptions, listeners: Mapping[str, Quota]) -> None:
        """Apply other limits; existing connections stay. Existing rate limiters do not change.

        Parties that are blocked or in debt remain so unless their limits changed.
        """
        before, self._options = self._options, options
        previous_listeners, self._listeners = self._listeners, dict(listeners)
        self._addresses.change(options.address, options.burst)
        self._users.change(options.user, options.burst)
        for name, quota in listeners.items():
            self._quota_of(name).change(quota, options.burst)
        if _flapping_of(before) != _flapping_of(options):
            self._flapping = Flapping(*_flapping_of(options))
        if _faults_of(before) != _faults_of(options):
            self._faulty = Flapping(*_faults_of(options))
        if (previous_listeners, _rates_of(before)) != (self._listeners, _rates_of(options)):
            self._rates = PublishRates(self._listeners, *_rates_of(options))
        self.overload.change(options.overload_lag, options.overload_commit, options.overload_after)
        self.slow.max_wait = options.slow_reader_time
        self.slow.max_unread = options.max_unread_bytes
        self.unauthenticated.max_connections = options.max_unauthenticated
        self.unauthenticated.max_bytes = options.max_unauthenticated_bytes

    def refuses(self, listener: str, address: str, now: float) -> bool:
        """Return whether a connection being accepted must be closed immediately.

        That is the cheapest way: nothing is allocated for it. The connection is not counted, so
        several may pass at the same time where only one is allowed. ``address`` is the host,
        without the port; it is empty for a Unix socket, and if it becomes known later
        (:meth:`locate`).
        """
        reason = "overload" if self.overload.reason is not None else None
        reason = reason or self._rejection_reason(address, now)
        reason = reason or self._refusal(now, listener, address)
        if reason is not None:
            self.refused.add(reason, now, listener=listener, address=address)
        return reason is not None

    def is_full(self, listener: str, address: str, now: float) -> bool:
        """Return whether a new connection would be refused because there are too many."""
        reason = self._refusal(now, listener, address)
        return reason is not None and reason.endswith("_connections")

    def _rejection_reason(self, address: str, now: float) -> str | None:
        """Return why a connection of an address is rejected before allocation; None: it is not."""
        if self._faulty.refuses(network_of(address), now):
            return "faults"
        if self._rates.debt(address, None, now) > _MAX_DEBT:
            return "publish_debt"
        return None

    def count_fault(self, address: str, now: float) -> None:
        """Count a connection that ended with a protocol error; an empty address is not counted."""
        network = network_of(address)
        if network and not self._faulty.refuses(network, now):
            wait = self._faulty.connects(network, now)
            if wait:
                _log.warning(
                    "address temporarily blocked: too many protocol errors",
                    address=address,
                    seconds=round(wait),
                )

    def arrive(self, listener: str, address: str, now: float) -> str | None:
        """Count a new connection; return why it is refused, or None."""
        reason = self._enter(now, listener, address)
        if reason is not None:
            self.refused.add(reason, now, listener=listener, address=address)
        return reason

    def locate(self, listener: str, address: str, now: float) -> str | None:
        """Count a connection for the address of its PROXY header.

        Returns why it is refused, or None. If it is refused, :meth:`leave` must get no address, as
        :meth:`arrive` did.
        """
        reason = self._rejection_reason(address, now) or self._enter(now, None, address)
        if reason is not None:
            self.refused.add(reason, now, listener=listener, address=address)
        return reason

    def identify(self, user: str | None, address: str, now: float) -> str | None:
        """Count a connection for its user; return why it is refused, or None."""
        reason = self._enter(now, user=user)
        if reason is not None:
            self.refused.add(reason, now, user=user, address=address)
        return reason

    def leave(self, listener: str, address: str, user: str | None) -> None:
        """Stop counting a connection, with the arguments that it was counted for."""
        for quota, party in self._parties(listener, address, user):
            quota.leave(party)

    def connections(self, listener: str) -> int:
        """Return how many connections a listener has."""
        return self._quota_of(listener).connections

    def _refusal(
        self, now: float, listener: str | None = None, address: str = "", user: str | None = None
    ) -> str | None:
        """Return why a connection may not be opened now, or None; it is not counted."""
        for quota, party in self._parties(listener, address, user):
            reason = quota.refusal(party, now)
            if reason is not None:
                return reason
        return None

    def _enter(
        self, now: float, listener: str | None = None, address: str = "", user: str | None = None
    ) -> str | None:
        """Count a connection; return why it is refused, and then not counted, or None."""
        reason = self._refusal(now, listener, address, user)
        if reason is None:
            for quota, party in self._parties(listener, address, user):
                quota.enter(party, now)
        return reason

    def _parties(
        self, listener: str | None, address: str, user: str | None
    ) -> Iterator[tuple[KeyedQuota, str]]:
        if listener is not None:
            yield self._quota_of(listener), listener
        network = network_of(address)
        if network:
            yield self._addresses, network
        if user is not None:
            yield self._users, user

    def _quota_of(self, listener: str) -> KeyedQuota:
        quota = self._quotas.get(listener)
        if quota is None:
            quota = self._quotas[listener] = KeyedQuota("listener", NO_QUOTA, 1.0)
        return quota

    def flaps(self, key: Hashable, now: float, client: str, address: str) -> float:
        """Count an accepted CONNECT; return for how many seconds it is refused, usually 0."""
        wait = self._flapping.connects(key, now)
        if wait:
            self.refused.add("flapping", now, 1, client=client, address=address)
        return wait

    def has_debt(self, address: str, user: str | None, now: float) -> bool:
        """Return whether a new connection is refused because its address or user is in debt.

        Otherwise a throttled client could open another connection for each message.
        """
        if self._rates.debt(address, user, now) <= _MAX_DEBT:
            return False
        self.refused.add("publish_debt", now, address=address, user=user)
        return True

    def rate_limiter(
        self, listener: str, address: str, user: str | None, now: float
    ) -> RateLimiter | None:
        """Return the rate limiter of a connection; None: its rate is not limited."""
        return self._rates.rate_limiter(listener, address, user, now)

    def refuses_filter(self, topic_filter: str) -> str | None:
        """Return why no client may subscribe to a topic filter, or None."""
        most_levels, most_wildcards = self._options.max_topic_levels, self._options.max_wildcards
        if most_levels and topic_filter.count("/") >= most_levels:
            return "topic_levels"
        # A wildcard is a whole level, so each of these characters is one [MQTT-4.7.1-2/3].
        if most_wildcards and topic_filter.count("+") + topic_filter.count("#") > most_wildcards:
            return "wildcards"
        return None

    def sweep(self, connections: Collection[ReaderT], now: float) -> list[SlowReader[ReaderT]]:
        """Remove expired entries; return clients to close. To be called once a second."""
        for quota in (self._addresses, self._users, *self._quotas.values()):
            quota.sweep(now)
        self._flapping.sweep(now)
        self._faulty.sweep(now)
        self._rates.sweep(now)
        return self.slow.sweep(connections, now)


def _flapping_of(options: LimitOptions) -> tuple[int, float, float]:
    return options.flapping_connects, options.flapping_backoff, options.flapping_backoff


def _faults_of(options: LimitOptions) -> tuple[int, float, float]:
    return options.max_faults_per_address, options.fault_backoff, options.fault_backoff


def _rates_of(options: LimitOptions) -> tuple[Quota, Quota, Quota, float, float]:
    return (
        options.address, options.user, options.client, options.burst, options.throttle_timeout,
    )  # fmt: skip


class KeyedQuota:
    """The connections of all parties of one kind, each with the same quota.

    ``kind`` is the prefix of the reasons for a refusal: "address_connections", "address_rate".
    """

    def __init__(self, kind: str, quota: Quota, burst: float) -> None:
        self._kind = kind
        self._quota = quota
        self._burst = burst
        self._count: Counter[str] = Counter()
        self._rates = _connection_rates(quota, burst)

    def change(self, quota: Quota, burst: float) -> None:
        """Apply another quota; existing connections stay, and changed rates restart."""
        if (quota.connection_rate, burst) != (self._quota.connection_rate, self._burst):
            self._rates = _connection_rates(quota, burst)
        self._quota = quota
        self._burst = burst

    def refusal(self, party: str, now: float) -> str | None:
        """Return why a party may not open a connection now, or None."""
        most = self._quota.connections
        if most and self._count[party] >= most:
            return f"{self._kind}_connections"
        if self._rates is not None and not self._rates.allows(party, now):
            return f"{self._kind}_rate"
        return None

    def enter(self, party: str, now: float) -> None:
        """Count a new connection."""
        self._count[party] += 1
        if self._rates is not None:
            self._rates.take(party, 1, now)

    def leave(self, party: str) -> None:
        """Stop counting a connection."""
        if self._count[party] > 1:
            self._count[party] -= 1
        else:
            del self._count[party]

    @property
    def connections(self) -> int:
        """The number of connections of all parties."""
        return self._count.total()

    def sweep(self, now: float) -> None:
        """Remove expired entries; to be called once a second."""
        if self._rates is not None:
            self._rates.forget_full(now)


def _connection_rates(quota: Quota, burst: float) -> Buckets | None:
    rate = quota.connection_rate
    # A burst below one would reject every connection.
    return Buckets(rate, max(1.0, rate * burst)) if rate else None


class Flapping:
    """Counts connects by key, such as user and client identifier.

    ``connects`` within ``window`` seconds are allowed; with one more, the key is refused for
    ``backoff`` seconds. Connects during that time do not extend it, so a client that keeps trying
    is accepted afterwards. At most ``most`` keys are remembered.
    """

    def __init__(self, connects: int, window: float, backoff: float, most: int = 10_000) -> None:
        self._seen = Buckets(connects / window, float(connects), most) if connects else None
        self._backoff = backoff
        self._most = most
        self._refused_until: dict[Hashable, float] = {}
        """End of each refusal, in order, since all refusals have the same duration."""

    def __len__(self) -> int:
        """Return the number of refused keys."""
        return len(self._refused_until)

    def refuses(self, key: Hashable, now: float) -> bool:
        """Return whether a key is refused, without counting anything."""
        return self._refused_until.get(key, now) > now

    def connects(self, key: Hashable, now: float) -> float:
        """Count a connect; return for how many seconds the key is refused, 0 if it is not."""
        if self._seen is None:
            return 0.0
        until = self._refused_until.get(key)
        if until is not None:
            if until > now:
                return until - now
            del self._refused_until[key]
        if self._seen.allows(key, now):
            self._seen.take(key, 1, now)
            return 0.0
        if len(self._refused_until) >= self._most:
            del self._refused_until[next(iter(self._refused_until))]
        self._refused_until[key] = now + self._backoff
        return self._backoff

    def sweep(self, now: float) -> None:
        """Remove keys whose refusal ended or whose connects are old; to be called once a second."""
        if self._seen is not None:
            self._seen.forget_full(now)
        while self._refused_until:
            first = next(iter(self._refused_until))
            if self._refused_until[first] > now:
                break
            del self._refused_until[first]


ConnectionT = TypeVar("ConnectionT")

_OWN_COST = 8192
"""Bytes that an idle connection takes, without the memory of the operating system."""
_KEPT = 7 / 8
"""Fraction of a limit to which its use is reduced once it is reached, so that this is rare."""


class Unauthenticated(Generic[ConnectionT]):
    """The connections whose CONNECT is not accepted, and their memory."""

    def __init__(self, max_connections: int, max_bytes: int) -> None:
        self.max_connections = max_connections
        """Maximum number, 0: unlimited, as ``max_bytes``; both may be changed."""
        self.max_bytes = max_bytes
        self._addresses: dict[str, _Address[ConnectionT]] = {}
        self.bytes = 0
        """Approximate memory that they take."""
        self._count = 0

    def __len__(self) -> int:
        """Return the number of unauthenticated connections."""
        return self._count

    def join(self, connection: ConnectionT, address: str) -> list[ConnectionT]:
        """Add a new connection; return the connections that must be closed because of it.

        They have already been removed. The new one may be among them.
        """
        name = network_of(address)
        at = self._addresses.get(name)
        if at is None:
            at = self._addresses[name] = _Address()
        at.held[connection] = _OWN_COST
        at.bytes += _OWN_COST
        self.bytes += _OWN_COST
        self._count += 1
        return self._make_room()

    def holds(self, connection: ConnectionT, address: str, size: int) -> list[ConnectionT]:
        """Record that a connection holds ``size`` bytes; return those that must be closed.

        They have already been removed. An unknown connection is ignored.
        """
        at = self._addresses.get(network_of(address))
        before = at.held.get(connection) if at is not None else None
        if at is None or before is None:
            return []
        more = _OWN_COST + size - before
        at.held[connection] = before + more
        at.bytes += more
        self.bytes += more
        return self._make_room() if more > 0 else []

    def leave(self, connection: ConnectionT, address: str) -> None:
        """Remove a connection that was accepted or has ended; it may already have been removed."""
        name = network_of(address)
        at = self._addresses.get(name)
        if at is not None:
            self._forget(name, at, connection)

    def _forget(self, name: str, at: _Address[ConnectionT], connection: ConnectionT) -> None:
        cost = at.held.pop(connection, None)
        if cost is None:
            return
        at.bytes -= cost
        self.bytes -= cost
        self._count -= 1
        if not at.held:
            del self._addresses[name]

    def _make_room(self) -> list[ConnectionT]:
        over = (self.max_connections and self._count > self.max_connections) or (
            self.max_bytes and self.bytes > self.max_bytes
        )
        if not over:
            return []
        most = int(self.max_connections * _KEPT) if self.max_connections else self._count
        most_bytes = int(self.max_bytes * _KEPT) if self.max_bytes else self.bytes
        heaviest = [(-at.bytes, name) for name, at in self._addresses.items()]
        heapq.heapify(heaviest)
        closed = []
        while heaviest and (self._count > most or self.bytes > most_bytes):
            _, name = heapq.heappop(heaviest)
            at = self._addresses[name]
            oldest = next(iter(at.held))
            self._forget(name, at, oldest)
            closed.append(oldest)
            if at.held:
                heapq.heappush(heaviest, (-at.bytes, name))
        return closed


class _Address(Generic[ConnectionT]):
    """The connections of one address with their cost, the oldest first."""

    __slots__ = ("bytes", "held")

    def __init__(self) -> None:
        self.held: dict[ConnectionT, int] = {}
        self.bytes = 0


_LONGEST_STEP = 1.0
"""Maximum seconds that one sample counts for: after a stall there is one late sample."""


class Overload:
    """Detects that the event loop or the log is too slow; fed with several samples a second.

    Machines stall occasionally, so a single late sample does not mean overload. Time above the
    limit fills a bucket, time below half of the limit empties it. Overload begins when the bucket
    is full and ends when it is empty.
    """

    def __init__(self, lag: float, commit: float, after: float) -> None:
        self._lag = lag
        self._commit = commit
        self._after = after
        self._filled = {"loop_lag": 0.0, "commit_latency": 0.0}
        self._last: float | None = None
        self._since = 0.0
        self.reason: str | None = None
        """Reason to refuse new connections: "loop_lag", "commit_latency"; None: there is none."""

    def change(self, lag: float, commit: float, after: float) -> None:
        """Apply other limits, in seconds; 0 disables one."""
        self._lag, self._commit, self._after = lag, commit, after

    def sample(self, lag: float, commit: float, now: float) -> None:
        """Record the lag of the event loop, and the age of the oldest record not on disk."""
        step = 0.0 if self._last is None else min(now - self._last, _LONGEST_STEP)
        self._last = now
        for reason, seen, bound in (
            ("loop_lag", lag, self._lag),
            ("commit_latency", commit, self._commit),
        ):
            filled = self._filled[reason]
            if not bound:
                filled = 0.0
            elif seen > bound:
                filled = min(self._after, filled + step)
            elif seen <= bound / 2:
                filled = max(0.0, filled - step)
            self._filled[reason] = filled
        self._decide(now, lag, commit)

    def _decide(self, now: float, lag: float, commit: float) -> None:
        if self.reason is not None:
            if self._filled[self.reason] > 0:
                return
            _log.info("overload has ended", reason=self.reason, seconds=round(now - self._since, 1))
            self.reason = None
        for reason, filled in self._filled.items():
            if filled >= self._after and filled > 0:
                self.reason = reason
                self._since = now
                _log.warning(
                    "overloaded: new connections are refused",
                    reason=reason,
                    loop_lag_s=round(lag, 3),
                    commit_s=round(commit, 3),
                )
                return
