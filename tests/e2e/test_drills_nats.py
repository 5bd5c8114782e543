"""The connection to an external NATS server breaks under load, in the middle of a record."""

import time
from collections.abc import Callable, Iterator

import pytest
from harness.broker import Broker
from harness.drill import FEW, ROUNDS, SEED, Drill
from harness.nats import Nats
from harness.proxy import Proxy

pytestmark = [pytest.mark.drill, pytest.mark.timeout(180 + 40 * ROUNDS)]


@pytest.fixture
def proxy(external: Nats) -> Iterator[Proxy]:
    made = Proxy(external.port)
    yield made
    made.close()


@pytest.mark.parametrize("direction", [0, 1], ids=["records", "answers"])
def test_connection_cut(on_external: Callable[..., Broker], proxy: Proxy, direction: int) -> None:
    broker = on_external(url=f"nats://127.0.0.1:{proxy.port}")
    broker.start()
    drill = Drill(broker, SEED)
    drill.start()

    def cut() -> None:
        size = drill.random.randrange(20_000 if direction == 0 else 1000)
        drill.notes.append(f"cut after {size} bytes")
        assert proxy.cut(direction, size, timeout=20), "hardly any records"
        time.sleep(drill.random.choice((0.0, 1.5)))
        proxy.restore()

    for _ in range(FEW):
        drill.strike(cut)
    drill.judge()
    broker.stop()
