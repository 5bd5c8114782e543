"""The checks can fail: a broker that breaks one promise is caught within a few seeds."""

import asyncio
import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from actors.broker import broker
from actors.maintenance.log_quota import ArchiveHold
from actors.routing.router import Router
from actors.session.decisions import acknowledgements, queueing
from actors.session.node_context import NodeContext
from actors.session.publisher import Publisher
from eventstore.format.event_parsing import Event
from eventstore.format.events import Queued, Released, SessionClosed, Subscribed, WillCancelled
from eventstore.format.positions import INDEX_BITS
from eventstore.log.journal import Journal
from eventstore.log.log_writer import LogWriter
from projections.state.retained import RetainedIndex
from protocol.mqtt.encoder import PublishEncoder as Prepared
from simulation import chaos
from simulation.chaos import run
from simulation.delivery_ledger import matches
from simulation.mutants import sets

pytestmark = pytest.mark.plain

SEEDS = 25
"""Seeds of which at least one must catch the mutant."""
TELLING = (10, 18, 8, 9, 19, 4, 12)
"""Short runs that together caught all are tried first; the others as well, before one passes."""

LONGEST = 800.0
"""Seconds of virtual time after which a mutant's run does not end: several times what the longest
run of a broker as it is takes, and more than such a run together with all the patience it has."""

Patch = pytest.MonkeyPatch


def acknowledges_what_was_only_sent(patch: Patch) -> None:
    send = LogWriter.send

    def sent(writer: LogWriter, record: Any) -> None:
        send(writer, record)
        effects, record.effects = record.effects, []
        for effect in effects:
            writer._journal._release(effect)  # type: ignore[union-attr]

    patch.setattr(LogWriter, "send", sent)


def _forgets(patch: Patch, kind: type[Event]) -> None:
    """Apply events of a kind, and do not append them."""
    emit = NodeContext.emit

    def emitted(node: NodeContext, event: Event, *rest: Any) -> int:
        if type(event) is not kind:
            return emit(node, event, *rest)
        journal = node.journal
        at = journal._next << INDEX_BITS | journal._index
        node.state.apply(event, at, journal.steady_ms or node.clock.steady_ms())
        return at

    patch.setattr(NodeContext, "emit", emitted)


def sends_again_without_dup(patch: Patch) -> None:
    render = Prepared.render

    def rendered(prepared: Prepared, *args: Any, dup: bool = False, **more: Any) -> Any:
        return render(prepared, *args, **more)

    patch.setattr(Prepared, "render", rendered)


def delivers_qos_2_before_it_is_released(patch: Patch) -> None:
    patch.setattr(Publisher, "store", Publisher.publish)
    patch.setattr(Publisher, "release", lambda _publisher, _refs, _messages: None)


def takes_a_refusal_for_an_acknowledgement(patch: Patch) -> None:
    def on_reply(writer: LogWriter, subject: str, _data: bytes) -> None:
        writer._committed(int(subject.rpartition(".")[2]))

    patch.setattr(LogWriter, "_on_reply", on_reply)


def never_looks_for_lost_acknowledgements(patch: Patch) -> None:
    async def watch(_writer: LogWriter) -> None:
        """Watch nothing."""

    patch.setattr(LogWriter, "_watch", watch)


def sends_again_without_looking_at_the_stream(patch: Patch) -> None:
    async def align(writer: LogWriter, _seconds: float) -> None:
        """Suppose that nothing was stored."""
        while not writer._nc.is_connected:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)

    patch.setattr(LogWriter, "_align", align)


def takes_all_for_stored_after_a_disturbance(patch: Patch) -> None:
    async def align(writer: LogWriter, _seconds: float) -> None:
        journal = writer._journal
        if journal is not None and journal.pending:
            journal.committed(journal.pending[-1].sequence)

    patch.setattr(LogWriter, "_align", align)


def forgets_wills_when_it_is_started_again(patch: Patch) -> None:
    async def end(node: NodeContext) -> None:
        for name, state in list(node.state.sessions.items()):
            if state.connected:
                if state.will is not None:
                    node.emit(WillCancelled(name))
                node.emit(SessionClosed(name, "broker_restarted", state.generation))
                if state.clean:
                    node.router.remove_session(name)

    patch.setattr(broker, "end_connections", end)


def does_not_record_wills_of_qos_0(patch: Patch) -> None:
    publish = Publisher.publish_will

    def published(publisher: Publisher, packet: Any) -> None:
        if packet.qos or packet.retain:
            publish(publisher, packet)
        else:
            publisher.publish(packet)

    patch.setattr(Publisher, "publish_will", published)


def queues_twice_as_many_as_the_limit(patch: Patch) -> None:
    enqueue = queueing._enqueue

    def enqueued(*args: Any, **more: Any) -> Any:
        *rest, limits = args
        wider = limits._replace(queued_messages=2 * limits.queued_messages)
        return enqueue(*rest, wider, **more)

    patch.setattr(queueing, "_enqueue", enqueued)


def does_not_clear_retained_messages(patch: Patch) -> None:
    set_ = RetainedIndex._set

    def kept(index: RetainedIndex, message: Any, *rest: Any) -> None:
        if message.payload:
            set_(index, message, *rest)

    patch.setattr(RetainedIndex, "_set", kept)


def routes_to_the_lowest_qos(patch: Patch) -> None:
    match = Router.match

    def lowest(router: Router, topic: str) -> tuple[Any, ...]:
        return tuple(
            min(
                (
                    subscriber
                    for subscriber in router.subscribers(found.session)
                    if matches(subscriber.filter, topic)
                ),
                key=lambda one: one.qos,
            )
            for found in match(router, topic)
        )

    patch.setattr(Router, "match", lowest)


def lets_new_messages_overtake_those_that_wait(patch: Patch) -> None:
    runs = queueing.next_waiting

    def turned(*args: Any) -> Any:
        found = runs(*args)
        for one in found:
            one.refs.reverse()
        return found

    patch.setattr(queueing, "next_waiting", turned)


def uses_packet_identifiers_twice(patch: Patch) -> None:
    for module in (acknowledgements, queueing):
        patch.setattr(module, "take_packet_ids", lambda _state, count: list(range(1, count + 1)))


MUTANTS: dict[str, Callable[[Patch], None]] = {
    "acknowledges_before_it_is_durable": sets(
        Journal, "send_when_durable", lambda _journal, sink, data: sink.write(data)
    ),
    "acknowledges_what_was_only_sent": acknowledges_what_was_only_sent,
    "forgets_to_record_what_is_queued": partial(_forgets, kind=Queued),
    "forgets_to_record_what_is_released": partial(_forgets, kind=Released),
    "forgets_to_record_subscriptions": partial(_forgets, kind=Subscribed),
    "sends_again_without_dup": sends_again_without_dup,
    "delivers_qos_2_before_it_is_released": delivers_qos_2_before_it_is_released,
    "takes_a_refusal_for_an_acknowledgement": takes_a_refusal_for_an_acknowledgement,
    "never_looks_for_lost_acknowledgements": never_looks_for_lost_acknowledgements,
    "sends_again_without_looking_at_the_stream": sends_again_without_looking_at_the_stream,
    "takes_all_for_stored_after_a_disturbance": takes_all_for_stored_after_a_disturbance,
    "forgets_wills_when_it_is_started_again": forgets_wills_when_it_is_started_again,
    "does_not_record_wills_of_qos_0": does_not_record_wills_of_qos_0,
    "queues_twice_as_many_as_the_limit": queues_twice_as_many_as_the_limit,
    "does_not_clear_retained_messages": does_not_clear_retained_messages,
    "replays_nothing_retained": sets(RetainedIndex, "matching", lambda _index, _filter: iter(())),
    "does_not_route_after_a_restart": sets(Router, "restore", lambda _router, _state: None),
    "routes_to_the_lowest_qos": routes_to_the_lowest_qos,
    "ignores_the_window": sets(queueing, "room", lambda _state, _held, _window: 1000),
    "lets_new_messages_overtake_those_that_wait": lets_new_messages_overtake_those_that_wait,
    "uses_packet_identifiers_twice": uses_packet_identifiers_twice,
    "cuts_off_what_is_not_archived": sets(
        ArchiveHold, "may_delete_before", lambda _guard, _first: True
    ),
    "does_not_see_that_the_clock_is_set": sets(broker.Broker, "_check_clock", lambda _broker: None),
}
LONG = ("never_looks_for_lost_acknowledgements", "sends_again_without_looking_at_the_stream")
"""Those that take many runs until they are caught."""


def wrong(seed: int) -> str:
    """Run a seed; return what is wrong, whatever that is."""
    try:
        run(seed)
    except Exception as error:  # noqa: BLE001 - a mutant may come to anything
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.fixture(scope="module")
def healthy() -> Callable[[int], bool]:
    """Whether the broker as it is passes a seed."""
    return functools.cache(lambda seed: not wrong(seed))


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in MUTANTS],
)
@pytest.mark.slow
def test_a_broker_that_violates_a_guarantee_is_detected(
    mutant: str, healthy: Callable[[int], bool]
) -> None:
    seeds = [*TELLING, *(seed for seed in range(SEEDS) if seed not in TELLING)]
    for seed in seeds:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chaos, "_LONGEST", LONGEST)
            MUTANTS[mutant](patch)
            found = wrong(seed)
        if found and healthy(seed):
            print(f"caught by seed {seed}: {found[:2000]}")
            return
    pytest.fail(f"the broker that {mutant} passes the seeds {seeds}")
