"""``foldmq log verify``: checks that records are complete, in order, intact and readable."""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from cli.common import progress, text
from cli.logsource import SourceFlags, open_node_logs, open_source
from eventstore.format import sequence_of
from eventstore.reading import LogSource
from projections.audit import Violation
from projections.verification import ExchangeAudit, LogVerifier, audit_exchange, verify_log

_MOST_PROBLEMS = 100


@dataclass(slots=True)
class _Problems:
    """Prints problems as they are found, or keeps the first ones for JSON."""

    prefix: str
    as_json: bool
    count: int = 0
    listed: list[dict[str, object]] = field(default_factory=list)

    def __call__(self, sequence: int, what: str) -> None:
        self.count += 1
        if self.as_json:
            if self.count <= _MOST_PROBLEMS:
                self.listed.append({"record": sequence, "what": what})
        elif self.count <= _MOST_PROBLEMS:
            sys.stdout.write(f"{self.prefix}record {sequence} {what}\n")
        elif self.count == _MOST_PROBLEMS + 1:
            sys.stdout.write(f"{self.prefix}further problems are only counted\n")

    def found(self, violation: Violation) -> None:
        """Print a violation of a rule of the audit."""
        self(sequence_of(violation.at), violation.what)

    def fields(self) -> dict[str, object]:
        """Return the fields of a JSON object."""
        return {"problems": self.count, "listed": self.listed}


def run_verify_log(flags: SourceFlags, *, as_json: bool = False) -> bool:
    """Check the log, print problems and a summary; return whether it is intact.

    Where a node has several logs, and none is named, check all of them, and what each took.
    """
    return asyncio.run(_run(flags, as_json=as_json))


async def _run(flags: SourceFlags, *, as_json: bool) -> bool:
    if flags.node is None:
        async with open_node_logs(flags) as logs:
            if logs:
                return await _verify_all(logs, as_json=as_json)
    async with open_source(flags) as source:
        return await _verify(source, as_json=as_json)


async def _verify(source: LogSource, log: str = "", *, as_json: bool) -> bool:
    """Check a log and print the result; ``log`` is its name if there are several."""
    problems = _Problems(f"log {log}: " if log else "", as_json=as_json)
    verifier = await verify_log(source, problems, progress)
    if as_json:
        times = {
            key: None if value is None else text.iso(value)
            for key, value in (("from", verifier.first_ms), ("to", verifier.last_ms))
        }
        found = {"records": verifier.records, "entries": verifier.entries, **times}
        found["first_record"] = source.begin
        rest = {"void_parts": verifier.void, **problems.fields()}
        sys.stdout.write(text.json_line({**({"log": log} if log else {}), **found, **rest}) + "\n")
    else:
        if source.cut is not None:
            sys.stdout.write(problems.prefix + source.beginning() + "\n")
        summary = verification_summary(verifier, problems.count, source.where)
        sys.stdout.write(f"{problems.prefix}{summary}\n")
    return not problems.count


async def _verify_all(logs: Mapping[str, LogSource], *, as_json: bool) -> bool:
    """Check the logs of a node, and whether each took what its sessions subscribed to."""
    intact = [await _verify(source, log, as_json=as_json) for log, source in logs.items()]
    if not all(intact):
        if not as_json:
            sys.stdout.write("the exchange between the logs is not checked: a log is damaged\n")
        return False
    for log in logs:
        problems = _Problems(f"log {log}: ", as_json=as_json)
        found = await audit_exchange(log, logs, problems.found, progress)
        intact.append(not problems.count)
        if as_json:
            ends = [one._asdict() for one in found.ends]
            line = {"exchange": log, "due": found.due, "followed": ends, **problems.fields()}
            sys.stdout.write(text.json_line(line) + "\n")
        else:
            sys.stdout.write(f"{problems.prefix}{_exchange_summary(found, problems.count)}\n")
    return all(intact)


def _exchange_summary(found: ExchangeAudit, problems: int) -> str:
    """Return what an audit of the exchange found, in a line."""
    due = f"{text.count_of(found.due, 'message')} of other logs had to be taken"
    taken = text.count_of(problems, "problem") if problems else "all there"
    ends = ", ".join(
        f"{text.name(one.log)} up to record {one.through:,} of {one.last:,}" for one in found.ends
    )
    return f"{due}, {taken}; it has taken {ends}"


def verification_summary(verifier: LogVerifier, problems: int, where: str) -> str:
    """Return the summary line: the records read, and whether the log is intact."""
    read = (
        f"{text.count_of(verifier.records, 'record')}, {verifier.entries:,} "
        f"{'entry' if verifier.entries == 1 else 'entries'}"
    )
    if verifier.first_ms is not None and verifier.last_ms is not None:
        read += f", from {text.clock(verifier.first_ms)} to {text.clock(verifier.last_ms)}"
    if verifier.void:
        read += f"; {text.count_of(verifier.void, 'part')} of turns that were not completed"
    if problems:
        return f"damaged: {text.count_of(problems, 'problem')} in the log of {where}; read {read}"
    return f"intact: {read}"
