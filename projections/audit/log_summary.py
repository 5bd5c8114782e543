"""Summary of each log as a whole, built from the notes of the scan and sent to all executors."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from eventstore.format.positions import INDEX_BITS, Position, position, sequence_of
from eventstore.reading.log_points import jump_notes
from projections.audit.audit_outcome import BrokerStart, NodeSummary
from projections.audit.chain_check import (
    ACTED,
    ARCHIVED,
    BEGUN,
    BRIDGED_LATER,
    CLEARED_BY,
    CLOCK,
    COMPLETED,
    CUT,
    DESTINATION,
    DOUBT,
    FOLLOWED,
    GIVEN_UP,
    JUMPED,
    KEYS,
    LIMITS,
    OPEN,
    OWNER,
    PIECE,
    PROBLEM,
    REPEATED,
    STARTED,
    STOPPED,
    TORN,
    UNSEALED,
    ChainBreak,
    LogNote,
    LogPiece,
    join_pieces,
)
from projections.audit.destination_check import destination_breaks
from projections.audit.erasure_check import erased_spans, erasure_breaks
from projections.audit.log_outline import BrokerRun, Limits, LogOutline
from projections.audit.rule_table import Rule
from projections.log_proof import Doubt, LogProof, damaged, doubts_of

BEYOND_ALL = 1 << 62
"""A position after the end of every log."""


class Checkpoint(NamedTuple):
    """A complete repetition of the state."""

    begun: Position
    completed: Position


class RecordedCut(NamedTuple):
    """A recorded cut whose carried messages are all in the log."""

    at: Position
    first: Position
    """Everything before this position is cut off."""


@dataclass(frozen=True, slots=True)
class LogSummary:
    """The summary of one log."""

    node: str
    begin: Position
    """Its first position."""
    end: Position
    """The position behind all of its events."""
    ends_ms: int
    whole: Position
    """Position where the first checkpoint of a cut log is complete; 0 for a log that begins with
    its first record. Before it the state is not completely known."""
    trusted: Position
    """Position from which nothing is audited because a record is damaged or missing; else
    ``BEYOND_ALL``."""
    unsure: Position
    """Start of the first turn whose rest cannot be or was not checked; else ``BEYOND_ALL``."""
    complete: Position = 0
    """Position from which all messages are in the log: its begin, or the end of a log of which
    records were given up."""
    checkpoints: tuple[Checkpoint, ...] = ()
    cuts: tuple[RecordedCut, ...] = ()
    outline: LogOutline = field(default_factory=LogOutline)
    """Its limits, and the times during which a broker ran."""
    follows: tuple[str, ...] = ()
    """The logs from which it takes messages."""
    start: BrokerStart | None = None
    """The last start of its broker; None: it contains none."""


@dataclass(slots=True)
class LogSummaries:
    """The summaries of all logs."""

    logs: dict[str, LogSummary] = field(default_factory=dict)
    """By node."""
    nodes: list[NodeSummary] = field(default_factory=list)
    breaks: list[tuple[str, ChainBreak]] = field(default_factory=list)
    """(node, break)."""
    remarks: list[str] = field(default_factory=list)
    checkpoints: int = 0
    """Number of checked checkpoints and cuts."""


def summarize_logs(notes: Iterable[LogNote]) -> LogSummaries:
    """Summarize the notes by log."""
    by_node: dict[str, dict[str, list[LogNote]]] = defaultdict(lambda: defaultdict(list))
    for note in sorted(notes, key=_at):
        by_node[note.node][note.about].append(note)
    summaries = LogSummaries()
    for node in sorted(by_node):
        if PIECE in by_node[node]:
            _add(summaries, node, by_node[node])
    return summaries


def _add(summaries: LogSummaries, node: str, notes: dict[str, list[LogNote]]) -> None:
    pieces = [LogPiece.read(note.values) for note in notes[PIECE]]
    piece, breaks = join_pieces(pieces)
    breaks += [
        ChainBreak(note.values["rule"], note.at, note.values["what"]) for note in notes[PROBLEM]
    ]
    trusted = min((flaw.at for flaw in breaks if flaw.rule != Rule.TURN), default=BEYOND_ALL)
    begin = position(piece.first.sequence, 0)
    end = position(piece.last.sequence + 1, 0)
    cuts, completed = notes[CUT], notes[COMPLETED]
    if piece.first.sequence > 1:
        breaks += _beginning(piece, cuts)
    audited, until_ms = _audited(pieces, notes[PROBLEM], trusted)
    summaries.remarks += _owners(node, notes[OWNER])
    begun = {note.at: note for note in notes[BEGUN]}
    checkpoints = [
        Checkpoint(note.values["begun"], note.at)
        for note in completed
        if note.values["begun"] in begun
    ]
    whole = 0
    if piece.first.sequence > 1:
        whole = checkpoints[0].completed if checkpoints else end
        if not checkpoints:
            summaries.remarks.append(
                f"node {node}: the log begins with record {piece.first.sequence} and has no "
                "complete checkpoint, so only sessions that began in it are audited"
            )
    lost = [note.values for note in notes[GIVEN_UP]]
    ends = {values["last"] + 1 for values in lost}
    torn = {sequence_of(note.at) for note in notes[TORN]}
    holes = sorted({_behind_turn(followed, torn) for followed in ends})
    outline = _outline(notes, begin, piece.ends_steady_ms, [position(hole, 0) for hole in holes])
    judged = [note for note in cuts if not holes or note.values["first"] > holes[-1]]
    if holes:
        behind = position(holes[-1], 0)
        whole = next(
            (checkpoint.completed for checkpoint in checkpoints if checkpoint.begun >= behind), end
        )
        summaries.remarks.append(
            f"node {node}: behind the records that were given up, sessions are audited from their "
            "next beginning or from the next complete checkpoint on"
        )
    jumps = [(sequence_of(note.at), note.values["ms"]) for note in notes[JUMPED]]
    summaries.remarks += [f"node {node}: {note}" for note in jump_notes(jumps)]
    complete = breaks
    breaks = _completions(completed, begun, notes[REPEATED], begin)
    breaks += _outside_checkpoints(notes)
    breaks += [
        ChainBreak(Rule.EVENT, note.at, "NATS is reported to have a message published later")
        for note in notes[BRIDGED_LATER]
    ]
    breaks += _cuts(judged, begun, {checkpoint.begun for checkpoint in checkpoints}, begin)
    breaks += _without_limits(notes)
    breaks += _not_acted(notes)
    breaks += _runs(notes, piece.first.sequence, outline)
    breaks += _archived(notes[ARCHIVED])
    breaks += destination_breaks(sorted([*notes[DESTINATION], *judged], key=_at))
    breaks += erasure_breaks(notes[KEYS], notes[UNSEALED], piece.ends_steady_ms)
    if holes:  # the lost records may explain what is missing until the state is complete again
        first = position(min(values["first"] for values in lost), 0)
        breaks = [flaw for flaw in breaks if not first <= flaw.at < whole]
        borders = {position(values["first"], 0) for values in lost}
        borders |= {position(values[name] + 1, 0) for values in lost for name in ("last", "until")}
        complete = [flaw for flaw in complete if flaw.rule != Rule.TURN or flaw.at not in borders]
    breaks = complete + breaks
    if not outline.limits:
        summaries.remarks.append(
            f"node {node}: the log does not record limits: drops are not compared with them, nor "
            "expired sessions with the session expiry"
        )
    summaries.checkpoints += len(completed) + len(cuts)
    summaries.breaks += [(node, flaw) for flaw in breaks]
    summaries.logs[node] = LogSummary(
        node,
        begin,
        end,
        piece.ends_steady_ms,
        whole,
        trusted,
        _unsure(pieces, notes, trusted),
        position(holes[-1], 0) if holes else begin,
        tuple(checkpoints),
        tuple(_judged_cuts(judged, begin)),
        outline,
        tuple(sorted({note.values["log"] for note in notes[FOLLOWED]})),
        _last_start(pieces, notes),
    )
    summaries.nodes.append(
        NodeSummary(
            node,
            piece.first.sequence,
            piece.last.sequence,
            piece.begins_ms,
            piece.ends_ms,
            piece.records,
            piece.events,
            piece.entries,
            piece.bytes,
            tuple(_doubts(notes, trusted, until_ms)),
            audited,
        )
    )


def _behind_turn(record: int, torn: set[int]) -> int:
    """Return the first record behind a turn whose beginning was given up before a record."""
    while record in torn:
        record += 1
    return record


def _audited(pieces: list[LogPiece], problems: list[LogNote], trusted: Position) -> tuple[int, int]:
    """Return the number of entries before a position, and the time of the last record there."""
    before = [piece for piece in pieces if piece.last.sequence < sequence_of(trusted)]
    count = sum(piece.entries for piece in before)
    for note in problems:
        if note.at == trusted and note.values["time_ms"]:
            return count + note.values["entries"], note.values["time_ms"]
    newest = max(before, key=lambda piece: piece.last.sequence, default=None)
    return count, 0 if newest is None else newest.ends_ms


def _owners(node: str, notes: list[LogNote]) -> list[str]:
    """Return remarks about the records that another node wrote, before a restore as this node."""
    return [
        restored_text(node, before.values["node"], sequence_of(after.at))
        for before, after in pairwise(notes)
        if before.values["node"] != after.values["node"]
    ]


def restored_text(node: str, writer: str, before: int = 0) -> str:
    """Return that another node wrote the records, all or those ``before`` one."""
    which = f"its records before {before}" if before else "its records"
    return (
        f"node {node}: {which} are of node {writer}: the log was restored from a backup as another "
        "node (restore --new-node)"
    )


def _doubts(notes: dict[str, list[LogNote]], trusted: Position, until_ms: int) -> list[Doubt]:
    """Return the parts of the log about which nothing can be said.

    The last of them begins at ``trusted``, behind a record of ``until_ms``.
    """
    proof = LogProof()
    for note in sorted([*notes[DOUBT], *notes[STARTED]], key=_at):
        if note.about == DOUBT:
            if (ends := note.values.get("continued")) is not None:
                end, salvaged = ends
                proof.continued(end, salvaged, sequence_of(note.at), note.values["clock_ms"])
            proof.salvage_knows(sequence_of(note.at), note.values.get("known", ()))
            proof.doubts += doubts_of(note.values["doubts"])
        else:
            proof.started(sequence_of(note.at), note.values["clock_ms"])
    if trusted == BEYOND_ALL:
        return proof.doubts
    sequence = sequence_of(trusted)
    earlier = [doubt for doubt in proof.doubts if doubt.after + 1 < sequence]
    return [*earlier, damaged(sequence, until_ms, audited=True)]


def _at(note: LogNote) -> Position:
    return note.at


def _outline(
    notes: dict[str, list[LogNote]], begin: Position, ends_ms: int, holes: Sequence[Position]
) -> LogOutline:
    """Return the limits in force, and the times during which a broker ran."""
    limits: list[Limits] = []
    for note in notes[LIMITS]:
        applied = Limits.read(note.at, note.values)
        before = limits[-1] if limits else None
        if (
            before is None
            or before[2:] != applied[2:]
            or any(before.at < hole <= applied.at for hole in holes)
        ):
            limits.append(applied)
    lost = [(note.values["first"], note.values["last"] + 1) for note in notes[GIVEN_UP]]
    return LogOutline(
        tuple(limits),
        tuple(
            BrokerRun(note.at, note.values["time_ms"], note.values["before_ms"])
            for note in notes[STARTED]
        ),
        tuple(sorted(note.at for note in (*notes[STARTED], *notes[STOPPED]))),
        ends_ms,
        tuple(holes),
        tuple((position(first, 0), position(end, 0)) for first, end in sorted(lost)),
        begin,
        tuple(
            (note.at, note.values["jumped_ms"], note.values["before_ms"]) for note in notes[CLOCK]
        ),
        erased_spans(notes[KEYS]),
    )


def _without_limits(notes: dict[str, list[LogNote]]) -> list[ChainBreak]:
    """Return starts without limits, of a version that recorded limits at another start."""
    recorded = {note.values["turn"] for note in notes[LIMITS]}
    records = {
        note.values["software"] for note in notes[STARTED] if note.values["turn"] in recorded
    }
    return [
        ChainBreak(Rule.EVENT, note.at, "a broker started, but its limits were not recorded")
        for note in notes[STARTED]
        if note.values["software"] in records and note.values["turn"] not in recorded
    ]


def _not_acted(notes: dict[str, list[LogNote]]) -> list[ChainBreak]:
    """Return removals of retained messages that do not match the request of an operator.

    A turn that takes another log takes the removals there, too.
    """
    following = {note.values["turn"] for note in notes[FOLLOWED] if "turn" in note.values}
    acted: dict[int, list[LogNote]] = defaultdict(list)
    cleared: dict[int, list[LogNote]] = defaultdict(list)
    for what, by_turn in ((ACTED, acted), (CLEARED_BY, cleared)):
        for note in notes[what]:
            by_turn[note.values["turn"]].append(note)
    breaks = []
    for turn in sorted({*acted, *cleared}):
        requests, removals = acted[turn], cleared[turn]
        count = sum(note.values["count"] for note in removals)
        if len(removals) < len(requests):
            what, at = "an operator removed retained messages, but none is gone", requests[-1].at
        elif turn in following:
            continue
        elif not requests:
            what, at = "retained messages were removed, but by no operator", removals[0].at
        elif len(requests) == 1 and requests[0].values["target"] != (
            removals[0].values["topic"] if count == 1 else f"{count} topics"
        ):
            what, at = "an operator removed other retained messages than are gone", requests[0].at
        else:
            continue
        breaks.append(ChainBreak(Rule.RETAINED, at, what))
    return breaks


def _runs(notes: dict[str, list[LogNote]], first: int, outline: LogOutline) -> list[ChainBreak]:
    """Return starts in the middle of a turn, limits before any start, and stops after a stop."""
    breaks = [
        ChainBreak(Rule.EVENT, note.at, "a broker started in the middle of a turn")
        for note in notes[STARTED]
        if note.at != position(note.values["turn"], 0)
    ]
    starts, stops = (sorted(note.at for note in notes[what]) for what in (STARTED, STOPPED))
    limits = min((note.at for note in notes[LIMITS]), default=BEYOND_ALL)
    started = min(starts, default=BEYOND_ALL)
    if first == 1 and limits < started and not outline.interrupted(0, limits):
        breaks.append(ChainBreak(Rule.EVENT, limits, "limits held before a broker started"))
    for stop, other in pairwise(stops):
        if not outline.interrupted(stop, other) and not any(
            stop < start < other for start in starts
        ):
            breaks.append(ChainBreak(Rule.EVENT, other, "a broker stopped that had stopped before"))
    return breaks


def last_starts(logs: Mapping[str, LogSummary]) -> dict[str, Position]:
    """Return the position of the last start in each log; behind all logs if it contains none."""
    return {node: BEYOND_ALL if log.start is None else log.start.at for node, log in logs.items()}


def _last_start(pieces: list[LogPiece], notes: dict[str, list[LogNote]]) -> BrokerStart | None:
    """Return the last start of the broker."""
    starts, stops = notes[STARTED], [note.at for note in notes[STOPPED]]
    if not starts:
        return None
    at, values = starts[-1].at, starts[-1].values
    # In a cut log the earlier start may be gone, but not the shutdown behind it.
    earlier = max((note.at for note in starts[:-1]), default=-1)
    stopped = any(earlier < stop < at for stop in stops)
    stopped = stopped or (earlier < 0 and sequence_of(at) == 1)
    unproven = any(note.values["e"] == "LogEndUnproven" for note in notes[DOUBT] if note.at > at)
    before = (piece.last for piece in pieces if piece.last.sequence + 1 == values["turn"])
    interrupts = values["interrupts"] or any(not link.last for link in before)
    return BrokerStart(at, values["clock_ms"], not (stopped or unproven), interrupts)


def _archived(notes: list[LogNote]) -> list[ChainBreak]:
    """Return reports of archives with another record than the log."""
    return [
        ChainBreak(Rule.CHAIN, note.at, f"reports an archive of another record {values['through']}")
        for note in notes
        if (values := note.values)["through"] >= note.at >> INDEX_BITS
        or (values["known"] is not None and values["known"] != values["link"])
    ]


def _unsure(pieces: list[LogPiece], notes: dict[str, list[LogNote]], trusted: Position) -> Position:
    """Return the start of the first turn whose end is missing."""
    places = [note.at for note in notes[OPEN]]
    places += [
        trusted - (note.values["part"] << INDEX_BITS)
        for note in notes[PROBLEM]
        if note.at == trusted
    ]
    if trusted < BEYOND_ALL:
        before = [piece.last for piece in pieces if piece.last.sequence < trusted >> INDEX_BITS]
        newest = max(before, key=lambda link: link.sequence, default=None)
        if newest is not None and not newest.last:
            places.append(position(newest.sequence - newest.part, 0))
    return min([trusted, *places])


def _beginning(piece: LogPiece, cuts: list[LogNote]) -> list[ChainBreak]:
    """Return the breaks at the beginning of a log that does not begin with its first record."""
    first = piece.first
    here = [note.values for note in cuts if note.values["first"] == first.sequence]
    at = position(first.sequence, 0)
    if not any(note.values["first"] >= first.sequence for note in cuts):
        return [ChainBreak(Rule.CHAIN, at, "begins the log, but no cut before it is recorded")]
    if here and first.previous and here[0]["link"] != first.previous:
        return [
            ChainBreak(Rule.CHAIN, at, "does not continue the record that was cut off before it")
        ]
    return []


def _completions(
    completed: list[LogNote],
    begun: dict[Position, LogNote],
    repeated: list[LogNote],
    begin: Position,
) -> list[ChainBreak]:
    """Return wrong numbers that checkpoints record about themselves."""
    breaks: list[ChainBreak] = []
    places = [note.at for note in repeated]
    sums = {
        what: list(accumulate((note.values[what] for note in repeated), initial=0))
        for what in ("sessions", "retained")
    }
    finished = {note.values["begun"] for note in completed}
    for checkpoint, other in pairwise(begun.values()):
        before, number = checkpoint.values["checkpoint"], other.values["checkpoint"]
        # A checkpoint that a crash interrupted is begun again with its number.
        if number < before or (number == before and checkpoint.at in finished):
            what = f"begins checkpoint {number} again"
            breaks.append(ChainBreak(Rule.CHECKPOINT, other.at, what))
    completions: set[Position] = set()
    for note in completed:
        values: dict[str, Any] = note.values
        if values["begun"] in completions:
            what = f"completes checkpoint {values['checkpoint']} again"
            breaks.append(ChainBreak(Rule.CHECKPOINT, note.at, what))
        completions.add(values["begun"])
        if values["begun"] not in begun:
            if values["begun"] >= begin:
                what = f"completes checkpoint {values['checkpoint']}, which was not begun"
                breaks.append(ChainBreak(Rule.CHECKPOINT, note.at, what))
            continue
        if begun[values["begun"]].values["checkpoint"] != values["checkpoint"]:
            breaks.append(
                ChainBreak(Rule.CHECKPOINT, note.at, "completes a checkpoint of another number")
            )
        last = bisect_right(places, note.at)
        first = min(bisect_right(places, values["begun"]), last)
        sessions, retained = (totals[last] - totals[first] for totals in sums.values())
        if (sessions, retained) != (values["sessions"], values["retained"]):
            what = (
                f"says that checkpoint {values['checkpoint']} has {values['sessions']:,} sessions "
                f"and {values['retained']:,} retained messages, but it has {sessions:,} and "
                f"{retained:,}"
            )
            breaks.append(ChainBreak(Rule.CHECKPOINT, note.at, what))
    return breaks


def _outside_checkpoints(notes: dict[str, list[LogNote]]) -> list[ChainBreak]:
    """Return repetitions of the state that belong to no checkpoint: the first of each series.

    A checkpoint that was begun and not completed, because the broker ended, counts until the next.
    """
    marks = [*notes[BEGUN], *notes[COMPLETED], *notes[REPEATED]]
    breaks: list[ChainBreak] = []
    inside = reported = False
    for note in sorted(marks, key=lambda note: (note.at, note.about != REPEATED)):
        if note.about == REPEATED:
            if not inside and not reported:
                at, what = note.values["first"], "the state is repeated outside of a checkpoint"
                breaks.append(ChainBreak(Rule.CHECKPOINT, at, what))
                reported = True
        else:
            inside, reported = note.about == BEGUN, False
    return breaks


def _judged_cuts(cuts: list[LogNote], begin: Position) -> Iterator[RecordedCut]:
    """Yield the cuts whose carried messages are in the log; a later cut may have removed some."""
    for note in cuts:
        first = position(note.values["first"], 0)
        if first >= begin:
            yield RecordedCut(note.at, first)


def _cuts(
    cuts: list[LogNote], begun: dict[Position, LogNote], whole: set[Position], begin: Position
) -> list[ChainBreak]:
    """Return wrong positions of recorded cuts."""
    breaks: list[ChainBreak] = []
    by_record = {at >> INDEX_BITS: at for at in sorted(whole, reverse=True)}
    for note in cuts:
        values = note.values
        first = position(values["first"], 0)
        if first < begin:
            continue
        beginning = by_record.get(values["first"])
        if beginning is None:
            what = f"cuts the log before record {values['first']}, where no whole checkpoint begins"
            breaks.append(ChainBreak(Rule.CHECKPOINT, note.at, what))
            continue
        record = begun[beginning].values
        if (values["link"], values["begins_ms"]) != (record["previous"], record["time_ms"]):
            what = f"cuts the log before record {values['first']}, but describes another one"
            breaks.append(ChainBreak(Rule.CHECKPOINT, note.at, what))
    return breaks
