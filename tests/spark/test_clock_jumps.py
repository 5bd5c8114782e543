"""Tables that are rebuilt from a log whose clock jumped."""

import orjson
import pyarrow as pa
import pytest

from eventstore.format.events import Delivered, SessionOpened, Subscribed
from eventstore.format.positions import position
from projections.state.node_state import NodeState
from projections.state.snapshot import encode_session
from spark.jobs.session_facts import _facts_of

pytestmark = pytest.mark.plain

DAY_MS = 86_400_000


def test_packets_of_a_checkpoint_were_sent_at_a_time_of_the_clock() -> None:
    node = NodeState()
    node.apply(SessionOpened("c", resumed=False, clean=False, level=4), position(1, 0), 1000, ())
    node.apply(Subscribed("c", [("#", 1)]), position(2, 0), 2000, ())
    node.apply(Delivered("c", "#", 1, [position(3, 0)], [1], 1), position(4, 0), 4000, ())
    state = node.sessions.peek("c")
    assert state is not None
    (part,) = encode_session(state)
    row = {
        "node": "n",
        "session": "c",
        "position": position(9, 0),
        "time_ms": 9000 + DAY_MS,
        "steady_ms": 9000,
        "state": orjson.dumps(part).decode(),
        "last": True,
    }
    facts = {
        fact["type"]: fact["time_ms"] for fact in _facts_of([pa.RecordBatch.from_pylist([row])])
    }
    assert facts == {"SessionOpened": 9000 + DAY_MS, "Delivered": 4000 + DAY_MS}
