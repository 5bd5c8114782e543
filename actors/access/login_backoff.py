"""Login backoff: clients whose logins fail repeatedly are slowed for a while.

Failures are counted within a time window: those of one user from one address, and those from one
address for any user. While a user is slowed at an address, its logins there are verified one after
the other, with growing pauses; while an address is slowed, so are those of all users that have not
logged in there before, and failed logins are answered late. A right password gets in all the same.
A user is never slowed at all addresses: otherwise any client could slow any user. Users who logged
in at an address are known there: their logins are verified first, also after a restart.
"""

import enum
import hashlib
import ipaddress
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

from actors.limits.address_networks import network_of, networks_of

V = TypeVar("V")

_NETWORK_FAILURES: Final = 8
"""Failed logins from a network within the time window from which its logins are verified last."""
_FIRST_PAUSE: Final = 0.25
"""Seconds between the logins of a slowed user at first."""
_PAUSE_DOUBLES: Final = 50
"""Number of logins after which that doubles, up to the rate at which failures are counted."""
_LONGEST_WAIT: Final = 8.0
"""Seconds that a login of a slowed user waits at most: clients give up later."""
_ADDRESS_PAUSE: Final = 0.1
"""Seconds between the logins of unknown users from a slowed address."""
_USER: Final = b"u"
_ADDRESS: Final = b"a"
_NAME: Final = b"n"
_SITE: Final = b"s"
"""First byte of the key of a record, of a user name that failed somewhere, or of a network."""


class LoginRank(enum.IntEnum):
    """The order in which waiting logins are verified."""

    KNOWN = 0
    """The user has logged in from this address, and is not slowed there."""
    NEW = 1
    SUSPECT = 2
    """Logins of this user, or from this address, failed recently."""
    GUESS = 3
    """Both did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffOptions:
    """Options of the login backoff, with the defaults of the settings.

    Times are in seconds; 0 failures disables a limit.
    """

    failures: int = 10
    """Failed logins of one user from one address until that user is slowed there."""
    address_failures: int = 200
    """Failed logins from one address until the whole address is slowed."""
    window: float = 60.0
    """Time window in which they are counted, from the first one on."""
    duration: float = 60.0
    """Duration of a lockout. Attempts during a lockout do not extend it."""
    remembered: int = 20_000
    """Maximum number of tracked users and addresses, and of known users; the least recent are
    dropped first."""


class _Record:
    __slots__ = ("failures", "next_trial", "since", "trials", "until", "whole_address")

    def __init__(self, since: float, *, whole_address: bool = False) -> None:
        self.failures = 0
        self.since = since
        self.until = 0.0
        self.next_trial = 0.0
        """While it is slowed: when the next login may be verified."""
        self.trials = 0
        self.whole_address = whole_address


class LoginBackoff:
    """Counts failed logins; ``clock`` returns monotonic seconds."""

    def __init__(self, options: BackoffOptions, clock: Callable[[], float]) -> None:
        self._options = options
        self.lockouts = 0
        """Number of lockouts of users and addresses since the start."""
        self.refused = 0
        """Rejected logins since the start; counted by the caller."""
        self._clock = clock
        self._key = os.urandom(16)
        self._records: OrderedDict[bytes, _Record] = OrderedDict()
        self._names: OrderedDict[bytes, float] = OrderedDict()
        """When a login of a user last failed, from any address."""
        self._sites: OrderedDict[bytes, _Record] = OrderedDict()
        """Failures of whole networks; they lock no client out."""
        self._known: OrderedDict[bytes, None] = OrderedDict()
        """Keys of users at addresses from which they logged in, the latest last."""
        self._stored = True

    @property
    def options(self) -> BackoffOptions:
        """The options. A reload may replace them at any time.

        Lockouts stay, unless their limit is disabled: without a limit for addresses no address is
        locked out, and without one for users no user is.
        """
        return self._options

    @options.setter
    def options(self, options: BackoffOptions) -> None:
        self._options = options
        if not options.failures:
            self._records.clear()
            self._sites.clear()
        elif not options.address_failures:
            for key in [key for key in self._records if key.startswith(_ADDRESS)]:
                del self._records[key]

    def __len__(self) -> int:
        return len(self._records)

    def holds(self, address: str, user: str | None) -> bool:
        """Return whether this user is slowed here, not only the whole address."""
        return bool(self._records) and self._in_force(self._user_key(address, user), self._clock())

    def slows(self, address: str, user: str | None) -> bool:
        """Return whether logins of this user from here have to wait: see :meth:`reserve`."""
        return bool(self._records) and self._slowed(address, user) is not None

    def _slowed(self, address: str, user: str | None) -> _Record | None:
        """Return the record that slows the logins of a user at an address, or None."""
        now, key = self._clock(), self._user_key(address, user)
        if self._in_force(key, now):
            return self._records[key]
        where = self._address_key(address)
        if key in self._known or where is None or not self._in_force(where, now):
            return None
        return self._records[where]

    def reserve(self, address: str, user: str | None) -> float | None:
        """Return in how many seconds a slowed login may be verified; None: too many wait."""
        record, now = self._slowed(address, user), self._clock()
        if record is None:
            return 0.0
        wait = max(0.0, record.next_trial - now)
        if wait > _LONGEST_WAIT:
            return None
        record.next_trial = now + wait + self._pause(record)
        record.trials += 1
        return wait

    def give_back(self, address: str, user: str | None) -> None:
        """Take back a reservation whose client has left before its time."""
        record = self._slowed(address, user)
        if record is not None and record.trials:
            record.trials -= 1
            record.next_trial -= self._pause(record)

    def answers_late(self, address: str) -> bool:
        """Return whether failed logins from an address are answered late."""
        return bool(self._records) and self._in_force(self._address_key(address), self._clock())

    def _pause(self, record: _Record) -> float:
        if record.whole_address:
            return _ADDRESS_PAUSE
        most = self.options.duration / max(1, self.options.failures)
        return min(most, _FIRST_PAUSE * 2.0 ** min(16, record.trials // _PAUSE_DOUBLES))

    def rank(self, address: str, user: str | None) -> LoginRank:
        """Return the order in which a login is verified, and admitted if very many wait."""
        key = self._user_key(address, user)
        if key in self._known and not self._in_force(key, self._clock()):
            return LoginRank.KNOWN
        since = self._clock() - self.options.window
        name_failed = self._names.get(self._name_key(user), since) > since
        return LoginRank(LoginRank.NEW + name_failed + self._fails(address, since))

    def _fails(self, address: str, since: float) -> bool:
        """Return whether logins from an address failed since a time.

        An attacker with many addresses uses each only once, so several failures count for the whole
        network.
        """
        key = self._address_key(address)
        record = self._records.get(key) if key is not None else None
        if record is not None and record.since > since:
            return True
        site = self._sites.get(self._site_key(address)) if key else None
        return site is not None and site.since > since and site.failures >= _NETWORK_FAILURES

    def failed(self, address: str, user: str | None) -> tuple[str, ...]:
        """Count a failed login; return the new lockouts: "user", "address" or both."""
        now = self._clock()
        options = self.options
        lockouts = []
        if self._count(self._user_key(address, user), options.failures, now):
            lockouts.append("user")
        if self._count(self._address_key(address), options.address_failures, now):
            lockouts.append("address")
        self.lockouts += len(lockouts)
        if network(address) and options.failures:
            self._add(self._sites, self._site_key(address), now)
        _keep(self._names, self._name_key(user), now, options.remembered)
        return tuple(lockouts)

    def succeeded(self, address: str, user: str | None) -> None:
        """Reset the failures of a user at an address, where it is known from now on.

        Those of the address itself stay: otherwise one account would be enough to guess all others.
        """
        self._names.pop(self._name_key(user), None)
        key = self._user_key(address, user)
        self._records.pop(key, None)
        if key not in self._known:
            self._stored = False
        _keep(self._known, key, None, self._options.remembered)

    def known_users(self) -> str | None:
        """Return the known users and their addresses as keyed hashes; None: as the last time."""
        if self._stored:
            return None
        self._stored = True
        return "".join(f"{line.hex()}\n" for line in (self._key, *self._known))

    def load_known_users(self, text: str) -> None:
        """Load what :meth:`known_users` returned, before the first login.

        Raises ValueError if it is invalid.
        """
        key, *key_texts = map(bytes.fromhex, text.split())
        if not 0 < len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
            raise ValueError("the key has a wrong size")
        self._key, self._known = key, OrderedDict.fromkeys(key_texts[-self._options.remembered :])

    def _in_force(self, key: bytes | None, now: float) -> bool:
        record = self._records.get(key) if key is not None else None
        return record is not None and now < record.until

    def _count(self, key: bytes | None, most: int, now: float) -> bool:
        if key is None or not most:
            return False
        if self._in_force(key, now):
            return False
        record = self._add(self._records, key, now)
        if record.failures < most:
            return False
        record.until = now + self.options.duration
        return True

    def _add(self, records: OrderedDict[bytes, _Record], key: bytes, now: float) -> _Record:
        """Add a failure to a record, or to a new one after a lockout or the time window."""
        record = records.get(key)
        if record is None or record.until or now - record.since >= self.options.window:
            record = _Record(now, whole_address=key.startswith(_ADDRESS))
        record.failures += 1
        _keep(records, key, record, self.options.remembered)
        return record

    def _user_key(self, address: str, user: str | None) -> bytes:
        # A name may have 64 KiB; its digest is short.
        name = "\0" if user is None else user
        return self._digest(_USER, f"{network(address) or address}\n{name}")

    def _name_key(self, user: str | None) -> bytes:
        return self._digest(_NAME, "\0" if user is None else user)

    def _address_key(self, address: str) -> bytes | None:
        where = network(address)
        return self._digest(_ADDRESS, where) if where else None

    def _site_key(self, address: str) -> bytes:
        return self._digest(_SITE, network_key(address))

    def _digest(self, kind: bytes, text: str) -> bytes:
        data = text.encode("utf-8", "surrogatepass")
        return kind + hashlib.blake2b(data, key=self._key, digest_size=16).digest()


def _keep(entries: OrderedDict[bytes, V], key: bytes, value: V, most: int) -> None:
    """Set an entry, and drop those that were set least recently if there are too many."""
    entries[key] = value
    entries.move_to_end(key)
    while len(entries) > most:
        entries.popitem(last=False)


@lru_cache(maxsize=4096)
def network(address: str) -> str:
    """Return the network of one customer: an IPv4 address, or the /64 of an IPv6 address.

    Empty for anything else, such as a Unix socket, where all clients have the same address.
    """
    try:
        ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    return network_of(address)


@lru_cache(maxsize=4096)
def network_key(address: str) -> str:
    """Return the network that one attacker may own: an IPv4 /24, or an IPv6 /48.

    Anything that is not an address counts as a separate network.
    """
    where = network(address)
    return where.rpartition(".")[0] if "." in where else networks_of(address)[-1]
