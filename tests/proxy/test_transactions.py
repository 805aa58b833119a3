"""Transactions: ended through any proxy, and asked about over Telemetry."""

import pytest

from raftmq.proxy import transactions
from raftmq.proxy.access import Access
from raftmq.proxy.clients import Clients
from raftmq.proxy.protocol import messaging_pb2 as pb
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.headers import SendHeader
from tests.instances import instances_of
from tests.present import present
from tests.proxy.test_server import ACCOUNTS, OTHER, OWN, signed, with_accounts
from tests.proxy.world import Caller, World, producer
from tests.waiting import until

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
    assert sent.status.code == pb.Code.OK and sent.transaction_id == sent.message_id
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


async def test_committed_message_is_received_and_a_rolled_back_one_is_not(world, caller):
    kept, dropped = await half(caller, b"kept"), await half(caller, b"dropped")
    assert (await caller.receive("X")).code == pb.Code.MESSAGE_NOT_FOUND
    other = await world.add_proxy()
    async with Caller(other, client_id="c2") as through_another:
        assert await end(through_another, kept, COMMIT) == pb.Code.OK
        assert await end(through_another, dropped, ROLLBACK) == pb.Code.OK
        assert await end(caller, kept, COMMIT) == pb.Code.OK  # repeated
        assert await end(caller, kept, ROLLBACK) == pb.Code.INTERNAL_SERVER_ERROR  # too late
    (one,) = await caller.received("X")
    assert one.body == b"kept" and one.user_properties["__transactionId__"] == kept.message_id
    assert one.system_properties.message_type == pb.MessageType.TRANSACTION
    assert (await caller.receive("X")).code == pb.Code.MESSAGE_NOT_FOUND


async def test_orphaned_transaction_is_checked(world, caller):
    stream, _ = await caller.telemetry(producer("X"))
    sent = await half(caller, b"orphan")
    command = (await stream.read()).recover_orphaned_transaction_command
    assert command.message.body == b"orphan" and command.message.topic.name == "X"
    assert command.message.system_properties.message_id == sent.message_id
    assert command.transaction_id == sent.message_id
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


async def test_producer_that_connects_later_is_checked(world, caller):
    await half(caller, b"waits")
    stream, _ = await caller.telemetry(producer("X"))
    command = (await stream.read()).recover_orphaned_transaction_command
    assert command.message.body == b"waits"
    assert world.proxies[0].figures().checks == 1


async def test_unknown_transaction_id_is_rejected(world, caller):
    sent = await half(caller, b"mine")
    for text in ("x", "", " ", "x" * 256):
        answer = await caller.call(
            "EndTransaction", topic=pb.Resource(name="X"), message_id=sent.message_id,
            transaction_id=text, resolution=COMMIT,
        )  # fmt: skip
        assert answer.status.code == pb.Code.INVALID_TRANSACTION_ID
    assert (await caller.receive("X")).code == pb.Code.MESSAGE_NOT_FOUND


async def test_half_message_no_longer_remembered_is_found_by_its_id(caller, monkeypatch):
    monkeypatch.setattr(transactions, "HALVES_MAX", 1)
    first, second = await half(caller, b"first"), await half(caller, b"second")
    assert await end(caller, first, COMMIT) == pb.Code.OK
    assert await end(caller, second, COMMIT) == pb.Code.OK
    bodies = {one.body for one in await caller.received("X", count=2)}
    assert bodies == {b"first", b"second"}


def test_positions_of_old_half_messages_are_removed(monkeypatch):
    monkeypatch.setattr(transactions, "HALVES_MAX", 2)
    halves = transactions.HalfPositions()
    for key in ("a", "b", "a", "c"):
        halves.remember("X", key, transactions.HalfPosition("group-a", 1, 2))
    assert [key for key in "abc" if halves.get("X", key)] == ["a", "c"]


async def test_producer_without_send_rights_is_not_checked(tmp_path, monkeypatch):
    accesses = instances_of(monkeypatch, Access)
    accounts = with_accounts(tmp_path)
    settings = {"transactionTimeOut": 300, "transactionCheckInterval": 300}
    async with World(tmp_path / "b", proxy=accounts, **settings) as world:
        await world.topic("X", kind="TRANSACTION")
        (proxy,) = world.proxies
        async with (
            Caller(proxy, client_id="spy", metadata=signed("user-key", "user-secret")) as spy,
            Caller(proxy, client_id="o", metadata=signed("other-key", "other-secret")) as other,
        ):
            await spy.telemetry(producer("X"))
            await half(other, b"secret")
            await until(lambda: proxy.figures().checks_dropped)
            assert proxy.figures().checks == 0
            stream, _ = await other.telemetry(producer("X"))
            command = (await stream.read()).recover_orphaned_transaction_command
            assert command.message.body == b"secret"
            # By the accounts of now, not by those of the time when the stream was opened.
            now_denied = ACCOUNTS.replace("PUB|SUB", "SUB")
            (tmp_path / "plain_acl.yml").write_text(now_denied)
            (access,) = accesses
            access.reload_if_changed()
            requested, unasked = proxy.figures().checks, proxy.figures().checks_dropped
            await until(lambda: proxy.figures().checks_dropped > unasked)
            assert proxy.figures().checks == requested


async def test_transaction_needs_the_right_to_send_to_its_topic(tmp_path):
    """Its producer group, by which brokers know who may end it, may be named as another topic."""
    accounts = with_accounts(tmp_path)
    async with World(tmp_path / "b", proxy=accounts) as world:
        await world.topic("X", kind="TRANSACTION")
        await world.topic("Own")
        (proxy,) = world.proxies
        broker = await world.group.leading()
        properties = "TRAN_MSG\x01true\x02PGROUP\x01Own\x02UNIQ_KEY\x01H\x02"
        header = SendHeader("Own", "X", "TBW102", 4, 0, 0x4, 1_700_000_000_000, 0, properties)
        code = RequestCode.SEND_MESSAGE_V2
        sent = await world.group.ask(broker, code, header.to_ext(code), b"half")
        assert sent.code == 0

        async def ended(caller, key="H"):
            answer = await caller.call(
                "EndTransaction", topic=pb.Resource(name="Own"), message_id="H",
                transaction_id=key, resolution=COMMIT,
            )  # fmt: skip
            return answer.status

        async with (
            Caller(proxy, client_id="u", metadata=signed("user-key", "user-secret")) as user,
            Caller(proxy, client_id="o", metadata=signed("other-key", "other-secret")) as other,
        ):
            refused = await ended(user)
            assert refused.code == pb.Code.INVALID_TRANSACTION_ID
            assert await ended(user, "unknown") == refused  # nor does it tell which there are
            assert broker.store.queues.end_of("X", 0) == 0
            assert (await ended(other)).code == pb.Code.OK
            assert broker.store.queues.end_of("X", 0) == 1


async def test_topic_without_rights_is_not_recorded_as_used(tmp_path, monkeypatch):
    clients = instances_of(monkeypatch, Clients)
    accounts = with_accounts(tmp_path)
    async with World(tmp_path / "b", proxy=accounts) as world:
        await world.topic("X")
        (proxy,) = world.proxies
        async with (
            Caller(proxy, client_id="u", metadata=signed("user-key", "user-secret")) as user,
            Caller(proxy, client_id="o", metadata=signed("other-key", "other-secret")) as other,
        ):
            requested = {"topic": {"name": "X"}, "endpoints": other.endpoints}
            await other.ok("QueryRoute", **requested)  # so that the proxy knows the answer
            await other.ok("QueryAssignment", group=OTHER, **requested)
            for group in (OWN, OTHER):
                assert (await user.receive("X", group.name)).code == pb.Code.FORBIDDEN
                answer = await user.call("QueryAssignment", group=group, **requested)
                assert answer.status.code == pb.Code.FORBIDDEN
            assert (await user.call("QueryRoute", **requested)).status.code == pb.Code.FORBIDDEN
        (known,) = clients
        assert known.find("u") is None
        assert "X" in present(known.find("o")).topics
