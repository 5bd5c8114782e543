"""One Spark job on a log, timed from the start of its session, for spark_loads.py."""

import argparse
import json
import time
from typing import Any

from spark.jobs.pipeline import audit
from spark.report.traffic_stats import measure_traffic
from spark.runtime.session import running_session
from spark.tables.discovery import find_logs
from spark.tables.log import Log
from spark.tables.options import SourceOptions

MEMORY = "2g"
"""Heap of the JVM; the Python workers need memory in addition."""


def count_events(log: Log) -> dict[str, Any]:
    """Read every event with its JSON and its payload, and count them."""
    return {"events": log.events().count()}


def count_entries(log: Log) -> dict[str, Any]:
    """Read every entry with all columns, and count them."""
    return {"events": log.entries().count()}


def count_fields(log: Log) -> dict[str, Any]:
    """Read every entry with session, event, time and the fields of its message, and count them."""
    columns = ("node", "position", "time", "type", "session", "topic", "qos", "packet_id", "ref")
    return {"events": log.entries(*columns).count()}


def audit_all(log: Log) -> dict[str, Any]:
    """Audit the log."""
    outcome = audit(log)
    found = {"events": sum(node.events for node in outcome.nodes)}
    if not outcome.kept:
        broken = [rule.rule for rule in outcome.rules if rule.violations]
        return {**found, "problem": f"guarantees broken: {', '.join(broken)}"}
    return found


def count_traffic(log: Log) -> dict[str, Any]:
    """Count the traffic by topic, as ``foldmq spark stats`` does."""
    found = measure_traffic(log)
    groups = found.groups.collect()
    counted = sum(row.published + row.delivered for row in groups)
    found.close()
    return {"groups": len(groups), "messages": counted}


JOBS = {
    "count": count_events,
    "entries": count_entries,
    "fields": count_fields,
    "audit": audit_all,
    "stats": count_traffic,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--nats", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--until", help="last record")
    options = parser.parse_args()
    started = time.monotonic()
    given = {"nats": options.nats, "stream": options.stream}
    log_bytes = sum(stored.size for stored in find_logs(SourceOptions.read(given)))
    with running_session(options.master, MEMORY, log_bytes=log_bytes) as session:
        session.range(1).count()  # the first job starts the workers that the others use
        began = time.monotonic()
        log = Log(session, given)
        if options.until:
            log = log.until(options.until)
        result = JOBS[options.job](log)
        seconds = time.monotonic() - began
    print(json.dumps({**result, "seconds": seconds, "start": began - started}))


if __name__ == "__main__":
    main()
