"""Slow readers: clients that read nothing are found, and clients that read little are spared."""

from actors.limits.slow_readers import SlowReader, SlowReaders


class Client:
    """What a connection shows of itself."""

    def __init__(self) -> None:
        self.bytes_out = 0
        self.unread = 0
        self.ended = False

    def write(self, size: int) -> None:
        self.bytes_out += size
        self.unread += size

    def take(self, size: int) -> None:
        self.unread -= size


def sweeps(
    readers: SlowReaders[Client], clients: list[Client], first: int, last: int
) -> list[SlowReader[Client]]:
    """Checks once a second; returns the clients found."""
    return [slow for now in range(first, last) for slow in readers.sweep(clients, float(now))]


def test_a_client_that_reads_nothing_is_found() -> None:
    readers: SlowReaders[Client] = SlowReaders(10.0, 0)
    stuck, idle = Client(), Client()
    stuck.write(500)
    assert sweeps(readers, [stuck, idle], 0, 10) == []
    assert sweeps(readers, [stuck, idle], 10, 12) == [SlowReader(stuck, "slow_reader", 500)]


def test_more_that_waits_is_not_more_that_is_taken() -> None:
    """TLS makes more of what is written: what is counted as taken gets smaller then."""
    readers: SlowReaders[Client] = SlowReaders(10.0, 0)
    stuck = Client()
    stuck.write(500)
    found = []
    for now in range(12):
        stuck.write(1000)
        stuck.unread += 29
        found += readers.sweep([stuck], float(now))
    assert [slow.reader for slow in found] == [stuck]


def test_a_client_that_reads_a_little_stays() -> None:
    readers: SlowReaders[Client] = SlowReaders(10.0, 0)
    slow = Client()
    slow.write(1000)
    for now in range(100):
        if now % 9 == 0:
            slow.take(1)
        assert readers.sweep([slow], float(now)) == []
    slow.take(slow.unread)
    readers.sweep([slow], 100.0)
    assert len(readers) == readers.unread == 0


def test_a_closed_connection_is_not_found() -> None:
    readers: SlowReaders[Client] = SlowReaders(10.0, 0)
    closing, gone = Client(), Client()
    for client in (closing, gone):
        client.write(500)
    readers.sweep([closing, gone], 0.0)
    closing.ended = True
    readers.forget(gone)
    readers.forget(gone)
    assert sweeps(readers, [closing], 1, 30) == []
    assert len(readers) == readers.unread == 0


def test_when_too_much_waits_for_all_the_largest_go() -> None:
    readers: SlowReaders[Client] = SlowReaders(0.0, 10_000)
    clients = [Client() for _ in range(10)]
    for number, client in enumerate(clients):
        client.write(100 + number * 200)
    assert readers.sweep(clients, 0.0) == []
    assert readers.unread == 10_000
    clients[0].write(100)
    found = readers.sweep(clients, 1.0)
    assert found == [SlowReader(clients[9], "unread_bytes", 1900)]
    assert readers.unread == 8200
    assert readers.sweep(clients[:9], 2.0) == []


def test_without_limits_no_client_is_closed() -> None:
    readers: SlowReaders[Client] = SlowReaders(0.0, 0)
    stuck = Client()
    stuck.write(1 << 40)
    assert sweeps(readers, [stuck], 0, 1000) == []


def test_a_sweep_looks_at_some_and_ten_at_all() -> None:
    readers: SlowReaders[Client] = SlowReaders(10.0, 0)
    clients = [Client() for _ in range(20_000)]
    for client in clients:
        client.write(1)
    readers.sweep(clients, 0.0)
    assert len(readers) == 2000
    sweeps(readers, clients, 1, 10)
    assert len(readers) == 20_000
