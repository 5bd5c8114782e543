"""The audit of a log whose records are in memory, in this process."""

from collections.abc import Iterable, Iterator, Mapping

from eventstore.format.records import Record, decode_record
from eventstore.format.turn_parts import TurnAssembler
from projections.audit.audit_engine import AuditEngine
from projections.audit.audit_outcome import Outcome
from projections.audit.fact_buffer import FactChunk
from projections.audit.fact_scan import CheckedRecord, FactScan
from projections.audit.local_facts import LocalFacts
from projections.audit.rule_table import Violation
from projections.log_proof import Doubt


def audit_plainly(node: str, records: Iterable[CheckedRecord]) -> list[Violation]:
    """Return the violations in a log."""
    return list(_outcome(node, records).violations)


def violations(records: Iterable[Record], node: str = "sim") -> list[Violation]:
    """Return the violations in the records of a log, of which turns without an end are void."""
    return audit_plainly(node, _whole(list(records)))


def audited_doubts(node: str, records: Iterable[CheckedRecord]) -> list[Doubt]:
    """Return the parts of a log about which an audit says nothing."""
    return [doubt for log in _outcome(node, records).nodes for doubt in log.doubts]


def audited_notes(node: str, records: Iterable[CheckedRecord]) -> tuple[str, ...]:
    """Return what an audit says besides its verdict."""
    return _outcome(node, records).notes


def checked_records(history: Mapping[int, bytes]) -> Iterator[CheckedRecord]:
    """Yield the records of a simulated log, by sequence; of turns without an end as void."""
    return _whole([decode_record(at, data) for at, data in sorted(history.items())])


def _whole(records: list[Record]) -> Iterator[CheckedRecord]:
    turns = TurnAssembler()
    whole = {part.sequence for record in records for part in turns.take(record)[1]}
    for one in records:
        yield CheckedRecord(one.sequence, b"", one, void=one.sequence not in whole)


def _outcome(node: str, records: Iterable[CheckedRecord]) -> Outcome:
    return AuditEngine().outcome(LocalFacts(_scanned(node, records)))


def _scanned(node: str, records: Iterable[CheckedRecord]) -> Iterator[FactChunk]:
    scan = FactScan(node)
    for record in records:
        scan.take(record)
        yield from scan.facts.full()
    yield from scan.finish()
