"""The messages between the nodes of a cluster, over a real NATS server."""

import pytest
from harness.waiting import happens

from eventstore.nats.cluster_messages import LeaderAnswer, NodeMessages, ask_nodes
from eventstore.nats.connection import ConnectionOptions, connect, disconnect
from eventstore.nats.direct_client import DirectClient
from eventstore.server.embedded_server import EmbeddedServer

pytestmark = pytest.mark.system


async def client_at(server: EmbeddedServer) -> DirectClient:
    return await connect(
        ConnectionOptions(urls=(server.url,), user=server.user, password=server.password)
    )


async def test_every_node_hears_every_status(server: EmbeddedServer) -> None:
    clients = [await client_at(server) for _ in range(3)]
    heard: list[list[bytes]] = [[], [], []]
    nodes = [NodeMessages(client, "c1") for client in clients]
    for node, found in zip(nodes, heard, strict=True):
        await node.listen(found.append)
    elsewhere = NodeMessages(clients[0], "c2")
    await elsewhere.publish(b"of another cluster")
    await nodes[0].publish(b"one")
    await nodes[2].publish(b"two")
    await happens(lambda: all(len(found) == 2 for found in heard))
    assert all(sorted(found) == [b"one", b"two"] for found in heard)
    for client in clients:
        await disconnect(client)


async def test_a_leader_answers_until_its_connection_ends(server: EmbeddedServer) -> None:
    asking, leading = await client_at(server), await client_at(server)
    node, leader = NodeMessages(asking, "c1"), NodeMessages(leading, "c1")
    assert await node.ask_leader(5.0) is LeaderAnswer.NONE
    await leader.answer_as_leader(lambda: b"here")
    assert await node.ask_leader(5.0) is LeaderAnswer.HERE
    await disconnect(leading)
    # The server may pass a question to the connection before it knows that it has ended.
    answers: list[LeaderAnswer] = []
    while LeaderAnswer.NONE not in answers and len(answers) < 20:
        answers.append(await node.ask_leader(0.5))
    assert answers[-1] is LeaderAnswer.NONE
    assert answers[:-1] in ([], [LeaderAnswer.SILENT])
    await disconnect(asking)


async def test_a_leader_that_does_not_answer_is_silent(server: EmbeddedServer) -> None:
    asking, standing = await client_at(server), await client_at(server)
    await standing.subscribe("foldmq.cluster.c1.leader")
    await standing.flush()
    assert await NodeMessages(asking, "c1").ask_leader(0.05) is LeaderAnswer.SILENT
    await disconnect(standing)
    await disconnect(asking)


async def test_without_a_connection_no_request_is_sent_or_kept(
    server: EmbeddedServer,
) -> None:
    client = await client_at(server)
    node = NodeMessages(client, "c1")
    await disconnect(client)
    assert not node.is_connected
    await node.publish(b"status")
    assert await node.ask_leader(0.01) is LeaderAnswer.SILENT


async def test_all_nodes_answer_a_command(server: EmbeddedServer) -> None:
    clients = [await client_at(server) for _ in range(3)]
    assert await ask_nodes(clients[2], "c1", 0.05) == []
    for number, client in enumerate(clients[:2]):
        await NodeMessages(client, "c1").answer(lambda number=number: b"%d" % number)  # type: ignore[misc]
    found: list[bytes] = []
    while len(found) < 2:
        found = await ask_nodes(clients[2], "c1", 0.1)
    assert sorted(found) == [b"0", b"1"]
    for client in clients:
        await disconnect(client)
