"""A sender with its disk, a peer, and a network between them that can all fail, without I/O."""

from collections import Counter
from functools import partial
from random import Random

from outbox.mqtt.outbound import Outbound, Outgoing, PeerLimits
from protocol.mqtt.client_packet_encoder import encode_connect
from protocol.mqtt.decoder import Decoder
from protocol.mqtt.decoder_v5 import PacketDecoderV5
from protocol.mqtt.origin_properties import Origin, split_origin
from protocol.mqtt.packets import Acks, Connect, PacketType, Publish, Publishes

BATCH = 7


class ModelPeer:
    """A broker: it takes a message at QoS 2 at its PUBLISH, or at its release."""

    def __init__(self, *, at_release: bool) -> None:
        self.taken: list[int] = []
        self.has_session = False
        self._at_release = at_release
        self._unreleased: dict[int, int] = {}
        self.refusing: frozenset[int] = frozenset()
        self._through = 0
        """Origin of the last message at QoS 1 that had one: it survives the session."""

    def lose_session(self) -> None:
        self.has_session = False
        self._unreleased.clear()

    def publish(self, message: Publish) -> tuple[PacketType, int, int]:
        number = int(message.payload)
        kind = PacketType.PUBREC if message.qos == 2 else PacketType.PUBACK
        if number in self.refusing:
            return kind, message.packet_id, 0x87
        if message.qos == 1:
            origin, _ = split_origin(message.block)
            if origin is None or origin.at > self._through:
                self.taken.append(number)
            self._through = max(self._through, origin.at if origin is not None else 0)
        elif message.packet_id not in self._unreleased:
            self._unreleased[message.packet_id] = number
            if not self._at_release:
                self.taken.append(number)
        return kind, message.packet_id, 0

    def release(self, packet_id: int) -> tuple[PacketType, int, int]:
        number = self._unreleased.pop(packet_id, None)
        if number is not None and self._at_release:
            self.taken.append(number)
        return PacketType.PUBCOMP, packet_id, 0 if number is not None else 0x92


class World:
    """Messages 1 to ``count`` in a log, on their way to a peer."""

    is_foldmq = False

    def __init__(self, random: Random, count: int, qos: list[int], kind: type[Outbound]) -> None:
        self.random = random
        self.qos = qos
        self.count = count
        self.expired: set[int] = set()
        self.refused: set[int] = set()
        self.peer = ModelPeer(at_release=random.random() < 0.5)
        self.losses = self.crashes = self.cuts = 0
        self.through = self.received = 0  # on disk: a number, a position
        self._kind = kind
        self._to_peer: list[Publish | int] = []
        self._to_sender: list[tuple[PacketType, int, int]] = []
        self._online = False
        self._recording: int | None = None
        self.reorders = False
        self.start()

    def start(self) -> None:
        """Start the sender, from its disk."""
        self.outbound = self._kind(self.through, self.through * 10, self.received)
        self._batch: list[int] = []
        self._online = False
        self._recording = None
        self._to_peer.clear()
        self._to_sender.clear()

    @property
    def done(self) -> bool:
        return self.through >= self.count

    def connect(self) -> None:
        if self._online:
            return
        if self.outbound.needs_clean_session and self.cleans:
            self.peer.lose_session()
        self._online = True
        self.outbound.connected(
            PeerLimits(
                5 if self.is_foldmq else 4,
                self.random.choice([1, 3, 20]),
                takes_origins=self.is_foldmq,
            ),
            session_present=self.peer.has_session,
        )
        self.peer.has_session = True
        self._decoder = Decoder(1024, v5=partial(PacketDecoderV5, 0))
        self._decoder.feed(encode_connect(Connect(5 if self.is_foldmq else 4, "a", True, 0)))

    cleans = True

    def cut(self) -> None:
        """Lose the connection, and what is on its way."""
        self.cuts += self._online
        self._online = False
        self.outbound.disconnected()
        self._to_peer.clear()
        self._to_sender.clear()

    def lose_session(self) -> None:
        self.cut()
        self.losses += self.peer.has_session
        self.peer.lose_session()

    def crash(self) -> None:
        """Kill the sender, but not while it records that the session is lost.

        Those two failures within the same moment are the one gap: see DESIGN.md.
        """
        position = self.outbound.to_record()
        if position is not None and position <= max(self.through * 10, 1):
            self.received = position
        self.cut()
        self.crashes += 1
        self.start()

    def work(self) -> None:
        """One step of the runner."""
        if not self._batch:
            due = range(self.through + 1, self.count + 1)
            self._batch = [number for number in due if number not in self.refused][:BATCH]
            if not self._batch:
                self.through = self.count
                return
            self._offer()
        if self._recording is None:
            self._recording = self.outbound.to_record()
        if self.outbound.is_settled and self._online and self._recording is None:
            refusals = self.outbound.take_refusals()
            if refusals:
                self.refused.update(refusal.at // 10 for refusal in refusals)
                self._offer()
            else:
                self.through = self._batch[-1]
                self._batch = []

    def _offer(self) -> None:
        self.outbound.offer(
            Outgoing(
                *(number, number * 10, b"t", str(number).encode(), self.qos[number - 1]),
                origin=Origin(number * 10, number * 10, number),
            )
            for number in self._batch
            if number not in self.expired | self.refused
        )

    def finish_record(self) -> None:
        """What was to be recorded is on disk; the sender learns of it."""
        if self._recording is not None:
            self.received = self._recording
            self.outbound.recorded(self._recording)
            self._recording = None

    def send(self) -> None:
        if self._online:
            for packet in self._decoder.feed(self.outbound.packets()):
                if isinstance(packet, Publishes):
                    self._to_peer += packet
                elif isinstance(packet, Acks):
                    assert packet.kind is PacketType.PUBREL
                    self._to_peer += packet.packet_ids
            assert self._decoder.error is None

    def receive_at_peer(self) -> None:
        if self._to_peer:
            packet = self._to_peer.pop(0)
            answer = (
                self.peer.release(packet) if isinstance(packet, int) else self.peer.publish(packet)
            )
            self._to_sender.append(answer)

    def receive_at_sender(self) -> None:
        if self._to_sender:
            at = self.random.randrange(len(self._to_sender)) if self.reorders else 0
            kind, packet_id, reason = self._to_sender.pop(at)
            self.outbound.acknowledged(kind, [packet_id], [reason])

    def expire(self) -> None:
        self.expired.add(self.random.randint(1, self.count))

    def finish(self) -> None:
        """Send all that is left, without failures."""
        for _ in range(200 * self.count):
            if self.done:
                return
            for step in (
                *(self.connect, self.work, self.finish_record, self.send),
                *(self.receive_at_peer, self.receive_at_sender),
            ):
                step()
        raise AssertionError("the sender is stuck")


class FoldmqWorld(World):
    """The peer is a foldmq: it knows messages at QoS 1 by their origins."""

    is_foldmq = True


def run(seed: int, kind: type[Outbound] = Outbound, *, world: type[World] = World) -> World:
    """Run a random world to its end, and check what the peer got."""
    random = Random(seed)
    count = random.choice([1, 5, 30])
    qos = [random.choice([1, 2]) for _ in range(count)]
    if random.random() < 0.3:
        qos = [2] * count
    state = world(random, count, qos, kind)
    state.reorders = random.random() < 0.2
    if random.random() < 0.3:
        state.peer.refusing = frozenset(random.sample(range(1, count + 1), 1))
    usual = [
        *(state.connect, state.work, state.work, state.finish_record, state.send, state.send),
        *(state.receive_at_peer, state.receive_at_peer, state.receive_at_sender),
        *(state.receive_at_sender,),
    ]
    failures = [state.cut, state.crash]
    if random.random() < 0.3:
        failures.append(state.lose_session)
    if random.random() < 0.3:
        failures.append(state.expire)
    rate = random.choice([0.01, 0.05, 0.2])
    for _ in range(random.choice([50, 400])):
        random.choice(failures if random.random() < rate else usual)()
    state.finish()
    check(state)
    return state


def check(state: World) -> None:
    """Check that nothing is lost, and nothing taken twice that may not be."""
    times = Counter(state.peer.taken)
    for number in range(1, state.count + 1):
        if number not in state.refused | state.expired:
            assert times[number] >= 1, f"message {number} is lost"
        if number in state.peer.refusing:
            assert not times[number]
        interruptions = state.losses
        if state.qos[number - 1] == 1 and state.is_foldmq:
            interruptions = 0
        elif state.qos[number - 1] == 1:
            interruptions += state.cuts + state.crashes
        assert times[number] <= 1 + interruptions, (
            f"message {number} is taken {times[number]} times"
        )
    if state.peer.refusing - state.expired:
        assert state.refused == state.peer.refusing - state.expired or state.crashes
    if not (state.losses or state.cuts or state.crashes or state.refused or state.reorders):
        for qos in (1, 2):
            of_qos = [number for number in state.peer.taken if state.qos[number - 1] == qos]
            assert of_qos == sorted(of_qos)
