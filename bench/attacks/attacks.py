"""Attacks of abuse.py: settings of the broker, well-behaved clients, and the attackers."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from bench.measuring.load_generator import LOADER
from bench.processes.programs import program

_USERS = """
password_file = "{passwords}"

[[listen]]
address = "127.0.0.1:{port}"
"""
"""The default limits."""
_GUARDED = """
password_file = "{passwords}"
connect_timeout = "5s"
max_packet_size = "64 KiB"
max_subscriptions = 100
max_topic_levels = 32
max_wildcards = 8
publish_rate_per_client = 50
publish_bytes_per_client = "16 KiB"
publish_rate_per_address = 2000
publish_bytes_per_address = "1 MiB"
connection_rate_per_address = 100
max_connections_per_address = 300
throttle_timeout = "10s"
slow_reader_time = "10s"
max_unread_bytes = "64 MiB"
flapping_connects = 10
max_faults_per_address = 25

[[listen]]
address = "127.0.0.1:{port}"

[[listen]]
address = "tls://127.0.0.1:{tls_port}"
tls_cert = "{pair.certificate}"
tls_key = "{pair.key}"
"""
"""Limits for an untrusted network: several times what the well-behaved clients need."""


@dataclass
class Plan:
    """The length of each phase, the state of the host, and the broker's addresses."""

    before: float
    during: float
    come_back: float | None
    nice: int
    busy: bool
    rate: float | None
    count: int
    pause: float
    only: str | None
    warm_up: float = 4.0
    port: int = 0
    tls_port: int = 0

    @classmethod
    def of(cls, options: argparse.Namespace) -> Self:
        """Return the plan for the arguments of the command line."""
        names = cls.__dataclass_fields__.keys() & vars(options).keys()
        return cls(**{name: getattr(options, name) for name in names})


Command = Callable[[Plan, Sequence[str]], list[str]]
"""Returns the command of the attackers; the texts are the credentials."""


@dataclass(frozen=True)
class Attack:
    """An attack, and the well-behaved clients during it."""

    title: str
    command: Command
    settings: str = _USERS
    clients: int = 100
    rate: float = 500
    """Messages per second of all well-behaved clients together."""
    idle: int = 0
    come_back: float = 10.0
    """Seconds for the broker's memory to go back, unless the plan has its own."""


def _attackers(attack: str, count: int = 1) -> Command:
    return lambda plan, shown: program(
        "attacks.attackers", plan.port, attack, "--count", count, *shown
    )


def _many_clients(plan: Plan, shown: Sequence[str]) -> list[str]:
    only = ("--only", plan.only) if plan.only else ()
    crowd = ("--tls-port", plan.tls_port, "--count", plan.count, "--pause", plan.pause)
    return program("attacks.abusers", plan.port, *crowd, *only, *shown)


def _outrun(plan: Plan, shown: Sequence[str]) -> list[str]:
    _, user, _, password = shown
    load = ("pubsub", "-p", 8, "-s", 30, "-f", "-t", 8, "-q", 1, "-w", 200, "-n", 20_000_000)
    until = ("-T", plan.during, "-i", plan.during, "-P", plan.port, "-u", user, "-x", password)
    return [str(LOADER), *map(str, (*load, *until))]


ATTACKS: dict[str, Attack] = {
    "filter-bombs": Attack(
        "8,192 filters that overlap, and bursts of 3,000 publications that match them",
        _attackers("filter-bombs"),
    ),
    "filter-bombs-5": Attack(
        "the same with five such sessions", _attackers("filter-bombs", count=5)
    ),
    "filter-churn": Attack(
        "SUBSCRIBE and UNSUBSCRIBE of 9,000 filters in a loop", _attackers("filter-churn")
    ),
    "large-subscribe": Attack(
        "SUBSCRIBE packets of 100,000 filters", _attackers("large-subscribe")
    ),
    "small-packets": Attack(
        "small packets without a pause: QoS 2 released at once, SUBSCRIBE and UNSUBSCRIBE",
        _attackers("small-packets"),
    ),
    "newcomers": Attack(
        "570 connections a second: garbage, flapping, wrong logins",
        _attackers("newcomers", count=570),
    ),
    "networks": Attack(
        "the same from addresses in 400 networks", _attackers("networks", count=570)
    ),
    "credentials": Attack(
        "four clients with credentials beside 3,000 idle ones: floods at QoS 0 and 1, #, churn",
        _attackers("credentials"),
        clients=200,
        idle=3000,
    ),
    "outrun": Attack(
        "8 publishers, 200 messages each on their way, to 30 subscribers of everything",
        _outrun,
        clients=50,
        rate=200,
    ),
    "crowd": Attack(
        "5,000 connections that misbehave in ten ways",
        _many_clients,
        settings=_GUARDED,
        rate=1000,
        come_back=60.0,
    ),
}
