"""Loads that every broker runs: those of devices, and those in bulk."""

from collections.abc import Mapping

from bench.measuring.metrics import BULK, DEVICES, Load, Metric, Phase, Result, Target, value


def _latency(percentile: str, *targets: Target, compared: bool = True) -> Metric:
    def read(result: Result) -> float | None:
        histogram = result.get("latency_us")
        return None if histogram is None else histogram[percentile] / 1000

    phase = Phase() if percentile == "p50" else None
    return Metric(percentile, "ms", read, targets, less=True, compared=compared, phase=phase)


def _received(*targets: Target) -> tuple[Metric, ...]:
    return (Metric("delivered", "/s", value("recv_per_s"), targets, phase=Phase()),)


def _cost(result: Result) -> float | None:
    """Return microseconds of processor time for each message, of the broker and what it started."""
    cost = Phase().cost(result)
    return None if cost is None else sum(cost)


def _at_rate(
    name: str,
    rate: int,
    cost_us: int,
    p50_ms: float,
    settings: Mapping[str, str] | None = None,
    log_bytes: tuple[Target, ...] = (),
) -> Load:
    """Return a load of 50 publishers, each with a subscriber of its own, with goals."""
    return Load(
        name,
        DEVICES,
        f"pubsub -p 50 -s 50 -t 50 --topic-by-pub -q 1 -w 1000 -T 300 -r {rate}",
        20 * rate,
        (
            Metric("cost", "us each", _cost, (Target(cost_us, at_most=True, aim=True),), less=True,
                   phase=Phase()),
            _latency("p50", Target(p50_ms, at_most=True, aim=True), compared=False),
            _latency("p99", compared=False),
            Metric("log", "bytes each", value("log_bytes"), log_bytes, less=True),
            Metric("written", "KiB each", value("written_kib"), less=True, compared=False),
        ),
        settings=settings or {},
    )  # fmt: skip


def _aim(factor: float) -> Target:
    return Target(factor, "mosquitto", aim=True)


_PAIRS = "pubsub -p 500 -s 500 -t 500 --topic-by-pub -T 300"
_FAN_IN = "pubsub -p 1000 -s 1 -t 1000 --topic-by-pub -f -q 1 -w 1 -T 300"
_4X4 = "pubsub -p 4 -s 4 -T 300"

_OF_DEVICES = (
    Load("pairs", DEVICES, f"{_PAIRS} -q 1 -w 1", 60_000, _received(_aim(0.65)), {"nats": 3_000}),
    Load(
        "pairs2000",
        DEVICES,
        "pubsub -p 2000 -s 2000 -t 2000 --topic-by-pub -T 300 -q 1 -w 1",
        300_000,
        (*_received(), _latency("p99", compared=False)),
        {"nats": 3_000},
    ),
    Load("pairs2", DEVICES, f"{_PAIRS} -q 2 -w 1", 40_000, _received(_aim(0.55)), {"nats": 2_000}),
    Load(
        "pairs-retain",
        DEVICES,
        f"{_PAIRS} -q 1 -w 1 --retain",
        60_000,
        _received(),
        {"nats": 3_000},
    ),
    Load("pairs0", DEVICES, f"{_PAIRS} -q 0 -W 1000", 400_000, _received(_aim(1.2))),
    Load("fanin", DEVICES, _FAN_IN, 80_000, _received(_aim(0.85)), {"nats": 3_000}),
    Load(
        "fanin10k",
        DEVICES,
        f"{_FAN_IN} -r 10000",
        100_000,
        (_latency("p50", Target(3, at_most=True, aim=True)), _latency("p99", compared=False)),
        {"nats": 10_000},
    ),
    _at_rate("rate50", 50, 1200, 3),
    _at_rate("rate200", 200, 650, 3),
    _at_rate("rate200-sd", 200, 420, 12, {"FOLDMQ_COMMIT_DELAY": "10ms"}),
    _at_rate("rate1000", 1000, 190, 3),
    _at_rate("bytes2000", 2000, 130, 3, log_bytes=(Target(200, at_most=True, aim=True),)),
    _at_rate("rate3000", 3000, 100, 3),
    Load(
        "pub",
        DEVICES,
        "pubsub -p 1000 -s 0 -t 1000 --topic-by-pub -q 1 -w 1 -T 300",
        120_000,
        (Metric("published", "/s", value("pub_per_s"), (_aim(0.65),), phase=Phase(per="acked")),),
        {"nats": 3_000},
    ),
    Load(
        "cmd",
        DEVICES,
        "pubsub -p 1 -s 1000 -t 1000 -q 1 -w 100 -T 300",
        60_000,
        _received(_aim(0.8)),
        {"nats": 3_000},
    ),
    Load(
        "varied",
        DEVICES,
        "pubsub -p 20 -s 20 -t 1000 -q 1 -w 20 -T 300 -i 30",
        120_000,
        _received(_aim(1.1)),
        {"nats": 5_000},
    ),
    Load(
        "window10",
        DEVICES,
        f"{_4X4} -t 40 -q 2 -w 10",
        60_000,
        _received(_aim(0.9)),
        {"nats": 4_000},
    ),
    Load(
        "conn",
        DEVICES,
        "conn -q 1 --sub -w 400 --hold 5 -T 120",
        10_000,
        (
            Metric("accepted", "", value("connected"), (Target(10_000),)),
            Metric(
                "connected", "/s", value("conn_per_s"), (_aim(0.6),), phase=Phase(per="connected")
            ),
            Metric(
                "memory",
                "KiB each",
                value("kib_per_conn"),
                (Target(12, at_most=True), Target(7, at_most=True, aim=True)),
                less=True,
            ),
        ),
    ),
    Load(
        "retain",
        DEVICES,
        "retain -q 1 -p 4 -w 200 -s 5 -T 300",
        50_000,
        (
            Metric("set", "/s", value("set_per_s"), (_aim(0.8),), phase=Phase("set_", "sent")),
            Metric("replayed", "/s", value("replay_per_s"), (_aim(1.2),), phase=Phase("replay_")),
        ),
        {"nats": 10_000},
    ),
    Load(
        "offline",
        DEVICES,
        "offline -q 1 -p 4 -w 200 -s 10 -T 300",
        100_000,
        (
            Metric(
                "queued", "/s", value("publish_per_s"), (_aim(1),), phase=Phase("publish_", "acked")
            ),
            Metric(
                "drained", "/s", value("drain_per_s"), (Target(100_000),), phase=Phase("drain_")
            ),
        ),
        {"nats": 20_000},
    ),
    Load(
        "16k",
        DEVICES,
        f"{_4X4} -t 40 -l 16384 -q 1 -w 20",
        30_000,
        _received(_aim(0.4)),
        {"nats": 3_000},
    ),
    Load(
        "1m",
        DEVICES,
        "pubsub -p 2 -s 2 -t 2 -l 1048576 -q 1 -w 2 -T 300",
        600,
        _received(_aim(0.2)),
        {"nats": 200},
    ),
    Load(
        "one",
        DEVICES,
        "pubsub -q 1 -w 1 -T 300",
        4_000,
        (_latency("p50", Target(0.8, at_most=True, aim=True)), _latency("p99", compared=False)),
    ),
)
"""Loads of devices: one packet at a time from many clients, or on many topics."""

_IN_BULK = (
    Load(
        "many0",
        BULK,
        f"{_4X4} -t 40 -q 0 -W 10000",
        4_000_000,
        _received(_aim(5)),
        {"mosquitto": 400_000},
    ),
    Load(
        "many1",
        BULK,
        f"{_4X4} -t 40 -q 1 -w 200",
        400_000,
        _received(_aim(2.5)),
        {"mosquitto": 200_000, "nats": 10_000},
    ),
    Load(
        "many2",
        BULK,
        f"{_4X4} -t 40 -q 2 -w 200",
        200_000,
        _received(_aim(3.5)),
        {"mosquitto": 100_000, "nats": 8_000},
    ),
    Load(
        "qos0",
        BULK,
        f"{_4X4} -q 0 -W 10000",
        8_000_000,
        _received(Target(4, "mosquitto")),
        {"mosquitto": 600_000},
    ),
    Load(
        "qos1",
        BULK,
        f"{_4X4} -q 1 -w 200",
        1_000_000,
        _received(Target(2, "mosquitto"), Target(30, "nats")),
        {"mosquitto": 300_000, "nats": 20_000},
    ),
    Load(
        "qos2",
        BULK,
        f"{_4X4} -q 2 -w 200",
        300_000,
        _received(Target(1.5, "mosquitto")),
        {"mosquitto": 120_000, "nats": 8_000},
    ),
    Load(
        "fan0",
        BULK,
        "pubsub -f -p 1 -s 50 -q 0 -W 10000 -T 300",
        1_000_000,
        _received(Target(2, "mosquitto")),
        {"mosquitto": 40_000, "nats": 100_000},
    ),
    Load(
        "fan1",
        BULK,
        "pubsub -f -p 1 -s 50 -q 1 -w 200 -T 300",
        20_000,
        _received(Target(2, "mosquitto")),
        {"mosquitto": 10_000, "nats": 3_000},
    ),
    Load(
        "latency",
        BULK,
        "pubsub -q 1 -r 5000 -T 120",
        50_000,
        (
            _latency("p50", Target(1.5, at_most=True)),
            _latency("p99", Target(6, at_most=True), compared=False),
        ),
    ),
)
"""Bulk loads: full windows, few topics."""

LOADS = (*_OF_DEVICES, *_IN_BULK)
