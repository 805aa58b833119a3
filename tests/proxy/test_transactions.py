"""Transactions: ended through any proxy, and asked about over Telemetry."""

import pytest

from raftmq.proxy.places import TransactionId
from raftmq.proxy.protocol import messaging_pb2 as pb
from tests.proxy.world import Caller, World, producer

COMMIT = pb.TransactionResolution.COMMIT
ROLLBACK = pb.TransactionResolution.ROLLBACK


@pytest.fixture
async def world(tmp_path):
    settings = {"transactionTimeOut": 300, "transactionCheckInterval": 300}
    async with World(tmp_path, **settings) as world:
        await world.topic("X", kind="TRANSACTION")
        yield world


@pytest.fixture
async def caller(world):
    async with Caller(world.proxies[0]) as caller:
        yield caller


async def half(caller, body):
    sent = await caller.send("X", body, message_type=pb.MessageType.TRANSACTION)
    assert sent.status.code == pb.Code.OK and sent.transaction_id
    return sent


async def end(caller, sent, resolution, transaction_id=None):
    answer = await caller.call(
        "EndTransaction",
        topic=pb.Resource(name="X"),
        message_id=sent.message_id,
        transaction_id=transaction_id or sent.transaction_id,
        resolution=resolution,
    )
    return answer.status.code


async def test_a_committed_message_is_received_and_another_is_not(world, caller):
    kept, dropped = await half(caller, b"kept"), await half(caller, b"dropped")
    assert (await caller.receive("X")).code == pb.Code.MESSAGE_NOT_FOUND
    other = await world.add_proxy()
    async with Caller(other, client_id="c2") as through_another:
        assert await end(through_another, kept, COMMIT) == pb.Code.OK
        assert await end(through_another, dropped, ROLLBACK) == pb.Code.OK
        assert await end(caller, kept, COMMIT) == pb.Code.OK  # repeated
        assert await end(caller, kept, ROLLBACK) == pb.Code.INTERNAL_SERVER_ERROR  # too late
    (one,) = await caller.received("X")
    assert one.body == b"kept"
    assert one.system_properties.message_type == pb.MessageType.TRANSACTION
    assert (await caller.receive("X")).code == pb.Code.MESSAGE_NOT_FOUND


async def test_an_orphaned_transaction_is_asked_about(world, caller):
    stream, _ = await caller.telemetry(producer("X"))
    sent = await half(caller, b"orphan")
    command = (await stream.read()).recover_orphaned_transaction_command
    assert command.message.body == b"orphan" and command.message.topic.name == "X"
    assert command.message.system_properties.message_id == sent.message_id
    place = TransactionId.decode(command.transaction_id)  # of the half as it is stored by now
    assert place.unique_key == sent.message_id
    answer = await caller.call(
        "EndTransaction",
        topic=command.message.topic,
        message_id=sent.message_id,
        transaction_id=command.transaction_id,
        resolution=COMMIT,
        source=pb.TransactionSource.SOURCE_SERVER_CHECK,
    )
    assert answer.status.code == pb.Code.OK
    (one,) = await caller.received("X")
    assert one.body == b"orphan"


async def test_a_producer_that_comes_later_is_asked(world, caller):
    await half(caller, b"waits")
    stream, _ = await caller.telemetry(producer("X"))
    command = (await stream.read()).recover_orphaned_transaction_command
    assert command.message.body == b"waits"
    assert world.proxies[0].figures().asked == 1


async def test_a_forged_transaction_id_ends_nothing(world, caller):
    sent = await half(caller, b"mine")
    place = TransactionId.decode(sent.transaction_id)
    elsewhere = place._replace(broker_name="nowhere").encode()
    assert await end(caller, sent, COMMIT, elsewhere) == pb.Code.INVALID_RECEIPT_HANDLE
    behind = place._replace(position=place.position + 1).encode()
    assert await end(caller, sent, COMMIT, behind) != pb.Code.OK
    assert await end(caller, sent, COMMIT, "x") == pb.Code.INVALID_TRANSACTION_ID
    assert (await caller.receive("X")).code == pb.Code.MESSAGE_NOT_FOUND
