"""``foldmq log verify``: checks that records are complete, in order, intact and readable."""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cli.common import text
from cli.common.progress_bar import progress
from cli.logs.broker_client import store_damage
from cli.logs.logs import Logs, open_logs
from cli.logs.source_flags import SourceFlags, run_to_end
from eventstore.display import log_prefix
from eventstore.format.positions import sequence_of
from eventstore.reading.log_points import jump_notes
from eventstore.reading.log_source import LogSource
from projections.audit.exchange_audit import ExchangeAudit, audit_exchange
from projections.audit.log_verifier import LogVerifier, verify_log
from projections.audit.rule_table import Violation
from projections.log_proof import NO_MARK, proof_object, spans_text, statement

_MAX_PROBLEMS = 100


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
            if self.count <= _MAX_PROBLEMS:
                self.listed.append({"record": sequence, "what": what})
        elif self.count <= _MAX_PROBLEMS:
            sys.stdout.write(f"{self.prefix}record {sequence} {what}\n")
        elif self.count == _MAX_PROBLEMS + 1:
            sys.stdout.write(f"{self.prefix}further problems are only counted\n")

    def stored(self, damage: str) -> None:
        """Print what happened to the files of the log."""
        self.count += 1
        if self.as_json:
            self.listed.append({"record": None, "what": damage})
        else:
            sys.stdout.write(f"{self.prefix}{damage}\n")

    def found(self, violation: Violation) -> None:
        """Print a violation of a rule of the audit."""
        self(sequence_of(violation.at), violation.what)

    def fields(self) -> dict[str, object]:
        """Return the fields of a JSON object."""
        return {"problems": self.count, "listed": self.listed}


@run_to_end
async def run_verify_log(flags: SourceFlags, *, as_json: bool = False) -> bool:
    """Check the log, print problems and a summary; return whether it is intact.

    Where a node has several logs, and none is named, check all of them, and what each took. A log
    that cannot be read is left out, and IncompleteLogs raised at the end.
    """
    async with open_logs(flags, partly=True) as logs:
        intact = await _verify_all(logs, as_json=as_json)
    logs.check_read()
    return intact


class _Verified(NamedTuple):
    """A log that was checked."""

    verifier: LogVerifier
    intact: bool


async def _verify(source: LogSource, log: str, *, as_json: bool) -> _Verified:
    """Check a log and print the result; ``log`` is its name if there are several."""
    problems = _Problems(log_prefix(log), as_json=as_json)
    verifier = await verify_log(source, problems, progress)
    damage = await store_damage(source)
    if damage is not None:
        problems.stored(damage)
    if as_json:
        times = {
            key: None if value is None else text.iso(value)
            for key, value in (("from", verifier.first_ms), ("to", verifier.last_ms))
        }
        extent = {"records": verifier.records, "entries": verifier.entries, **times}
        extent["first_record"] = source.begin
        details = {
            "void_parts": verifier.void,
            **proof_object(verifier.proven, verifier.doubts),
            "clock_jumps": [{"record": record, "ms": ms} for record, ms in verifier.jumps],
            **problems.fields(),
        }
        sys.stdout.write(
            text.json_line({**({"log": log} if log else {}), **extent, **details}) + "\n"
        )
    else:
        if source.cut is not None:
            sys.stdout.write(problems.prefix + source.beginning() + "\n")
        summary = verification_summary(verifier, problems.count, source.where)
        sys.stdout.write(f"{problems.prefix}{summary}\n")
        for note in (*map(statement, verifier.proof.doubts), *jump_notes(verifier.jumps)):
            sys.stdout.write(f"{problems.prefix}{note}\n")
        if source.without_mark:
            sys.stdout.write(f"{problems.prefix}{NO_MARK}\n")
    return _Verified(verifier, not problems.count)


async def _verify_all(logs: Logs, *, as_json: bool) -> bool:
    """Check logs, and whether each took what its sessions subscribed to in the others."""
    verified: dict[str, _Verified] = {}
    for log, source in logs.items():
        with logs.of(log):
            verified[log] = await _verify(source, log, as_json=as_json)
    damaged = [*logs.errors, *(log for log, outcome in verified.items() if not outcome.intact)]
    if logs.several and not damaged:
        for log in verified:
            with logs.of(log):
                if not await _verify_exchange(log, logs, as_json=as_json):
                    damaged.append(log)
    elif logs.several and not as_json:
        what = "cannot be read" if logs.errors else "is damaged"
        sys.stdout.write(f"the exchange between the logs is not checked: a log {what}\n")
    if logs.several and not as_json and verified and not logs.errors:
        sys.stdout.write(_total(verified.values(), damaged) + "\n")
    return not damaged


async def _verify_exchange(log: str, logs: Mapping[str, LogSource], *, as_json: bool) -> bool:
    """Check what a log took of the others and print the result; return whether it is complete."""
    problems = _Problems(log_prefix(log), as_json=as_json)
    exchange = await audit_exchange(log, logs, problems.found, progress)
    if as_json:
        ends = [followed._asdict() for followed in exchange.ends]
        line = {"exchange": log, "due": exchange.due, "followed": ends, **problems.fields()}
        sys.stdout.write(text.json_line(line) + "\n")
    else:
        sys.stdout.write(f"{problems.prefix}{_exchange_summary(exchange, problems.count)}\n")
    return not problems.count


def _total(verified: Collection[_Verified], damaged: Sequence[str]) -> str:
    """Return the summary of all logs."""
    records = text.count_of(sum(log.verifier.records for log in verified), "record")
    entries = sum(log.verifier.entries for log in verified)
    read = f"{records}, {entries:,} entries"
    if not damaged:
        parts = sum(len(log.verifier.proof.doubts) for log in verified)
        but = f"; nothing can be said about {text.count_of(parts, 'part')} of them" if parts else ""
        return f"all {len(verified)} logs are intact: {read}{but}"
    of = f"{len(damaged)} of {text.count_of(len(verified), 'log')}"
    return f"damaged: {of}, {', '.join(damaged)}; read {read}"


def _exchange_summary(exchange: ExchangeAudit, problems: int) -> str:
    """Return what an audit of the exchange found, in a line."""
    due = f"{text.count_of(exchange.due, 'message')} of other logs had to be taken"
    complete = text.count_of(problems, "problem") if problems else "all there"
    ends = ", ".join(
        f"{text.name(followed.log)} up to record {followed.through:,} of {followed.last:,}"
        for followed in exchange.ends
    )
    return f"{due}, {complete}; it has taken {ends}"


def verification_summary(verifier: LogVerifier, problems: int, where: str) -> str:
    """Return the summary line: the records read, and whether the log is intact."""
    if not problems and not verifier.records:
        return "the log is empty: there is nothing to verify"
    read = (
        f"{text.count_of(verifier.records, 'record')}, {verifier.entries:,} "
        f"{'entry' if verifier.entries == 1 else 'entries'}"
    )
    holds = spans_text(verifier.proven)
    if holds and not problems:
        read += f", {holds}"
    if verifier.void:
        read += f"; {text.count_of(verifier.void, 'part')} of turns that were not completed"
    if problems:
        intact = f"; intact are the parts {holds}" if holds else ""
        count = text.count_of(problems, "problem")
        return f"damaged: {count} in the log of {where}; read {read}{intact}"
    return f"intact: {read}"
