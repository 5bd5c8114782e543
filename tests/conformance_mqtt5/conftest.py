from collections.abc import Callable, Iterator

import pytest
from harness.broker import Broker
from harness.fixtures import Address, broker, foldmq_only, make_broker, topic
from harness.mqtt5_rawclient import Clients5, OwnBroker

__all__ = ["broker", "clients", "foldmq_only", "make_broker", "own", "topic"]


@pytest.fixture
def clients(broker: Broker | Address) -> Iterator[Clients5]:
    """Clients of the shared broker."""
    made = Clients5(broker.host if isinstance(broker, Address) else "127.0.0.1", broker.port)
    yield made
    made.close()


@pytest.fixture
def own(make_broker: Callable[..., Broker]) -> Iterator[OwnBroker]:
    """Starts a broker of the test's own with this configuration; also returns its clients."""
    made: list[Clients5] = []

    def start(config: str = "") -> tuple[Broker, Clients5]:
        started = make_broker(config)
        started.start()
        made.append(Clients5("127.0.0.1", started.port))
        return started, made[-1]

    yield start
    for one in made:
        one.close()
