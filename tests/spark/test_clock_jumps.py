"""Tables that are rebuilt from a log whose clock jumped."""

import orjson
import pytest

from eventstore.format.events import Delivered, SessionOpened, Subscribed
from eventstore.format.node_events import SessionSnapshot
from eventstore.format.positions import position
from projections.state.node_state import NodeState
from projections.state.snapshot import encode_session
from spark.jobs.folding import fold_session

pytestmark = pytest.mark.plain

DAY_MS = 86_400_000


def test_packets_of_a_checkpoint_were_sent_at_a_time_of_the_clock() -> None:
    node = NodeState()
    node.apply(SessionOpened("c", resumed=False, clean=False, level=4), position(1, 0), 1000, ())
    node.apply(Subscribed("c", [("#", 1)]), position(2, 0), 2000, ())
    node.apply(
        Delivered("c", "#", 1, [1], [position(3, 0)], retain=False), position(4, 0), 4000, ()
    )
    state = node.sessions.peek("c")
    assert state is not None
    (part,) = encode_session(state)
    text = orjson.dumps(SessionSnapshot("c", part)).decode()
    row = ("n", "c", position(9, 0), 9000, 9000 + DAY_MS, text, None)
    for clock, jumped_ms in ((True, DAY_MS), (False, 0)):
        folded = fold_session("c", [row], position(10, 0), clock=clock).state
        assert folded is not None
        assert [sent.sent_ms for sent in folded.inflight.values()] == [4000 + jumped_ms]
