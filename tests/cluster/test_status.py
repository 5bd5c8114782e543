"""Status messages of nodes: decoded as encoded; fields of later versions are ignored."""

import orjson
import pytest

from cluster.status import NodeStatus, Role, decode_status

STATUS = NodeStatus(
    *("n1", Role.LEADING, 3, 17, "ab" * 32, 1_700_000_000_000),
    host="h",
    pid=7,
    version="1.0",
    users="u",
    permissions="p",
    listen=["127.0.0.1:1883"],
    clients=2,
    problem="none of these",
)


def test_a_status_is_read_back() -> None:
    assert decode_status(STATUS.encode()) == STATUS


def test_additions_of_a_later_version_are_ignored() -> None:
    more = {**orjson.loads(STATUS.encode()), "partition": 3}
    assert decode_status(orjson.dumps(more)) == STATUS


def test_omissions_of_a_later_version_have_defaults() -> None:
    less = orjson.loads(STATUS.encode())
    for name in ("host", "pid", "version", "users", "permissions", "listen", "clients", "problem"):
        del less[name]
    found = decode_status(orjson.dumps(less))
    assert found == NodeStatus("n1", Role.LEADING, 3, 17, "ab" * 32, 1_700_000_000_000)


@pytest.mark.parametrize(
    "change",
    [
        {"role": "dancing"},
        {"node": 1},
        {"epoch": "3"},
        {"link": "no hex"},
        {"link": None},
        {"listen": "127.0.0.1:1883"},
    ],
    ids=str,
)
def test_a_status_that_makes_no_sense_is_none(change: dict[str, object]) -> None:
    assert decode_status(orjson.dumps({**orjson.loads(STATUS.encode()), **change})) is None


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"null", b"\xff", b'{"role": "leading"}'])
def test_an_invalid_status_is_none(data: bytes) -> None:
    assert decode_status(data) is None
