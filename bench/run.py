"""Compares foldmq with Mosquitto, NATS Server and its own last release: ``make bench``.

Every run has a freshly started broker, and the brokers take turns, so that a machine that gets
slower or faster meanwhile does so for all of them. The medians of the runs are shown, and the
medians of the ratios of runs of one round. A row that is worse by more than 5 % than that of the
release fails the run.
"""

import argparse
import resource
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run by its path

from bench.brokers.broker_processes import BROKERS, ROOT, BenchError, Broker, Foldmq, Released
from bench.comparison import optimised_python, released_version, tables
from bench.comparison.rounds import failed, measure, missed, worse
from bench.loads.api_loads import API_LOADS
from bench.loads.bridge_loads import BRIDGE_LOADS
from bench.loads.compared_loads import LOADS
from bench.loads.idle_loads import IDLE_LOADS
from bench.loads.inspection_loads import INSPECTION_LOADS
from bench.loads.mqtt5_loads import MQTT5_LOADS
from bench.loads.outbox_loads import OUTBOX_LOADS
from bench.loads.recovery_loads import RECOVERY_LOADS
from bench.loads.replay_loads import REPLAY_LOADS
from bench.loads.spark_loads import SPARK_LOADS
from bench.measuring.load_generator import compile_loader
from bench.measuring.metrics import BULK, DEVICES, MQTT5
from bench.measuring.progress import say
from bench.measuring.rows import Row

PAGE = ROOT / "bench" / "results.md"
HISTORY = ROOT / "bench" / "history.jsonl"
NOTHING = "nothing"
OTHERS = [broker.name for broker in BROKERS[1:]]
OWN_LOADS = (
    IDLE_LOADS
    | RECOVERY_LOADS
    | INSPECTION_LOADS
    | BRIDGE_LOADS
    | SPARK_LOADS
    | REPLAY_LOADS
    | API_LOADS
    | OUTBOX_LOADS
)
ALONE = MQTT5_LOADS | OWN_LOADS
"""Loads that only foldmq has, and the function that measures each."""
NAMES = {
    DEVICES: [load.name for load in LOADS if load.group == DEVICES],
    BULK: [load.name for load in LOADS if load.group == BULK],
    MQTT5: list(MQTT5_LOADS),
    tables.OWN: list(OWN_LOADS),
}


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, prog="make bench ARGS='...'")
    parser.add_argument(
        "--rows",
        type=chosen_rows,
        default=chosen_rows(",".join(NAMES)),
        metavar="A,B",
        help="only these loads, or groups of them; "
        + "; ".join(f"{group}: {', '.join(names)}" for group, names in NAMES.items()),
    )
    parser.add_argument(
        "--beside",
        type=chosen_others,
        default=OTHERS,
        metavar="A,B",
        help=f"compare with these only: {', '.join(OTHERS)}, or {NOTHING}",
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (3)")
    parser.add_argument(
        "--released",
        metavar="WHAT",
        help="the commit or directory that counts as last release",
    )
    parser.add_argument("--any-python", action="store_true", help="compare on any build of Python")
    parser.add_argument("--sessions", type=int, help="sessions of the load passive (100000)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, no targets")
    parser.add_argument(
        "--write", action="store_true", help="write bench/results.md and bench/history.jsonl"
    )
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="where data is kept")
    options = parser.parse_args(arguments)
    if options.sessions is not None and options.sessions < 1:
        parser.error("--sessions must be at least 1")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.write and (problem := _not_to_be_written(options)):
        parser.error(problem)
    return options


def _not_to_be_written(options: argparse.Namespace) -> str | None:
    if options.quick:
        return "--write needs a full run, not --quick"
    if _compares(options) and set(options.beside) != set(OTHERS):
        return "--write needs all brokers, without --beside"
    if not any(set(names) <= set(options.rows) for names in NAMES.values()):
        return f"--write needs all rows of a group: --rows {' or '.join(NAMES)}"
    return None


def _compares(options: argparse.Namespace) -> bool:
    """Return whether any of the chosen rows also runs other brokers."""
    return not set(options.rows).isdisjoint(NAMES[DEVICES] + NAMES[BULK])


def chosen_rows(text: str) -> list[str]:
    """Return the loads that a list of loads and groups names; raises ArgumentTypeError."""
    found: list[str] = []
    known = {name for names in NAMES.values() for name in names}
    for word in text.split(","):
        if word not in known and word not in NAMES:
            raise argparse.ArgumentTypeError(
                f"there is no row {word!r}; rows are {', '.join([*NAMES, *sorted(known)])}"
            )
        found += [name for name in NAMES.get(word, [word]) if name not in found]
    return found


def chosen_others(text: str) -> list[str]:
    """Return the brokers that a list names; raises ArgumentTypeError."""
    names = [] if text == NOTHING else text.split(",")
    for name in names:
        if name not in OTHERS:
            raise argparse.ArgumentTypeError(
                f"there is no broker {name!r}; there are {', '.join(OTHERS)}, or {NOTHING}"
            )
    return names


def chosen_brokers(options: argparse.Namespace) -> list[Broker]:
    """Return the brokers to run; one that is not installed is left out and named."""
    chosen: list[Broker] = [Foldmq]
    for broker in BROKERS[1:]:
        if broker.name in options.beside and broker.installed():
            chosen.append(broker)
        elif broker.name in options.beside:
            say(f"{broker.title} is not installed: left out")
    return chosen


def run(options: argparse.Namespace) -> int:
    """Run the chosen loads, print the tables, and return 1 if the run fails."""
    compile_loader()
    options.dir.mkdir(parents=True, exist_ok=True)
    optimised_python.use(options.dir)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    brokers = chosen_brokers(options)
    refusal = optimised_python.refusal(compared=len(brokers) > 1, told_to=options.any_python)
    if refusal is not None:
        raise BenchError(refusal)
    if options.write and _compares(options) and len(brokers) < len(BROKERS):
        raise BenchError("--write needs all brokers (on Debian: apt install mosquitto)")
    with (
        released_version.checked_out(options.released, options.dir)
        if Released in brokers
        else nullcontext()
    ):
        return _run(options, brokers)


def _run(options: argparse.Namespace, brokers: Sequence[Broker]) -> int:
    where = tables.machine(brokers, options.dir, options.rounds)
    rows = [
        row
        for load in LOADS
        if load.name in options.rows
        for row in measure(load, brokers, options)
    ]
    for name, measure_own in ALONE.items():
        if name in options.rows:
            rows += measure_own(options)
    shown = {group: tables.tables(group, rows, brokers) for group in tables.GROUPS}
    print("\n\n".join([*filter(None, shown.values()), where]))
    if options.write:
        _write(options, rows, brokers, shown, where)
    return verdict(rows, judged=not options.quick)


def verdict(rows: Sequence[Row], *, judged: bool) -> int:
    """Print failed expectations; return 1 if they fail the run, else 0."""
    if not judged:
        return 0
    faults = {
        "failed": failed(rows),
        "worse than the release": worse(rows),
        "target not met": missed(rows, aims=False),
    }
    for what, lines in {**faults, "goal not met yet": missed(rows, aims=True)}.items():
        for line in lines:
            say(f"{what}: {line}")
    return 1 if any(faults.values()) else 0


def _write(
    options: argparse.Namespace,
    rows: Sequence[Row],
    brokers: Sequence[Broker],
    shown: dict[str, str],
    where: str,
) -> None:
    """Replace the tables of whole groups, draw the chart, add the values to the history."""
    text = PAGE.read_text("utf-8")
    for group, names in NAMES.items():
        if set(names) <= set(options.rows):
            text = tables.replaced(text, group, f"{shown[group]}\n\n{where}")
    PAGE.write_text(text, "utf-8")
    subprocess.run([sys.executable, ROOT / "tools" / "benchmark_chart.py"], check=True)
    with HISTORY.open("a", encoding="utf-8") as history:
        history.write(tables.history_line(rows, brokers, options.rounds))


def main() -> None:
    try:
        sys.exit(run(parse_arguments()))
    except BenchError as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
