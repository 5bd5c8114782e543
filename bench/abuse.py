"""Attacks a broker while well-behaved clients use it, and measures the effect on them and the host.

``python bench/abuse.py`` runs the attacks of ATTACKS one after the other, ``python bench/abuse.py
filter-bombs newcomers`` two of them; each has a fresh broker and takes about a minute at most.
``--nice`` runs the broker under nice(1), ``--busy`` a busy loop for each processor beside it: a
host that starves it. For each attack the good clients run for a while by themselves, then beside
the attack, then by themselves again. The table at the end has their latencies, how the broker
answers to /healthz, PINGREQ and a login, its memory, the longest turn of its event loop, and what
its operator sees. The exit code is 1 when something is not as it should be.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run by its path

from bench.attacks.attacks import ATTACKS, Attack, Plan
from bench.attacks.observer import Observer
from bench.attacks.outcomes import faults, table
from bench.attacks.users import PASSWORD, USER, add_user
from bench.brokers.broker_processes import (
    ROOT,
    BenchError,
    Foldmq,
    Running,
    free_port,
    logged,
    running,
)
from bench.measuring.load_generator import compile_loader
from bench.measuring.progress import say
from bench.processes.programs import Helper, busy_host, helper

sys.path.append(str(ROOT / "tests"))
from harness.certs import Authority  # type: ignore[import-not-found]

SHOWN = ("--user", USER, "--password", PASSWORD)


@contextlib.contextmanager
def broker_of(attack: Attack, plan: Plan, work: Path) -> Iterator[Running]:
    """Run a broker with the settings of an attack, and store its ports in ``plan``."""
    passwords = work / "passwords"
    add_user(passwords)
    pair = Authority(work / "certificates").server()
    plan.tls_port = free_port()

    class Configured(Foldmq):
        @classmethod
        def command(cls, port: int, work: Path) -> list[str]:
            config = work / "foldmq.toml"
            places = {"passwords": passwords, "port": port, "tls_port": plan.tls_port, "pair": pair}
            config.write_text(attack.settings.format(**places))
            command = super().command(port, work)
            at = command.index("--listen")
            nice = ["nice", "-n", str(plan.nice)] if plan.nice else []
            return [*nice, *command[:at], *command[at + 2 :], "--config", str(config)]

    with running(Configured, work) as broker:
        plan.port = broker.port
        yield broker


def measure(attack: Attack, plan: Plan, work: Path) -> dict[str, Any]:
    """Run one attack; return the phases, the losses, memory, and the observer's findings."""
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(broker_of(attack, plan, work))
        ready = logged(broker.log, "ready")
        if ready is None:
            raise BenchError(f"foldmq does not report that it is ready in {broker.log}")
        metrics = urlsplit(ready["metrics"]).netloc
        if attack.idle:
            crowd = ("idle", "--count", attack.idle, *SHOWN)
            stack.enter_context(helper("attacks.attackers", broker.port, *crowd)).receive()
        flow = ("--clients", attack.clients, "--rate", plan.rate or attack.rate)
        good = stack.enter_context(
            helper("attacks.wellbehaved_clients", broker.port, *flow, *SHOWN)
        )
        good.receive()
        probes = stack.enter_context(helper("attacks.probes", broker.port, metrics, *SHOWN))
        if plan.busy:
            stack.enter_context(busy_host())
        observer = stack.enter_context(Observer(broker, metrics))
        result = _phases(attack, plan, good, probes, observer)
        result["operator"] = observer.operator()
        result["starved"] = plan.busy or plan.nice > 0
    return result


def _phases(
    attack: Attack, plan: Plan, good: Helper, probes: Helper, observer: Observer
) -> dict[str, Any]:
    """Run the phases, and notify the helpers of each and the observer of the attack."""
    result: dict[str, Any] = {}

    def next_phase(name: str, ended: str | None = None) -> None:
        good.send(f"phase {name}")
        probes.send(f"phase {name}")
        clients, answers = good.receive(), probes.receive()
        if ended is not None:
            result[ended] = answers | clients

    next_phase("warm-up")
    time.sleep(plan.warm_up)
    next_phase("before")
    time.sleep(plan.before)
    result["memory_before"] = observer.memory()
    result["descriptors_before"] = observer.descriptors()
    next_phase("during", "before")
    observer.attack_begins()
    with Helper(attack.command(plan, SHOWN)) as attackers:
        time.sleep(plan.during)
        result["descriptors_most"] = observer.descriptors()
        next_phase("between", "during")
        attackers.send("end")
        result["attack"] = attackers.receive()
    result |= observer.attack_ended()
    max_wait = attack.come_back if plan.come_back is None else plan.come_back
    deadline = time.monotonic() + max_wait
    while observer.memory() > 1.2 * result["memory_before"] and time.monotonic() < deadline:
        time.sleep(0.5)
    result["memory_after"] = observer.memory()
    result["descriptors_after"] = observer.descriptors()
    next_phase("after")
    time.sleep(plan.before)
    good.send("end")
    probes.send("end")
    result["after"] = probes.receive() | good.receive()
    result["end"] = good.receive()
    return result


def main() -> int:
    """Run from the command line; the exit code is 1 if a check failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = ", ".join(ATTACKS)
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"of {known}; default: all")
    parser.add_argument(
        "--nice", type=int, nargs="?", const=10, default=0, help="broker's priority"
    )
    parser.add_argument("--busy", action="store_true", help="a busy loop for each processor")
    parser.add_argument(
        "--rate", type=float, help="messages per second of the well-behaved clients"
    )
    parser.add_argument(
        "--count", type=int, default=5000, help="number of connections of the crowd"
    )
    parser.add_argument(
        "--pause", type=float, default=5.0, help="seconds from a close to the next connection"
    )
    parser.add_argument("--only", help="only this kind of crowd client")
    parser.add_argument("--before", type=float, default=8.0, help="seconds without the attack")
    parser.add_argument("--during", type=float, default=20.0, help="seconds with it")
    parser.add_argument("--come-back", type=float, help="seconds memory has to")
    parser.add_argument("--dir", type=Path, help="where the broker's data is")
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    parser.add_argument(
        "--keep-log", type=Path, help="copy the log of the last broker to this file"
    )
    options = parser.parse_args()
    unknown = set(options.attacks) - set(ATTACKS)
    if unknown:
        parser.error(f"there is no attack {', '.join(sorted(unknown))}; there are {known}")
    if options.dir is not None:
        options.dir.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, Any]] = {}
    for name in options.attacks or ATTACKS:
        say(f"{name}: {ATTACKS[name].title}")
        with tempfile.TemporaryDirectory(prefix="abuse-", dir=options.dir) as work:
            try:
                results[name] = measure(ATTACKS[name], Plan.of(options), Path(work))
            finally:
                if options.keep_log is not None:
                    options.keep_log.write_bytes((Path(work) / "foldmq.log").read_bytes())
        if options.json is not None:
            options.json.write_text(json.dumps(results, indent=1))
    print(table(results))
    found = [f"{name}: {fault}" for name in results for fault in faults(name, results[name])]
    for fault in found:
        print(f"FAULT: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    try:
        compile_loader()
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"abuse: {error}")
