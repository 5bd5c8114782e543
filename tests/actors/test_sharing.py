"""The choice of the member of a shared subscription for each message: pure decisions."""

import random

import pytest

from actors.routing.shared_groups import SharedGroup
from actors.routing.subscriber import Subscriber
from actors.session.decisions.sharing import requeued, shared_in_flight
from actors.sharing.member_choice import CHOICES, Assignment, Rows, first_ones
from eventstore.format.events import Delivered, Subscribed
from eventstore.format.positions import from_runs
from eventstore.log.message_store import Message
from projections.state.session import SessionState, SubscriptionState, evolve
from projections.state.waiting_queue import WaitingQueue


def plain(found: Assignment) -> tuple[list[list[int]], list[int], list[int]]:
    return [[*piece] for piece in found.pieces], [*found.waiting], [*found.refused]


def balanced(count: int, rows: Rows) -> Assignment:
    return CHOICES["balanced"].assign([b"t"] * count, rows)


def test_each_member_gets_a_piece_in_proportion_to_its_room() -> None:
    assert plain(balanced(8, Rows([1, 2, 5]))) == ([[0], [1, 2], [3, 4, 5, 6, 7]], [], [])
    assert plain(balanced(4, Rows([10, 10]))) == ([[0, 1], [2, 3]], [], [])


def test_one_message_goes_to_the_first_member_with_room() -> None:
    assert plain(balanced(1, Rows([0, 3, 9]))) == ([[], [0], []], [], [])


def test_a_message_waits_until_a_member_has_room() -> None:
    assert plain(balanced(5, Rows([1, 2]))) == ([[0], [1, 2]], [3, 4], [])
    assert plain(balanced(2, Rows([]))) == ([], [0, 1], [])


def test_a_member_gets_nothing_that_it_is_barred_from() -> None:
    rows = Rows([2, 2], [{0, 1, 4}, {0}])
    assert plain(balanced(5, rows)) == ([[2, 3], [1, 4]], [], [0])


@pytest.mark.parametrize("seed", range(50))
def test_every_message_is_assigned_once_or_waits_or_is_refused(seed: int) -> None:
    chance = random.Random(seed)
    count, members = chance.randint(1, 40), chance.randint(1, 6)
    rooms = [chance.choice([0, 1, 5, 100]) for _ in range(members)]
    barred = [
        {at for at in range(count) if chance.random() < chance.choice([0.0, 0.5, 1.0])}
        for _ in range(members)
    ]
    topics = [b"%d" % chance.randint(0, 5) for _ in range(count)]
    rows = Rows(rooms, chance.choice([[], barred]))
    for found in (CHOICES["balanced"].assign(topics, rows), CHOICES["topic"].assign(topics, rows)):
        pieces, waiting, refused = plain(found)
        everything = [*waiting, *refused, *(at for piece in pieces for at in piece)]
        assert sorted(everything) == [*range(count)]
        for piece, room, out in zip(pieces, rooms, rows.barred or [set()] * members, strict=True):
            assert len(piece) <= room
            assert piece == sorted(piece)
            assert out.isdisjoint(piece)
        if not any(rows.barred):
            assert not refused
        head, _, gone = plain(first_ones(found))
        taken = sorted([*gone, *(at for piece in head for at in piece)])
        assert taken == [*range(len(taken))]
        assert taken or waiting[:1] == [0]


def test_a_topic_goes_to_the_same_member_and_waits_for_it() -> None:
    topics = [b"a", b"b", b"c", b"a", b"b", b"c"]
    pieces, waiting, _ = plain(CHOICES["topic"].assign(topics, Rows([9, 9])))
    owner = {topics[at]: number for number, piece in enumerate(pieces) for at in piece}
    assert not waiting
    for number, piece in enumerate(pieces):
        assert all(owner[topics[at]] == number for at in piece)
    rooms = [9, 9]
    rooms[owner[b"a"]] = 0
    assert plain(CHOICES["topic"].assign(topics, Rows(rooms))) == ([[], []], [*range(6)], [])


@pytest.mark.parametrize("seed", range(50))
def test_returned_messages_are_in_order(seed: int) -> None:
    chance = random.Random(seed)
    refs = chance.sample(range(1, 100), 30)
    queue = WaitingQueue()
    queue.extend(sorted(refs[:15]), 1)
    held = SubscriptionState("a", 2, queue=queue)
    messages = {ref: Message(b"t", b"x" * ref) for ref in refs[15:]}
    for event in requeued("$share/g/a", held, "a", messages):
        assert event.size == sum(from_runs(event.refs))
        queue.insert(event.behind, event.refs, event.qos)
    assert [*queue.refs()] == sorted(refs)


def test_members_are_served_in_the_order_of_their_names_behind_the_last_one() -> None:
    chance, group = random.Random(1), SharedGroup()
    for _ in range(500):
        name = f"m{chance.randrange(30)}"
        if chance.random() < 0.6:
            group.connected(Subscriber(name, "$share/g/a", 1))
        else:
            group.disconnected(name)
        group.last_served = f"m{chance.randrange(30)}"
        names = sorted(group.online)
        assert [one.session for one in group.ordered()] == names
        behind = [name for name in names if name > group.last_served]
        rotated = [*behind, *(name for name in names if name <= group.last_served)]
        assert [one.session for one in group.rotated()] == rotated


def test_only_the_requested_number_of_members_is_examined() -> None:
    class Online(dict[str, Subscriber]):
        looked = 0

        def __getitem__(self, name: str) -> Subscriber:
            self.looked += 1
            return super().__getitem__(name)

    group = SharedGroup()
    group.online = online = Online()
    for number in range(1000):
        group.connected(Subscriber(f"m{number}", "$share/g/a", 1))
    assert next(group.rotated()).session == "m0"
    assert online.looked == 1


def test_only_shared_deliveries_are_scanned() -> None:
    class Table(dict):  # type: ignore[type-arg]
        looked = 0

        def items(self):  # type: ignore[no-untyped-def]
            self.looked += 1
            return super().items()

    state = SessionState("m1")
    state.inflight = table = Table()
    evolve(state, Subscribed("m1", [("$share/g/a", 1), ("a", 1)]), 1, 0)
    evolve(state, Delivered("m1", "a", 1, [1], [10]), 2, 0)
    assert not shared_in_flight(state)
    assert not table.looked
    evolve(state, Delivered("m1", "$share/g/a", 1, [2], [11]), 3, 0)
    assert shared_in_flight(state) == {"$share/g/a": [2]}
