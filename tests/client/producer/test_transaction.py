"""The transaction producer against a scripted cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from raftmq.client import Message, MessageExt, SendConfig, SendFailed, SendStatus
from raftmq.client.errors import ClientClosed, InvalidMessage
from raftmq.client.producer.transaction import TransactionProducer, TransactionState
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import CheckTransactionHeader, EndTransactionHeader, SendHeader
from raftmq.store.properties import decode_properties
from tests.client.fakes import FakeBroker, FakeCluster
from tests.waiting import until

QUICK = SendConfig(attempt_timeout_ms=150, scout_timeout_ms=100, silence_ms=100)
END = RequestCode.END_TRANSACTION


class Listener:
    """Decides what it is told to decide."""

    def __init__(self, state: TransactionState = TransactionState.COMMIT) -> None:
        self.state = state
        self.executed: list[tuple[str, Any]] = []
        self.checked: list[MessageExt] = []
        self.failure: Exception | None = None
        self.during: Any = None

    async def execute(self, message: Message, arg: Any) -> TransactionState:
        assert message.unique_key is not None
        self.executed.append((message.unique_key, arg))
        if self.during is not None:
            await self.during()
        if self.failure is not None:
            raise self.failure
        return self.state

    def check(self, message: MessageExt) -> TransactionState:
        self.checked.append(message)
        if self.failure is not None:
            raise self.failure
        return self.state


def producer_of(cluster: FakeCluster, listener: Listener) -> TransactionProducer:
    return TransactionProducer("tp", cluster.namesrv, listener, config=QUICK)


def ends(broker: FakeBroker) -> list[EndTransactionHeader]:
    return [EndTransactionHeader.parse(request.ext) for request in broker.received(END)]


@pytest.mark.parametrize("state", [TransactionState.COMMIT, TransactionState.ROLLBACK])
async def test_half_message_is_sent_before_the_decision(state: TransactionState) -> None:
    async with FakeCluster({"g0": 3}) as cluster:
        listener = Listener(state)
        async with producer_of(cluster, listener) as producer:
            await producer.send(Message("T", b"plain"))
            result = await producer.send_in_transaction(Message("T", b"half", tags="A"), 42)
        broker = cluster.brokers["g0"][0]
        sent = SendHeader.parse(broker.received(RequestCode.SEND_MESSAGE_V2)[-1].ext)
        assert sent.sys_flag & 0xC == 0x4
        properties = decode_properties(sent.properties)
        assert properties["TRAN_MSG"] == "true" and properties["PGROUP"] == "tp"
        assert result.state is state and result.confirmed
        assert listener.executed == [(result.half.msg_id, 42)]
        (end,) = ends(broker)
        assert not broker.received(END)[0].is_oneway
        assert end == EndTransactionHeader(
            "tp",
            result.half.queue_offset,
            int(result.half.offset_msg_id[16:], 16),
            int(state),
            result.half.msg_id,
            result.half.msg_id,
            False,
            "T",
        )


async def test_unknown_decision_is_left_to_the_check() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        listener = Listener(TransactionState.UNKNOWN)
        async with producer_of(cluster, listener) as producer:
            result = await producer.send_in_transaction(Message("T", b"half"))
            assert not result.confirmed
            listener.failure = RuntimeError("half way")
            with pytest.raises(RuntimeError, match="half way"):
                await producer.send_in_transaction(Message("T", b"half"))
        assert ends(cluster.brokers["g0"][0]) == []


async def test_failed_half_message_executes_no_local_transaction() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        listener = Listener()
        cluster.brokers["g0"][0].mode = (13, "no")
        async with producer_of(cluster, listener) as producer:
            with pytest.raises(SendFailed):
                await producer.send_in_transaction(Message("T", b"half"))
            with pytest.raises(InvalidMessage):
                await producer.send_in_transaction(Message("T", b"half", delay_level=1))
        assert listener.executed == []


async def test_half_message_with_a_replication_status_is_rolled_back_unexecuted() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        listener = Listener()
        cluster.brokers["g0"][0].script.append((int(SendStatus.FLUSH_DISK_TIMEOUT), "slow"))
        async with producer_of(cluster, listener) as producer:
            result = await producer.send_in_transaction(Message("T", b"half"))
        assert result.state is TransactionState.ROLLBACK and result.confirmed
        assert listener.executed == []
        assert [end.decision for end in ends(cluster.brokers["g0"][0])] == [12]


async def test_transaction_decision_follows_the_leader() -> None:
    """The leader dies between the half message and the decision."""
    async with FakeCluster({"g0": 3}) as cluster:
        listener = Listener()

        async def kill() -> None:
            cluster.lead("g0", 1, tell_route=True)
            await cluster.brokers["g0"][0].stop()

        listener.during = kill
        async with producer_of(cluster, listener) as producer:
            result = await producer.send_in_transaction(Message("T", b"half"))
        assert result.confirmed
        assert [end.decision for end in ends(cluster.brokers["g0"][1])] == [8]


@pytest.mark.parametrize("mode", ["close", (1, "[OUTCOME_UNKNOWN] quorum"), (4, "no such half")])
async def test_decision_that_may_have_arrived_is_not_repeated(mode: Any) -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        broker = cluster.brokers["g0"][0]
        broker.scripts[END].append(mode)
        async with producer_of(cluster, Listener()) as producer:
            result = await producer.send_in_transaction(Message("T", b"half"))
        assert result.state is TransactionState.COMMIT and not result.confirmed
        assert len(ends(broker)) == 1


def check_back(cluster: FakeCluster, group: str = "tp") -> RemotingCommand:
    log = cluster.logs["g0"]
    properties = f"UNIQ_KEY\x01{'A' * 32}\x02PGROUP\x01{group}\x02TRAN_MSG\x01true\x02"
    log.append("T", 1, b"half", properties)
    header = CheckTransactionHeader(7, 4711, "A" * 32, "A" * 32, "B" * 32)
    code = RequestCode.CHECK_TRANSACTION_STATE
    return RemotingCommand.request(code, header.to_ext(), log.records[("T", 1)][-1])


@pytest.mark.parametrize("state", list(TransactionState))
async def test_transaction_checks_are_answered(state: TransactionState) -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        listener = Listener(state)
        broker = cluster.brokers["g0"][0]
        async with producer_of(cluster, listener) as producer:
            await producer.send(Message("T", b"x"))  # connects
            await until(lambda: broker.connections)
            broker.push(check_back(cluster))
            await until(lambda: ends(broker))
        (end,) = ends(broker)
        assert broker.received(END)[0].is_oneway
        assert end == EndTransactionHeader("tp", 7, 4711, int(state), "A" * 32, "A" * 32, True, "T")
        assert listener.checked[0].body == b"half" and producer.checked == 1


async def stop_in_a_task(producer: TransactionProducer) -> None:
    await asyncio.create_task(producer.stop())


@pytest.mark.parametrize("stop", [TransactionProducer.stop, stop_in_a_task])
async def test_transaction_check_may_stop_its_producer(
    stop: Callable[[TransactionProducer], Awaitable[None]],
) -> None:
    """It is answered all the same; a stop by somebody else does not wait for it."""

    class Stopping(Listener):
        async def check(self, message: MessageExt) -> TransactionState:  # type: ignore[override]
            await stop(producer)
            self.checked.append(message)
            await goes_on.wait()
            return self.state

    async with FakeCluster({"g0": 1}) as cluster:
        listener, broker = Stopping(), cluster.brokers["g0"][0]
        producer = producer_of(cluster, listener)
        for stops, returns in enumerate((True, False)):
            goes_on = asyncio.Event()
            await producer.start()
            await producer.send(Message("T", b"x"))
            broker.push(check_back(cluster))
            await until(lambda: listener.checked)
            listener.checked.clear()
            if returns:
                goes_on.set()
                await until(lambda: broker.count(RequestCode.UNREGISTER_CLIENT))
            await producer.stop()
            assert broker.count(RequestCode.UNREGISTER_CLIENT) == stops + 1
            with pytest.raises(ClientClosed):
                await producer.send(Message("T", b"x"))
        assert [end.decision for end in ends(broker)] == [8]


async def test_raising_check_is_answered_unknown_and_foreign_groups_not_at_all() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        listener = Listener()
        listener.failure = RuntimeError("data base is away")
        broker = cluster.brokers["g0"][0]
        async with producer_of(cluster, listener) as producer:
            await producer.send(Message("T", b"x"))
            broker.push(check_back(cluster, "another"))
            broker.push(check_back(cluster))
            await until(lambda: ends(broker))
            assert [end.decision for end in ends(broker)] == [0]
            assert len(listener.checked) == 1


async def test_checks_beyond_the_limit_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        listener = Listener()
        async with producer_of(cluster, listener) as producer:
            await producer.send(Message("T", b"x"))
            broker = cluster.brokers["g0"][0]
            monkeypatch.setattr("raftmq.client.producer.transaction.CHECKS_MAX", 0)
            broker.push(check_back(cluster))
            await producer.send(Message("T", b"behind the check"))
            monkeypatch.undo()
            broker.push(check_back(cluster))
            await until(lambda: ends(broker))
            assert len(listener.checked) == 1
