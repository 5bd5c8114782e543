"""Random runs with incidents, in which the answers to operators are compared with the truth."""

import inspect
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from harness.plainaudit import audit_plainly, checked_records

from cli.commands.advice import Advice, advise, merge_advice
from cli.commands.broker_advice import advise_on_broker
from eventstore.format.events import MessagePublished
from eventstore.format.positions import position
from eventstore.format.turn_parts import TurnAssembler
from projections.past.message_story import topic_of
from projections.past.story_builder import StoryBuilder
from simulation.chaos import errors_of_the_broker
from simulation.incidents import (
    ALONE,
    INCIDENTS,
    OPTIONS,
    PAST,
    PERMISSIONS,
    SILENT,
    UNREAD,
    Incident,
    Subject,
    Writer,
)
from simulation.loop import simulate
from simulation.permission_worlds import permit
from simulation.world import World

STEPS = 130
_NAMES = ("ann", "bob", "cid", "dan", "eve")
_GROUP = "$share/g/jobs"
_MEMBERS = ("m1", "m2")
_RUNNING = {SILENT}
"""Titles that other words follow."""


class WrongAnswerError(AssertionError):
    """An answer that is not true."""


class AnswersRun:
    """One random run."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.world = World(write_high=UNREAD, **OPTIONS)
        self.subjects = [Subject(self.world, name, f"s/{name}") for name in _NAMES]
        self.members = [Subject(self.world, name, "jobs", _GROUP) for name in _MEMBERS]
        self._writer = Writer(self.world)
        self._lasting: dict[str, tuple[Incident, int]] = {}
        """Subject -> its incident, and the steps that it has left."""
        self.counts: Counter[str] = Counter()
        """Incidents, and titles that were named."""
        self._jobs: list[bytes] = []

    async def run(self) -> Counter[str]:
        """Run; raise WrongAnswerError at the first answer that is not true."""
        async with self.world.running():
            permit(self.world, PERMISSIONS)
            await self._writer.connect()
            for subject in (*self.subjects, *self.members):
                await subject.connect()
            for _ in range(STEPS):
                await self._step()
            await self._judge_stories()
        self._judge_audit()
        return self.counts

    async def _step(self) -> None:
        chance = self._chance
        for subject in self.subjects:
            await self._happens(subject)
            burst = chance.random() < 0.06
            for _ in range(9 if burst else chance.random() < 0.6):
                await self._writer.publish(subject)
        await self._jobs_and_members()
        long = chance.random() < 0.04
        await self.world.go(chance.uniform(100, 700) if long else chance.uniform(0.2, 6))
        await self._judge_problems()
        await self._judge_preview(chance.choice(self.subjects))
        await self._judge_share()

    async def _happens(self, subject: Subject) -> None:
        incident, left = self._lasting.get(subject.name, (INCIDENTS[0], 0))
        if not left:
            await _done(incident.end(subject))
            await self.world.go(0.05)
            incident, left = self._chance.choice(INCIDENTS), self._chance.randrange(1, 60)
            self.counts[incident.name] += 1
            await _done(incident.begin(subject))
        else:
            await _done(incident.step(subject))
        await self.world.go(0.05)  # the broker has heard of it
        self._lasting[subject.name] = incident, left - 1

    async def _jobs_and_members(self) -> None:
        """Let a member of the share hang or come to itself, or all members leave or return."""
        chance, hanging = self._chance, self.members[1]
        if chance.random() < 0.05:
            if hanging.silent:
                hanging.answer()
            else:
                hanging.silent = True
        if chance.random() < 0.04:
            away = [member for member in self.members if not member.connected]
            for member in self.members:
                if away:
                    await _done(member.connect() if not member.connected else None)
                else:
                    member.leave()
            await self.world.go(0.05)
        if chance.random() < 0.7 and len(self._jobs) - len(self._done()) < 20:
            group = self.members[0]
            self._jobs.append(await self._writer.publish(group))
            group.sent.clear()

    def _done(self) -> set[bytes]:
        """Return the jobs that a member acknowledged."""
        return set().union(*(member.acknowledged for member in self.members))

    # Answers.

    async def _ask(self, endpoint: str, **request: Any) -> dict[str, Any]:
        return await self.world.broker.inspection.inspector.ask_for(endpoint, request)

    def _wrong(self, what: str) -> WrongAnswerError:
        now = {name: incident.name for name, (incident, _) in self._lasting.items()}
        return WrongAnswerError(f"{what}; incidents: {now}")

    async def _advice(self) -> list[Advice]:
        """Return what ``foldmq doctor`` says."""
        status = await self._ask("status")
        connected = sum(one.connected for one in (*self.subjects, *self.members)) + 1
        if status["connections"]["open"] != connected:
            raise self._wrong(f"status: {status['connections']}, but {connected} are connected")
        if told := [*advise_on_broker(status, ())]:
            raise self._wrong(f"nothing is wrong with the broker, but: {told}")
        answer = await self._ask("problems")
        if answer["refusals"]:
            raise self._wrong(f"nothing was refused, but: {answer['refusals']}")
        return [advise(one) for one in merge_advice(answer["problems"])]

    async def _judge_problems(self) -> None:
        """Compare what is named with what is true."""
        named: dict[str, set[str]] = {}
        for one in await self._advice():
            self.counts[one.title] += 1
            title = next((short for short in _RUNNING if one.title.startswith(short)), one.title)
            named.setdefault(one.subject, set()).add(title)
            if (one.severity == "notice") is not (title in PAST):
                raise self._wrong(f"{one.subject} {one.title}: a {one.severity}")
        for subject in (*self.subjects, *self.members):
            said, claims = named.pop(subject.name, set()), subject.claims()
            if missing := claims.must - said:
                raise self._wrong(f"{subject.name}: {sorted(missing)} is true, named {said}")
            if invented := said - claims.must - claims.may:
                raise self._wrong(f"{subject.name}: {sorted(invented)} is not true")
        alone = len(self._jobs) > len(self._done()) and not any(
            member.connected for member in self.members
        )
        said = named.pop(_GROUP, set())
        if alone is not (ALONE in said) or said - {ALONE}:
            raise self._wrong(f"{_GROUP}: without a member is {alone}, named {said}")
        if named:
            raise self._wrong(f"nothing is wrong with {named}")

    async def _judge_preview(self, subject: Subject) -> None:
        """Compare what would happen to a message with what then happens."""
        (row,) = (await self._ask("subscriptions", topic=subject.topic, qos=1))["rows"]
        payload = await self._writer.publish(subject)
        happened = (
            "dropped"
            if payload in subject.lost
            else "sent"
            if payload in subject.delivered
            else "queued"
        )
        self.counts[f"preview: {happened}"] += 1
        if row["why"] != happened:
            raise self._wrong(f"{subject.name}: a message would be {row['why']}, was {happened}")

    async def _judge_share(self) -> None:
        """Compare the members that a preview says do not acknowledge with those that do not."""
        (row,) = (await self._ask("subscriptions", topic="jobs", qos=1))["rows"]
        if row["why"] != "shared":
            return  # they do not get messages anyway
        stalled = {one["client"] for one in row["stalled"]}
        for member in self.members:
            claims, named = member.claims(), member.name in stalled
            self.counts["preview: a member is silent"] += named
            if not (SILENT in claims.must) <= named <= (SILENT in claims.must | claims.may):
                raise self._wrong(f"{member.name} does not acknowledge: {named} in {row}")

    async def _judge_stories(self) -> None:
        """Compare what ``why`` says about the last messages with what happened to them."""
        await self.world.go(1)
        for subject in self.subjects:
            refs = [
                position(record.sequence, index + offset)
                for record in self._records()
                for index, event in record.events()
                if isinstance(event, MessagePublished)
                for offset in range(event.count)
                if topic_of(event, offset) == subject.topic
            ]
            builder = StoryBuilder(refs[-len(subject.sent) :] if subject.sent else ())
            for record in self._records():
                builder.take(record)
            stories = [*builder.stories.values()]
            if len(stories) != len(subject.sent):
                raise self._wrong(f"why: {len(stories)} of {len(subject.sent)} messages")
            for story, payload in zip(stories, subject.sent, strict=True):
                told = [copy.outcome for copy in story.copies]
                happened = (
                    "dropped"
                    if payload in subject.lost
                    else "acknowledged"
                    if payload in subject.acknowledged
                    else "in_flight"
                    if payload in subject.delivered
                    else "queued"
                )
                self.counts[f"why: {happened}"] += 1
                if told != [happened]:
                    raise self._wrong(f"why: {payload.strip()!r} is {told}, was {happened}")

    def _records(self) -> Iterator[Any]:
        turns = TurnAssembler()
        for record in self.world.disk.decoded():
            yield from turns.take(record)[1]

    def _judge_audit(self) -> None:
        if found := audit_plainly("sim", checked_records(self.world.disk.stream.history)):
            raise self._wrong(f"the audit finds {found[:3]}")


async def _done(result: object) -> None:
    if inspect.isawaitable(result):
        await result


def run(seed: int) -> Counter[str]:
    """Run a seed; an error names it."""
    answers = AnswersRun(seed)
    try:
        with errors_of_the_broker() as errors:
            counts = simulate(answers.run)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    assert not errors, f"seed {seed}: {errors}"
    return counts
