"""Random runs with incidents of the broker and its log, whose answers are compared with the truth.

A disk that fills, a store that is gone, replaced or cut short, a certificate that runs out, a clock
that jumps, a reload that fails, crashes, and logs that were salvaged, restored, copied, cut short
or left without their watermark. ``status``, ``doctor``, ``log verify``, ``verify`` and the audit
are asked meanwhile.
"""

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
from harness import packets as p
from harness.plainaudit import audit_plainly, audited_doubts, checked_records
from harness.salvages import salvaged

from actors.inspection.status_metrics import LOG_VALUES
from actors.maintenance.state_digests import StateDigestService, subject_of
from actors.node.reload_outcome import ReloadOutcome
from cli.commands.advice import Advice, advise
from cli.commands.broker_advice import advise_on_broker, advise_on_disk
from cli.commands.certificate_advice import advise_on_certificates
from cli.commands.status import status_lines, time_off
from cli.commands.verify_log import verification_summary
from cli.commands.verify_state import verification_lines
from cli.common import text
from cli.logs.broker_client import LiveBroker
from cli.logs.log_brokers import LogBrokers
from cli.logs.state_client import StateClient
from eventstore.errors import CorruptLog
from eventstore.format.records import decode_record
from eventstore.reading.log_source import LogSource, open_log
from eventstore.server.disk_recovery import RESERVE
from projections.audit.log_verifier import LogVerifier, verify_log
from projections.log_proof import Doubt
from projections.past.state_verification import StateVerification
from simulation.chaos import errors_of_the_broker
from simulation.inspection import ask
from simulation.jetstream import SimMsg, SimNats
from simulation.loop import simulate
from simulation.network import SimClient
from simulation.stored_world import MARK, PLENTY, StoredWorld, WorkAtOnce
from simulation.world import STREAM

STEPS: Final = 60
HOUR, DAY = 3600.0, 86_400.0
_NOTICED: Final = 5.0
"""Seconds after which an incident of the store is named, and no longer named when it is over."""
_MEASURED: Final = 7.0
"""Seconds after which the free space of the disk was measured again."""
_NEAR: Final = 3.0
"""Seconds around a threshold in which either answer is true."""
_LITTLE: Final = 10**9
_DAMAGED: Final = "foldmq_log_store_damaged"
_BACKUP: Final = "/backup"
_BROKERS: Final = LogBrokers([LiveBroker("n", "here", client=None)])  # type: ignore[arg-type]


class WrongAnswerError(AssertionError):
    """An answer that is not true."""


class Lost(NamedTuple):
    """Records that are no longer in the log, and what the broker can know of that."""

    reason: str
    after: int
    until: int
    missing: int
    seen: int
    """Time of the start after it, Unix time in milliseconds; 0: not known, its record is lost."""
    times: list[int]
    """Times of the lost records."""
    known: int = 0
    """Record of the start after it."""

    @property
    def at(self) -> int:
        """Record that says so."""
        return self.until if self.reason == "salvaged" else self.until + 1


class Claims:
    """What must be said, and what may be, each with the severities that are true."""

    def __init__(self) -> None:
        self.must: dict[tuple[str, str], set[str]] = {}
        self.may: dict[tuple[str, str], set[str]] = {}

    def add(self, subject: str, title: str, severities: str, *, certain: bool = True) -> None:
        """Claim that a subject has a problem; ``severities`` are separated by spaces."""
        claims = self.must if certain else self.may
        claims.setdefault((subject, title), set()).update(severities.split())

    def between(
        self, subject: str, title: str, severity: str, seconds: float, begin: float, end: float
    ) -> None:
        """Claim what is true from ``begin`` to ``end``; ``seconds`` is now."""
        if begin - _NEAR < seconds < end + _NEAR:
            certain = begin + _NEAR < seconds < end - _NEAR
            self.add(subject, title, severity, certain=certain)

    def wrong(self, advice: Iterable[Advice]) -> str | None:
        """Return what is not true of advice, or missing in it."""
        named: dict[tuple[str, str], str] = {}
        for entry in advice:
            key = entry.subject, entry.title
            if key in named:
                return f"named twice: {entry}"
            named[key] = entry.severity
            severities = self.must.get(key, set()) | self.may.get(key, set())
            if entry.severity not in severities:
                return f"not true: {entry}"
        missing = self.must.keys() - named.keys()
        return f"not named: {missing}" if missing else None


class _Reader(SimClient):
    """A client that acknowledges everything at once."""

    def on_packet(self, packet: p.Packet) -> None:
        if isinstance(packet, p.Publish) and packet.packet_id is not None:
            self.send(p.puback(packet.packet_id))


class _Asking(SimNats):
    """The connection of a command to NATS, at which the broker also attests its state."""

    service: StateDigestService | None = None

    async def request(self, subject: str, payload: bytes = b"", *rest: Any, **more: Any) -> SimMsg:
        if self.service is not None and subject == subject_of("sim"):
            return SimMsg("", self.service.answer(payload)[0])
        return await super().request(subject, payload, *rest, **more)


class BrokerRun:
    """One random run."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._chance = random.Random(f"broker {seed}")
        self.counts: Counter[str] = Counter()
        self._folder = folder
        self._world = StoredWorld(folder, max_clock_gap=DAY, max_record=4096)
        self._undo: Callable[[], object] | None = None
        """Ends the incident of the store."""
        self._store = ""
        """Incident of the store: what the broker says of it; empty: there is none."""
        self._store_changed = self._disk_changed = float("-inf")
        self._certificate_ends_ms: int | None = None
        self._jump: tuple[int, str, float] | None = None
        """The last jump of the clock since the start: its size, where it was seen, and when."""
        self._started = 0.0
        self._off_ms: int | None = None
        """Milliseconds between the last write of the run before and the start; None: unknown."""
        self._crashed: bool | None = False
        """Whether the run before crashed; None: either may be said."""
        self._reload: tuple[str, float] | None = None
        self._damages = random.Random(f"damage {seed}")
        self._damaged: tuple[int, bytes] | None = None
        """Old record of which a bit was changed, and its bytes before."""
        self._lost: list[Lost] = []
        self._salvages = 0
        self._set_back = False
        """Whether the clock was ever set back: then times in the log overlap."""
        self._writer: SimClient | None = None
        self._sent = self._acked_before = 0
        self._unmarked = 0
        """Records that were acknowledged until the store failed."""

    async def run(self) -> Counter[str]:
        """Run; raise WrongAnswerError at the first answer that is not true."""
        await self._start()
        for _ in range(STEPS):
            await self._step()
        await self._end_store()
        if self._damaged is not None:
            await self._restarts_intact()
        await self._judge_difference()
        await self._world.crash()
        return self.counts

    # What happens.

    async def _step(self) -> None:
        chance = self._chance
        assert self._writer is not None
        if not self._writer.open and not self._store and not self._store_settles():
            await self._connect()
        for _ in range(chance.randrange(4)):
            self._publish()
            await self._world.go(chance.uniform(0.05, 1))
        if chance.random() < 0.5:
            happens = chance.choice(self._INCIDENTS)
            await happens(self)
        pauses = ((0.2, 10), (0.2, 10), (60, 2 * HOUR), (0.5 * DAY, 1.2 * DAY))
        await self._pause(chance.uniform(*chance.choice(pauses[:2] if self._store else pauses)))
        await self._judge()
        if chance.random() < 0.25:
            await self._judge_log(live=True)
        if chance.random() < 0.1 and not self._store:
            await self._judge_state()

    async def _pause(self, seconds: float) -> None:
        """Let time pass; a long time at once, as on a machine that sleeps."""
        if seconds >= 60:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, WorkAtOnce)
            loop.now += seconds
            seconds = _MEASURED
        await self._world.go(seconds)

    async def _start(self) -> None:
        world = self._world
        last = list(world.disk.stream.messages.items())[-1:]
        gap_ms = self._wall_ms - self._times(dict(last))[0] if last else 0
        await world.start()
        self._started = self._now
        self._jump, self._reload = None, None
        if not -2000 <= gap_ms <= DAY * 1000:
            self._jump = gap_ms, "start", self._now
            self.counts["clock: at the start"] += 1
        self._set_certificate()
        await world.go(0.1)
        await self._connect()

    async def _connect(self) -> None:
        world = self._world
        reader = _Reader(world)
        reader.send(p.connect("reader", clean=False))
        await world.go(0.2)
        reader.send(p.subscribe(1, ("t/#", 1)))
        self._writer = await world.connect("writer", clean=True)
        self._sent = self._acked_before = 0
        await world.go(0.2)

    def _publish(self) -> None:
        assert self._writer is not None
        self._sent += 1
        retain = self._sent % 3 == 0
        topic = f"t/{self._chance.randrange(4)}"
        self._writer.send(p.publish(topic, b"%d" % self._sent, 1, self._sent, retain=retain))

    async def _fills(self) -> None:
        if self._store or self._undo:
            return
        host = self._world.host
        host.free = self._chance.choice((RESERVE - 1, RESERVE // 2, 2 * RESERVE, _LITTLE - 1))
        self._disk_changed = self._now
        if host.free < RESERVE:
            self._begin_store("full")
        else:
            self.counts["little room"] += 1

        def empty() -> None:
            host.free = PLENTY
            self._disk_changed = self._now

        self._undo = empty

    async def _vanishes(self) -> None:
        if self._undo:
            return
        folder = self._world.host.jetstream
        aside = folder.with_name("aside")
        folder.rename(aside)
        replaced = self._chance.random() < 0.5
        if replaced:
            shutil.copytree(aside, folder)

        def put_back() -> None:
            if replaced:
                shutil.rmtree(folder)
            aside.rename(folder)

        self._undo = put_back
        self._begin_store("was replaced" if replaced else "is gone")

    async def _is_cut_short(self) -> None:
        recovery = self._world.recovery
        files = recovery._files if recovery is not None else None
        if self._undo or files is None or files._known is None:
            return
        await self._world.go(2)  # a look has seen what will be missing
        if files._looks_after_cut:
            return  # for a minute after a cut of the log its first block may become shorter
        block = self._world.block
        data = block.read_bytes()
        left = self._chance.randrange(len(data) // 2)
        with block.open("r+b") as file:
            file.truncate(left)

        def put_back() -> None:
            with block.open("r+b") as file:
                file.truncate(0)
                file.write(data)

        self._undo = put_back
        self._begin_store("cut short")

    def _begin_store(self, what: str) -> None:
        self.counts[f"store: {what}"] += 1
        self._store, self._store_changed = what, self._now
        self._unmarked = self._acked

    async def _end_store(self) -> None:
        if self._undo is None:
            return
        self._undo()
        self._undo = None
        if self._store:
            self._store, self._store_changed = "", self._now
        self.counts["store: whole again"] += 1
        await self._world.go(self._chance.choice((0.1, 20.0)))

    async def _gets_certificate(self) -> None:
        days = self._chance.choice((-2.0, 0.02, 3.0, 29.5, 31.0, 400.0))
        self._certificate_ends_ms = self._wall_ms + round(days * DAY * 1000)
        self.counts["certificate"] += 1
        self._set_certificate()

    def _set_certificate(self) -> None:
        """Load the certificate, as a start and a reload do."""
        ends_ms = self._certificate_ends_ms
        if ends_ms is None:
            return
        self._world.broker.node.certificates = [
            {
                "setting": "tls_cert", "listener": "[::]:8883", "file": "/c.pem", "name": "CN=a",
                "begins_ms": 0, "ends_ms": ends_ms, "first_name": "CN=a", "first_ms": ends_ms,
                "lasts_ms": round(90 * DAY * 1000), "file_ends_ms": ends_ms,
            }
        ]  # fmt: skip

    async def _clock_jumps(self) -> None:
        if self._store:
            return  # a jump is recorded when the log can be written
        await self._world.go(_NOTICED)
        ms = self._jump_ms()
        self._world.clock.set_ms += ms
        self._jump = ms, "running", self._now
        self.counts["clock: running"] += 1
        await self._world.go(20)

    def _jump_ms(self) -> int:
        size = self._chance.choice((90.0, 2 * HOUR, 3 * DAY, 365 * DAY))
        back = self._chance.random() < 0.5
        self._set_back = self._set_back or back
        return round((-size if back else size) * 1000)

    async def _reload_happens(self) -> None:
        failed = self._chance.random() < 0.7
        error = "perm.toml: not TOML" if failed else ""
        node = self._world.broker.node
        node.reload = ReloadOutcome(node.clock.time_ms(), error)
        self._reload = error, self._now
        self.counts["reload failed" if failed else "reloaded"] += 1

    # Restarts.

    async def _crash(self) -> dict[int, bytes]:
        """Kill the broker; return the records of the log."""
        await self._end_store()
        if self._store_settles():
            await self._world.go(_NOTICED)
        await self._world.crash()
        self._crashed = True
        messages = self._world.disk.stream.messages
        if self._damaged is not None and self._damaged[0] in messages:
            messages[self._damaged[0]] = self._damaged[1]
        self._damaged = None
        records = dict(messages)
        self._off_ms = self._wall_ms - self._times(records)[-1]
        return records

    async def _restarts(self) -> None:
        old = self._world.broker.projector.marked
        await self._crash()
        await self._judge_log(live=False)
        self._damage(old)
        ended_ms = self._wall_ms - (self._off_ms or 0)
        await self._pause(self._chance.choice((0.0, 30.0, 2 * HOUR, 2 * DAY)))
        jump = self._jump_ms() if self._chance.random() < 0.3 else 0
        self._world.clock.set_ms += jump
        self._off_ms = self._wall_ms - ended_ms
        await self._start()
        self.counts["crash"] += 1

    async def _restarts_intact(self) -> None:
        await self._crash()
        await self._start()

    def _damage(self, before: int) -> None:
        """Change a bit of a record that a start does not read, more often than not."""
        messages = self._world.disk.stream.messages
        old = [number for number in messages if number < before]
        if len(old) < 2 or self._damages.random() < 0.4:
            return
        number = self._damages.choice(old[1:])
        intact = bytearray(messages[number])
        self._damaged = number, bytes(intact)
        intact[self._damages.randrange(len(intact))] ^= 1 << self._damages.randrange(8)
        messages[number] = bytes(intact)
        self.counts["log: a damaged record"] += 1

    @property
    def _damaged_record(self) -> int | None:
        """The damaged record, unless it was cut off."""
        damaged = self._damaged
        first = min(self._world.disk.stream.messages)
        return damaged[0] if damaged is not None and damaged[0] >= first else None

    async def _is_cut_off(self) -> None:
        """Let the log end before its last records while the broker is off, and be put back."""
        records = await self._crash()
        mark = (self._world.host.path / MARK).read_bytes()
        kept = self._without_last(records)
        whole = self._world.host.jetstream
        server, stream = self._world.server, self._world.disk.stream
        stream.messages = kept
        stream.last = max(kept)
        problems = await self._log_problems()
        if self._cut_is_gone(kept):
            problems = [problem for problem in problems if problem[0] >= min(kept)]
        missing = [what for record, what in problems if record == max(kept) + 1]
        if len(problems) != 1 or not missing:
            raise self._wrong(f"records from {max(kept) + 1} on are missing, verify: {problems}")
        try:
            await self._world.start()
        except CorruptLog as error:
            if error.sequence != max(kept) + 1:
                raise self._wrong(f"{max(kept) + 1} is missing, the start says {error}") from None
        else:
            raise self._wrong("a broker starts on a log that lacks acknowledged records")
        await self._world.crash()
        stream.messages, stream.last = records, max(records)
        assert whole.exists()
        assert server.streams[0] is stream
        (self._world.host.path / MARK).write_bytes(mark)
        self.counts["log: cut off and put back"] += 1
        await self._start()

    def _cut_is_gone(self, records: dict[int, bytes]) -> bool:
        """Return whether the record that says where the log begins is not among them."""
        first = min(records)
        cuts = {
            event["first"]
            for number, data in records.items()
            if number != self._damaged_record
            for event in decode_record(number, data).raw_events
            if event["e"] == "LogCut"
        }
        return first > 1 and first not in cuts

    def _without_last(self, records: dict[int, bytes]) -> dict[int, bytes]:
        first = self._chance.randrange(max(records) * 2 // 3, max(records))
        return {number: data for number, data in records.items() if number <= first}

    async def _loses_its_end(self) -> None:
        """Start on a copy, a restored backup, or without a watermark: the end is missing."""
        records = await self._crash()
        noted = self._world.mark().read()
        assert noted is not None
        mark = (self._world.host.path / MARK).read_bytes()
        kept = self._without_last(records) if self._chance.random() < 0.7 else records
        if self._cut_is_gone(kept):
            kept = records  # a broker cuts its log when the record that says so is stored
        host = self._world.move(kept)
        reason = self._chance.choice(("copy", "restored", "no_watermark"))
        missing = 0
        if reason == "copy":
            (host.path / MARK).write_bytes(mark)
            missing = max(0, noted[0] - max(kept))
        elif reason == "restored":
            facts = {"stream": STREAM, "from": _BACKUP}
            (host.path / "restored").write_bytes(orjson.dumps(facts))
        self._crashed = False  # it may be a copy that was made while the broker ran
        last, times = max(kept), self._times(kept)
        self._off_ms = self._wall_ms - times[-1]
        gone = [time for time in self._times(records)[len(kept) :] if time]
        lost = Lost(reason, last, last, missing, self._wall_ms, gone)
        # The start that knew of a salvage is among the records that are gone.
        self._lost = [
            earlier._replace(seen=self._wall_ms, known=last + 1)
            if earlier.until == last or earlier.known > last
            else earlier
            for earlier in self._lost
        ]
        self._lost.append(lost)
        self.counts[f"log: {reason}"] += 1
        await self._judge_log(live=False)
        await self._start()

    async def _is_salvaged(self) -> None:
        records = await self._crash()
        size = self._chance.choice((1, 1, 3, 10))
        low, high = max(3, min(records)), max(records) - 1
        if low >= high:
            await self._start()
            return
        first = self._chance.randrange(low, high)
        last = min(max(records), first + size - 1)
        lost = set(range(first, last + 1))
        made = salvaged(self._folder, records, lost, self._world.mark().read())
        host = self._world.move(made)
        self._world.mark().write(max(made), decode_record(max(made), made[max(made)]).link)
        assert host.path.exists()
        times = self._times(records)
        begin = min(records)
        gone = times[first - begin : last + 1 - begin]
        self._lost = [
            one._replace(seen=0) if first <= one.known <= last else one for one in self._lost
        ]
        salvage = Lost("salvaged", first - 1, last, len(lost), self._wall_ms, gone, max(made) + 1)
        self._lost.append(salvage)
        self._crashed, self._off_ms = None, None
        self._salvages += 1
        self.counts["log: salvaged"] += 1
        await self._judge_log(live=False)
        await self._start()

    _INCIDENTS = (
        _fills,
        _vanishes,
        _is_cut_short,
        _end_store,
        _end_store,
        _end_store,
        _gets_certificate,
        _clock_jumps,
        _reload_happens,
        _restarts,
        _is_cut_off,
        _loses_its_end,
        _is_salvaged,
    )

    # What is true.

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def _wall_ms(self) -> int:
        return self._world.clock.time_ms()

    @property
    def _acked(self) -> int:
        assert self._writer is not None
        return sum(isinstance(packet, p.Puback) for packet in self._writer.received)

    @staticmethod
    def _times(records: dict[int, bytes]) -> list[int]:
        return [decode_record(number, data).time_ms for number, data in records.items()]

    def _told(self) -> list[Lost]:
        """Return what the log says of lost records, in its order.

        What was said in a record that was lost later, or cut off, is no longer in it.
        """
        first = min(self._world.disk.stream.messages)
        kept: list[Lost] = []
        for lost in self._lost:
            if lost.reason == "salvaged":
                kept = [one for one in kept if not lost.after < one.at <= lost.until]
            else:
                kept = [one for one in kept if one.at <= lost.until]
            kept.append(lost)
        return sorted((one for one in kept if one.at >= first), key=lambda one: one.at)

    def _store_settles(self) -> bool:
        return self._now - self._store_changed < _NOTICED

    def _wrong(self, what: str) -> WrongAnswerError:
        return WrongAnswerError(f"{what}; store: {self._store or 'whole'}, lost: {self._lost}")

    def _claims(self) -> Claims:
        claims = Claims()
        self._claim_store(claims)
        self._claim_certificate(claims)
        self._claim_record(claims)
        up = self._now - self._started
        if self._crashed is not False and up < HOUR + _NEAR:
            certain = self._crashed is True and up < HOUR - _NEAR
            claims.add("the broker", "started after a crash", "warning", certain=certain)
        if self._jump is not None:
            ms, _, at = self._jump
            title = f"jumped {'forward' if ms > 0 else 'back'}"
            claims.between("the clock", title, "warning", self._now - at, -DAY, HOUR)
        if self._reload is not None and self._reload[0]:
            claims.add("the broker", "did not take its new settings", "problem")
        for lost in self._told():
            age = (self._wall_ms - lost.seen) / 1000
            title = "lacks records" if lost.missing else "may lack records"
            recent = "problem" if lost.missing else "warning"
            severities = recent if age < DAY + _NEAR else ""
            severities += " notice" if age > DAY - _NEAR else ""
            if not lost.seen:
                severities = f"{recent} notice"
            claims.add(f"the log {lost.reason} {lost.after} {lost.until}", title, severities)
        return claims

    def _claim_record(self, claims: Claims) -> None:
        if self._damaged_record is not None:
            settled = self._now - self._started > _NOTICED and not self._store_settles()
            certain = settled and self._store in ("", "full")
            claims.add("the log", "is damaged", "problem", certain=certain)

    def _claim_store(self, claims: Claims) -> None:
        since, free = self._now - self._store_changed, self._world.host.free
        settled = since > _NOTICED
        troubled = "the broker", "does not serve clients fully", "problem"
        if not settled:
            claims.add(*troubled, certain=False)
            claims.add("the store", "lost files of the log", "problem", certain=False)
        elif self._store == "full":
            claims.add(*troubled)
        elif self._store:
            claims.add("the store", "lost files of the log", "problem")
        measured = self._now - self._disk_changed > _MEASURED
        if free < _LITTLE or not measured:
            claims.add("the disk", "runs out", "problem", certain=measured)

    def _claim_certificate(self, claims: Claims) -> None:
        if self._certificate_ends_ms is None:
            return
        left = (self._certificate_ends_ms - self._wall_ms) / 1000
        subject = "the certificate of [::]:8883"
        claims.between(subject, "has expired", "problem", -left, 0, float("inf"))
        claims.between(subject, "expires soon", "warning", -left, -30 * DAY, 0)

    # Answers.

    async def _judge(self) -> None:
        status = await ask(self._world, "status")
        problems = await ask(self._world, "problems")
        self._judge_status(status)
        advice = [self._comparable(entry, status) for entry in advise_on_broker(status, ())]
        advice += advise_on_certificates([status])
        advice += advise_on_disk([status], [problems])
        self.counts.update(f"{entry.subject} {entry.title}" for entry in advice)
        if wrong := self._claims().wrong(advice):
            raise self._wrong(wrong)
        for problem in problems["problems"]:
            if not self._salvages or problem["code"] != "drops" or {*problem["by"]} != {"lost"}:
                raise self._wrong(f"nothing is wrong with a client, but: {advise(problem)}")
        if problems["refusals"]:
            raise self._wrong(f"nothing was refused, but: {problems['refusals']}")
        self._judge_acknowledgements()

    def _comparable(self, entry: Advice, status: dict[str, Any]) -> Advice:
        """Return advice with a subject that names its doubt, and a title without a duration."""
        if entry.subject == "the log":
            for doubt in status["log"]["not_proven"]:
                if doubt["text"] == entry.evidence:
                    place = f"{doubt['after']} {doubt['until']}"
                    return entry._replace(subject=f"the log {doubt['reason']} {place}")
        if entry.subject == "the clock" and self._jump is not None:
            ms = abs(self._jump[0])
            if not _is_duration(entry.title.partition(" by ")[2], ms):
                raise self._wrong(f"the clock jumped by {ms} ms: {entry}")
            return entry._replace(title=entry.title.partition(" by ")[0])
        if entry.title == "did not take its new settings" and self._reload is not None:
            age_ms = (self._now - self._reload[1]) * 1000
            if not _is_duration(entry.evidence.rpartition("; ")[2].removesuffix(" ago"), age_ms):
                raise self._wrong(f"the reload failed {age_ms} ms ago: {entry}")
        return entry

    def _judge_status(self, status: dict[str, Any]) -> None:
        up_ms = (self._now - self._started) * 1000
        if abs(status["time_ms"] - status["started_ms"] - up_ms) > 3000:
            raise self._wrong(f"up for {up_ms} ms, status: {status}")
        if status["crashed_ms"] and self._off_ms is not None:
            unknown = time_off(status).startswith("an unknown time")
            near = _is_duration(time_off(status), self._off_ms)
            if not near and not (unknown and self._off_ms < 3000):
                raise self._wrong(f"off for {self._off_ms} ms: {time_off(status)}")
        if self._store_settles():
            return
        if status["ready"] is not (not self._store):
            raise self._wrong(f"ready: {status['ready']}, {status['trouble']}")
        damage = status["log"]["store_damage"]
        if self._store not in ("", "full"):
            if self._store not in damage:
                raise self._wrong(f"the store: {damage}")
        elif damage is not None:
            raise self._wrong(f"nothing is wrong with the store: {damage}")
        self._judge_record(status)
        self._judge_doubts(status["log"]["not_proven"])
        first_line, *_ = status_lines([status], _BROKERS)
        if first_line.startswith("not ready") is not bool(self._store):
            raise self._wrong(first_line)

    def _judge_record(self, status: dict[str, Any]) -> None:
        """Compare the damaged record that ``status`` and the metric name with the one there is."""
        named, number = status["log"]["damage"], self._damaged_record
        if named is not None and (number is None or not named.startswith(f"record {number} ")):
            raise self._wrong(f"record {number} is damaged, status: {named}")
        if number is not None and named is None and self._now - self._started > _NOTICED:
            raise self._wrong(f"record {number} is damaged, and not named")
        (metric,) = (each.metric for each in LOG_VALUES if each.metric.name == _DAMAGED)
        damaged = metric.read(status["log"])
        if not self._store and damaged != (named is not None):
            raise self._wrong(f"{_DAMAGED} is {damaged}: {named}")

    def _judge_doubts(self, doubts: Iterable[dict[str, Any]]) -> None:
        named = [(row["reason"], row["after"], row["until"], row["missing"]) for row in doubts]
        if named != [lost[:4] for lost in self._told()]:
            raise self._wrong(f"named as not proven: {named}")

    def _judge_acknowledgements(self) -> None:
        assert self._writer is not None
        if self._store_settles() or not self._writer.open:
            return
        if self._store and self._acked > self._acked_at_failure:
            raise self._wrong("messages are acknowledged although they cannot be stored")
        if not self._store and self._acked < self._sent:
            raise self._wrong(f"{self._sent - self._acked} messages are not acknowledged")

    @property
    def _acked_at_failure(self) -> int:
        """Return how many messages were acknowledged soon after the store had failed."""
        assert self._writer is not None
        until = self._store_changed + _NOTICED
        return sum(data[:1] == b"\x40" for at, data in self._writer.transcript if at <= until)

    # The log.

    async def _source(self, *, live: bool) -> LogSource:
        client: Any = _Asking(self._world.server, lambda: None, reads=True)
        if live:
            client.service = StateDigestService(self._world.broker.node)
        return await open_log(client, STREAM, "here", live=live, mark=self._world.mark())

    async def _log_problems(self) -> list[tuple[int, str]]:
        problems: list[tuple[int, str]] = []
        source = await self._source(live=False)
        await verify_log(source, lambda at, what: problems.append((at, what)))
        return problems

    async def _judge_log(self, *, live: bool) -> None:
        """Compare what ``log verify`` says of a log with what happened to it."""
        problems: list[tuple[int, str]] = []
        source = await self._source(live=live)
        verifier = await verify_log(source, lambda at, what: problems.append((at, what)))
        self.counts["log verify"] += 1
        messages = self._world.disk.stream.messages
        if self._cut_is_gone(dict(messages)):
            problems = [problem for problem in problems if problem[0] >= min(messages)]
        if (number := self._damaged_record) is not None:
            if {record for record, _ in problems} != {number}:
                raise self._wrong(f"record {number} is damaged, verify: {problems}")
            summary = verification_summary(verifier, len(problems), source.where)
            if not summary.startswith("damaged: "):
                raise self._wrong(f"record {number} is damaged: {summary}")
            self.counts["log verify: a damaged record"] += 1
            return
        if problems:
            raise self._wrong(f"the log is intact where it is, verify: {problems}")
        self._judge_doubts(doubt._asdict() for doubt in verifier.proof.doubts)
        self._judge_spans(verifier)
        records = dict(self._world.disk.stream.messages)
        summary = verification_summary(verifier, 0, source.where)
        if not summary.startswith(f"intact: {text.count_of(len(records), 'record')}, "):
            raise self._wrong(f"{len(records)} records: {summary}")
        self._judge_audit(records, verifier.proof.doubts)

    def _judge_spans(self, verifier: LogVerifier) -> None:
        """Check that the verdict holds for no time of which records are missing, but for others."""
        if self._set_back:
            return  # times in the log overlap
        spans = verifier.proven
        for begin, end in spans:
            claimed = [time for lost in self._lost for time in lost.times if begin < time < end]
            if claimed:
                raise self._wrong(f"records of {claimed} are missing, but proven is {spans}")
        assert verifier.first_ms is not None
        assert verifier.last_ms is not None
        if not verifier.first_ms <= spans[0][0] <= spans[-1][1] <= verifier.last_ms:
            raise self._wrong(f"records before or behind those that were read: {spans}")
        for number, data in self._world.disk.stream.messages.items():
            hidden = any(lost.after < number <= lost.until for lost in self._lost)
            record = decode_record(number, data)
            at, written = record.time_ms, record.raw_events  # a salvage writes some without events
            if written and not hidden and not any(begin <= at <= end for begin, end in spans):
                raise self._wrong(f"record {number} of {at} is intact, but proven is {spans}")

    def _judge_audit(self, records: dict[int, bytes], doubts: list[Doubt]) -> None:
        if violations := audit_plainly("sim", checked_records(records)):
            raise self._wrong(f"the audit finds {violations[:3]}")
        recorded = [doubt for doubt in doubts if doubt.at]
        if (named := audited_doubts("sim", checked_records(records))) != recorded:
            raise self._wrong(f"the audit names {named}, log verify {recorded}")

    # The state.

    async def _verify_state(self) -> tuple[bool, list[str]]:
        source = await self._source(live=True)
        outcome = await StateVerification(source, "sim", StateClient(source, "sim")).outcome()
        return outcome.equal, [*verification_lines(outcome)]

    async def _judge_state(self) -> None:
        try:
            equal, lines = await self._verify_state()
        except CorruptLog as error:
            if error.sequence != self._damaged_record:
                raise self._wrong(f"verify: {error}") from None
            return
        self.counts["verify"] += 1
        if not equal or not lines[0].startswith("equal: "):
            raise self._wrong(f"verify: {lines}")

    async def _judge_difference(self) -> None:
        """Change the state behind the log's back: ``verify`` names what differs."""
        await self._world.go(_NOTICED)
        await self._judge_state()
        state = self._world.broker.node.state.sessions.live.get("reader")
        if state is None:
            return  # it has expired
        state.last_pid += 1
        equal, lines = await self._verify_state()
        if equal or ("session 'reader'" not in lines[0] and "session reader" not in lines[0]):
            raise self._wrong(f"verify: {lines}")
        self.counts["verify: a difference"] += 1


def _is_duration(words: str, ms: float) -> bool:
    """Return whether a duration in words is one of about so many milliseconds."""
    return any(text.duration(round(ms) + near) == words for near in range(-3000, 3001))


def run_broker(seed: int, folder: Path) -> Counter[str]:
    """Run a seed; an error names it."""
    answers = BrokerRun(seed, folder)
    try:
        with errors_of_the_broker() as errors:
            counts = simulate(answers.run, WorkAtOnce)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    expected = counts["log: a damaged record"]
    unexpected = [line for line in errors if not expected or "the log is damaged" not in line]
    assert not unexpected, f"seed {seed}: {unexpected}"
    return counts
