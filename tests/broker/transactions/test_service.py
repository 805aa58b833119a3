"""Transactions against brokers: committed once, rolled back, checked, given up; over failovers."""

import asyncio

import pytest

from raftmq.broker.errors import busy
from raftmq.broker.messages import half_message
from raftmq.broker.messages.half_message import (
    GIVEN_UP_TOPIC,
    GROUP,
    HALF_TOPIC,
    OP_TOPIC,
)
from raftmq.broker.send import internal_producer as inside
from raftmq.broker.transactions import service
from raftmq.broker.transactions.book import COMMIT, ROLLBACK
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import (
    CheckTransactionHeader,
    EndTransactionHeader,
    SendHeader,
    SendResponseHeader,
)
from raftmq.store.dispatch import SCHEDULE_TOPIC, TIMER_TOPIC
from raftmq.store.properties import decode_properties
from raftmq.store.record import decode_offset_message_id, decode_record, pack_host, walk_records
from tests.broker.cluster import Group
from tests.broker.replication.ha.pair import Classic
from tests.waiting import until

# No half is asked about, and so stored again, however long a slow machine is at it.
UNASKED = {"transactionTimeOut": 3_600_000}
HALF_BY_HTTP = "TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01H\x02"


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A new leader may take its time to read what transactions there are."""
    monkeypatch.setattr(service, "WAIT_S", 60.0)


class Sent:
    """A half message as its producer knows it."""

    def __init__(self, key, answer):
        assert answer.code == 0, answer.remark
        header = SendResponseHeader.parse(answer.ext)
        self.key = key
        self.queue_id = header.queue_id
        self.offset = header.queue_offset
        self.position = decode_offset_message_id(header.message_id)[1]


async def half(group, broker, key, topic="Orders", queue=1, client=None, **more):
    properties = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": key, "TAGS": "t", **more}
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    header = SendHeader("pg", topic, "TBW102", 4, queue, 0x4, 1_700_000_000_000, 0, text)
    command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header.to_ext(310), key.encode())
    answer = await (client or group.client).invoke(broker.address, command, 60_000)
    return Sent(key, answer)


async def end(group, broker, sent, decision, producers="pg", **changes):
    header = EndTransactionHeader(
        producers, sent.offset, sent.position, decision, sent.key, sent.key
    )
    return await group.ask(broker, RequestCode.END_TRANSACTION, header._replace(**changes).to_ext())


def records(broker, topic, queue=1):
    messages = broker.store.reads.get_messages(topic, queue, 0, 1000, 1 << 22)
    data = b"".join(messages.buffers)
    return [decode_record(data, at) for at, _ in walk_records(data)]


def bodies(broker, topic="Orders", queue=1):
    return [record.body.decode() for record in records(broker, topic, queue)]


async def test_half_message_is_delivered_once_it_is_committed(tmp_path):
    async with Group(tmp_path, **UNASKED) as group:
        broker = await group.leading()
        await group.create_topic(broker, "Orders")
        committed = await half(group, broker, "A", KEYS="k")
        rolled_back = await half(group, broker, "B")
        assert (committed.queue_id, committed.offset, rolled_back.offset) == (1, 0, 1)
        assert bodies(broker) == []
        assert bodies(broker, HALF_TOPIC, 0) == ["A", "B"]
        assert (await end(group, broker, committed, 0)).code == 0  # not decided yet
        assert broker.halves.open_count in (0, 1, 2)  # as far as it has been read
        for _ in range(2):  # the second time it has ended so already
            assert (await end(group, broker, committed, COMMIT)).code == 0
            assert (await end(group, broker, rolled_back, ROLLBACK)).code == 0
        assert bodies(broker) == ["A"]
        (message,) = records(broker, "Orders")
        assert (message.sys_flag & 0xC, message.prepared_transaction_offset) == (
            8,
            committed.position,
        )
        assert decode_properties(message.properties) | {"KEYS": "k", "TAGS": "t"} == (
            decode_properties(message.properties)
        )
        assert bodies(broker, OP_TOPIC, 0) == ["0", "1"]
        assert broker.halves.open_count == 0
        counts = broker.transactions.counts
        assert (counts.committed, counts.rolled_back) == (1, 1)

        late = await end(group, broker, committed, ROLLBACK)
        assert late.code == ResponseCode.SYSTEM_ERROR
        assert "[ENDED] the transaction was committed" in late.remark


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
async def test_half_message_copied_from_another_ends_only_itself(tmp_path, decision):
    async with Group(tmp_path, count=1, **UNASKED) as group:
        broker = await group.leading()
        for topic in ("Orders", "Copies"):
            await group.create_topic(broker, topic)
        first = await half(group, broker, "A")
        copied = {"TRAN_PREPARED_QUEUE_OFFSET": str(first.offset)}
        copy = await half(group, broker, "A", topic="Copies", **copied)
        for _ in range(2):  # a repeated end, too, means the copy
            assert (await end(group, broker, copy, decision)).code == 0
        assert bodies(broker) == []
        assert (await end(group, broker, first, COMMIT)).code == 0
        assert bodies(broker) == ["A"]
        assert bodies(broker, "Copies") == (["A"] if decision == COMMIT else [])


async def test_end_of_an_invalid_half_message_is_rejected(tmp_path):
    async with Group(tmp_path, **UNASKED) as group:
        broker = await group.leading()
        await group.create_topic(broker, "Orders")
        sent = await half(group, broker, "A")
        answers = [
            await end(group, broker, sent, COMMIT, producers="others"),
            await end(group, broker, sent, COMMIT, half_queue_offset=7),
            await end(group, broker, sent, COMMIT, commitlog_offset=sent.position + 1),
            await end(group, broker, sent, COMMIT, commitlog_offset=1 << 40),
            await end(group, broker, sent, 5),
        ]
        assert all(answer.code != 0 for answer in answers)
        assert bodies(broker) == []
        unreachable = SendHeader("pg", "Orders", "TBW102", 4, 1, 0x4, 5, 0, HALF_BY_HTTP)
        code, _ = await inside.send(broker.sends, unreachable, b"H", pack_host(("10.0.0.9", 1)))
        assert code == 0
        assert broker.halves.senders["pg"].is_open  # who sent the first one
        nobody = await group.send(broker, "Orders", properties="TRAN_MSG\x01true\x02")
        assert (nobody.code, "PGROUP" in nobody.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)


async def test_rejected_one_way_transaction_end_is_logged(tmp_path, caplog):
    """Clients of Apache end one-way: they are asked again later, and never hear why."""
    caplog.set_level("INFO", service.log.name)
    async with Group(tmp_path, **UNASKED) as group:
        broker = await group.leading()
        await group.create_topic(broker, "Orders")
        sent = await half(group, broker, "A")
        header = EndTransactionHeader("others", sent.offset, sent.position, COMMIT, "A", "A")
        command = RemotingCommand.request(RequestCode.END_TRANSACTION, header.to_ext())
        await group.client.invoke_oneway(broker.address, command)
        await until(lambda: "transaction_end_refused group=others: " in caplog.text)
        assert bodies(broker) == []


@pytest.mark.parametrize("patience_ms", [60_000, 0])
async def test_one_way_transaction_end_waits_for_space(tmp_path, monkeypatch, caplog, patience_ms):
    caplog.set_level("INFO", service.log.name)
    monkeypatch.setattr(service, "BUSY_MS_MAX", patience_ms)
    async with Group(tmp_path, **UNASKED) as group:
        broker = await group.leading()
        await group.create_topic(broker, "Orders")
        sent = await half(group, broker, "A")
        store, tries = broker.sends.store, []

        def full_for_a_while(*args):
            tries.append(args)
            if len(tries) <= 3:
                raise busy("no room, says the test")
            store(*args)

        monkeypatch.setattr(broker.sends, "store", full_for_a_while)
        answer = await end(group, broker, sent, COMMIT)
        assert (answer.code, len(tries)) == (ResponseCode.SYSTEM_BUSY, 1)
        header = EndTransactionHeader("pg", sent.offset, sent.position, COMMIT, "A", "A")
        command = RemotingCommand.request(RequestCode.END_TRANSACTION, header.to_ext())
        await group.client.invoke_oneway(broker.address, command)
        if patience_ms:
            await until(lambda: bodies(broker) == ["A"])
            assert len(tries) == 4
        else:
            await until(lambda: "transaction_end_refused group=pg: [BUSY] no room" in caplog.text)
            assert len(tries) == 2


async def test_waiting_transaction_end_continues_after_a_leader_change(tmp_path, monkeypatch):
    async with Group(tmp_path, **UNASKED) as group:
        broker = await group.leading()
        await group.create_topic(broker, "Orders")
        sent = await half(group, broker, "A")
        transactions, held = broker.transactions, []
        with monkeypatch.context() as for_now:
            for_now.setattr(broker.sends, "store", lambda *frame: held.append(frame))
            first = asyncio.create_task(end(group, broker, sent, COMMIT))
            await until(lambda: held)
            second = asyncio.create_task(end(group, broker, sent, COMMIT))
            await until(lambda: any(transactions._busy.values()))
        ((waiter,),) = transactions._busy.values()
        transactions.leadership_changed()
        assert waiter.done()
        transactions.tick()
        assert (await second).code == 0
        held[0][2](busy("the leader changed, says the test"))
        assert (await first).code == ResponseCode.SYSTEM_BUSY
        assert transactions._waiting == 0
        assert bodies(broker) == ["A"]


async def test_open_transactions_are_limited_and_can_be_disabled(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "OPEN_MAX", 2)
    async with Group(tmp_path, **UNASKED) as group:
        broker = await group.leading()
        await group.create_topic(broker, "Orders")
        for key in "AB":
            sent = await half(group, broker, key)
        await until(lambda: broker.halves.open_count == 2)
        refused = await group.send(
            broker, "Orders", properties="TRAN_MSG\x01true\x02PGROUP\x01pg\x02"
        )
        assert (refused.code, refused.remark[:6]) == (ResponseCode.SYSTEM_BUSY, "[BUSY]")
        assert (await end(group, broker, sent, ROLLBACK)).code == 0
        await half(group, broker, "C")
    async with Group(tmp_path / "other", rejectTransactionMessage="true") as group:
        broker = await group.leading()
        await group.create_topic(broker, "Orders")
        refused = await group.send(
            broker, "Orders", properties="TRAN_MSG\x01true\x02PGROUP\x01pg\x02"
        )
        assert refused.code == ResponseCode.NO_PERMISSION


async def test_transactions_survive_their_leader(tmp_path, caplog):
    """Ended ones do not come up again, open ones can be ended, each message is there once."""
    caplog.set_level("INFO", service.log.name)
    async with Group(tmp_path, 3, **UNASKED) as group:
        broker = await group.leading()
        await group.create_topic(broker, "Orders")
        sent = [await half(group, broker, f"M{number}") for number in range(20)]
        for one in sent[:5]:
            assert (await end(group, broker, one, COMMIT)).code == 0
        assert (await end(group, broker, sent[5], ROLLBACK)).code == 0
        await until(lambda: broker.state.offsets.get(HALF_TOPIC, GROUP, 0) == 6)
        for one in sent[6:10]:
            assert (await end(group, broker, one, COMMIT)).code == 0
        await group.kill(await group.leader())
        broker = await group.leading()
        answers = [await end(group, broker, one, COMMIT) for one in sent]
        assert [answer.code for answer in answers[10:]] == [0] * 10
        assert all("[ENDED]" in answer.remark for answer in answers[:10])
        expected = [f"M{number}" for number in range(20) if number != 5]
        assert bodies(broker) == expected
        caplog.clear()
        await group.kill(await group.leader())
        for name in group.names:
            if name not in group.brokers:
                await group.start(name)
        broker = await group.leading()
        await until(lambda: "transactions_known" in caplog.text)
        assert broker.halves.open_count == 0
        assert bodies(broker) == expected


class Producer:
    """Listens for checks over its own connection."""

    def __init__(self, broker):
        self.broker = broker
        self.checks = []
        self.client = RemotingClient(
            handlers={int(RequestCode.CHECK_TRANSACTION_STATE): self._checked}
        )

    def _checked(self, _, command):
        header = CheckTransactionHeader.parse(command.ext)
        self.checks.append((header, decode_record(command.body)))

    async def heartbeat(self):
        body = b'{"clientID":"me","producerDataSet":[{"groupName":"pg"}],"consumerDataSet":[]}'
        command = RemotingCommand.request(RequestCode.HEART_BEAT, {}, body)
        assert (await self.client.invoke(self.broker.address, command, 60_000)).code == 0


async def test_open_half_message_is_checked_until_it_is_discarded(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "PROGRESS_MS", 20)
    settings = {
        "transactionTimeOut": 50,
        "transactionCheckInterval": 50,
        "transactionCheckMax": 2,
    }
    async with Group(tmp_path, **settings) as group:
        broker = await group.leading()
        await group.create_topic(broker, "Orders")
        producer = Producer(broker)
        try:
            await producer.heartbeat()
            sent = await half(group, broker, "A")
            await until(lambda: len(producer.checks) >= 1)
            header, record = producer.checks[0]
            assert (record.topic, record.queue_id, record.body) == ("Orders", 1, b"A")
            assert header.message_id == header.transaction_id == "A"
            await until(lambda: broker.transactions.counts.given_up == 1)
            await until(lambda: len(producer.checks) >= 2)
            assert len(producer.checks) == 2
            assert bodies(broker, GIVEN_UP_TOPIC, 0) == ["A"]
            assert broker.halves.open_count == 0
            assert bodies(broker) == []
            assert "[ENDED]" in (await end(group, broker, sent, ROLLBACK)).remark
            # A local transaction that took longer than all checks: its message is not lost.
            late = await asyncio.gather(*(end(group, broker, sent, COMMIT) for _ in range(3)))
            assert 0 in [answer.code for answer in late]
            broker.transactions.leadership_changed()
            assert (await end(group, broker, sent, COMMIT)).code == 0
            assert bodies(broker) == ["A"]
        finally:
            await producer.client.close()


async def test_answer_to_a_check_may_use_the_sent_or_the_checked_id(tmp_path):
    """The producer's two threads do both at one time. It is asked once: there is time."""
    settings = {"transactionTimeOut": 50, "transactionCheckInterval": 3_600_000}
    async with Group(tmp_path, **settings) as group:
        broker = await group.leading()
        await group.create_topic(broker, "Orders")
        producer = Producer(broker)
        try:
            await producer.heartbeat()
            sent = await half(group, broker, "B")
            await until(lambda: producer.checks)
            header = producer.checks[-1][0]
            assert header.half_queue_offset != sent.offset
            answered = await asyncio.gather(
                end(
                    group,
                    broker,
                    sent,
                    COMMIT,
                    half_queue_offset=header.half_queue_offset,
                    commitlog_offset=header.commitlog_offset,
                ),
                end(group, broker, sent, COMMIT),
            )
            assert [answer.code for answer in answered] == [0, 0]
            assert bodies(broker) == ["B"]
        finally:
            await producer.client.close()


async def test_half_message_with_full_properties_is_checked_and_committed(tmp_path):
    """It is not stored again: there is no room for the count."""
    async with Group(tmp_path, transactionTimeOut=50, transactionCheckInterval=50) as group:
        broker = await group.leading()
        await group.create_topic(broker, "Orders")
        producer = Producer(broker)
        try:
            await producer.heartbeat()
            sent = await half(group, broker, "C", A="b\x01c", V="v" * 32_560)
            await until(lambda: len(producer.checks) >= 2)
            header, record = producer.checks[-1]
            assert header.half_queue_offset == sent.offset
            assert decode_properties(record.properties)["A"] == "b\x01c"
            assert (await end(group, broker, sent, COMMIT)).code == 0
            (message,) = records(broker, "Orders")
            assert decode_properties(message.properties)["A"] == "b\x01c"
        finally:
            await producer.client.close()


async def test_half_message_removed_by_retention_does_not_block_later_ones(tmp_path, caplog):
    """Where a half ended that is not there any more is noted, and later ones are handled."""
    settings = {"mappedFileSizeCommitLog": 196_608, "maxMessageSize": 32_768, **UNASKED}
    async with Group(tmp_path, **settings) as group:
        broker = await group.leading()
        await group.create_topic(broker, "Orders")
        await half(group, broker, "A")
        await until(lambda: broker.halves.open_count == 1)
        while len(broker.store.commitlog.segments()) == 1:
            await group.send(broker, "Orders", bytes(16_384))
        start = broker.store.commitlog.segments()[-1].start
        assert await broker.engine.delete_before(start) == start
        broker.store.derived.correct_min_offset()
        committed = await half(group, broker, "B")
        assert (await end(group, broker, committed, COMMIT)).code == 0
        await until(lambda: broker.halves.open_count == 0)
        await until(lambda: broker.state.offsets.get(HALF_TOPIC, GROUP, 0) == 2)
        assert "transactions_lost count=1" in caplog.text


async def test_missing_producer_does_not_count_as_a_check(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "PROGRESS_MS", 20)
    settings = {"transactionTimeOut": 1, "transactionCheckInterval": 1, "transactionCheckMax": 1}
    async with Group(tmp_path, **settings) as group:
        broker = await group.leading()
        await group.create_topic(broker, "Orders")
        producer = Producer(broker)
        try:
            client = RemotingClient()
            group.stopped_ms = broker.context.wall_ms()  # no check is due
            await half(group, broker, "A", client=client)
            await client.close()  # it leaves before it can be asked
            await until(lambda: not broker.halves.senders["pg"].is_open)
            group.stopped_ms = None
            await until(
                lambda: broker.store.queues.end_of(HALF_TOPIC, 0) > 5
            )  # looked at again and again
            assert broker.transactions.counts.given_up == 0
            await until(lambda: (broker.state.offsets.get(HALF_TOPIC, GROUP, 0) or 0) > 3)
            await producer.heartbeat()
            await until(lambda: len(producer.checks) == 1)
            await until(lambda: broker.transactions.counts.given_up == 1)
        finally:
            await producer.client.close()


async def test_producer_can_extend_the_transaction_check_time(tmp_path):
    async with Group(tmp_path, transactionTimeOut=1, transactionCheckInterval=1) as group:
        broker = await group.leading()
        await group.create_topic(broker, "Orders")
        await half(group, broker, "A", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
        await half(group, broker, "B")
        await until(lambda: broker.store.queues.end_of(HALF_TOPIC, 0) > 3)
        again = {record.body for record in records(broker, HALF_TOPIC, 0)[2:]}
        assert again == {b"B"}


async def test_committed_message_may_be_delayed(tmp_path):
    """From when it is committed: then it waits with the others of its level."""
    async with Group(tmp_path, messageDelayLevel="1h 2h", **UNASKED) as group:
        broker = await group.leading()
        await group.create_topic(broker, "Orders")
        sent = await half(group, broker, "A", DELAY="2")
        assert bodies(broker, HALF_TOPIC, 0) == ["A"]
        assert (await end(group, broker, sent, COMMIT)).code == 0
        (waiting,) = records(broker, SCHEDULE_TOPIC)
        properties = decode_properties(waiting.properties)
        assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("Orders", "1")
        assert properties["TRAN_MSG"] == "true"
        assert bodies(broker) == []


async def test_committed_message_may_be_a_timer_message(tmp_path):
    """A delay counts from the commit; a time that is too far away is refused at once."""
    async with Group(tmp_path, **UNASKED) as group:
        broker = await group.leading()
        await group.create_topic(broker, "Orders")
        sent = await half(group, broker, "A", TIMER_DELAY_MS="20")
        far = await half(group, broker, "B", TIMER_DELAY_SEC="3600")
        assert sent and far
        properties = "TRAN_MSG\x01true\x02PGROUP\x01pg\x02TIMER_DELAY_SEC\x019999999\x02"
        assert (await group.send(broker, "Orders", b"C", 1, properties)).code == 13
        assert (await end(group, broker, sent, COMMIT)).code == 0
        assert (await end(group, broker, far, COMMIT)).code == 0
        await until(lambda: bodies(broker) == ["A"])
        near, waiting = records(broker, TIMER_TOPIC, 0)
        there = decode_properties(waiting.properties)
        assert (there["REAL_TOPIC"], there["REAL_QID"]) == ("Orders", "1")
        assert there["TRAN_MSG"] == "true"
        assert records(broker, "Orders")[0].store_timestamp_ms > near.store_timestamp_ms


async def test_transactions_in_classic_mode(tmp_path):
    async with Classic(tmp_path, slaves=0, role="ASYNC_MASTER", **UNASKED) as group:
        broker = group.master
        await group.create_topic(broker, "Orders")
        committed = await half(group, broker, "A")
        rolled_back = await half(group, broker, "B")
        still_open = await half(group, broker, "C")
        assert (await end(group, broker, committed, COMMIT)).code == 0
        assert (await end(group, broker, rolled_back, ROLLBACK)).code == 0
        assert bodies(broker) == ["A"]
        (name,) = group.brokers
        await group.stop(name)
        broker = await group.start(name)
        assert "[ENDED]" in (await end(group, broker, committed, ROLLBACK)).remark
        assert broker.halves.open_count == 1
        assert (await end(group, broker, still_open, COMMIT)).code == 0
        assert bodies(broker) == ["A", "C"]


async def test_half_message_is_not_discarded_by_a_wrong_clock_before_a_check(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "PROGRESS_MS", 20)
    settings = {"transactionTimeOut": 50, "transactionCheckInterval": 3_600_000}
    async with Group(tmp_path, **settings) as group:
        broker = await group.leading()
        await group.create_topic(broker, "Orders")
        producer = Producer(broker)
        age_ms = 1_000 * 3_600_000  # of every half, as a leader whose clock is ahead sees it
        monkeypatch.setattr(half_message, "first_stored_ms", lambda half: -age_ms)
        try:
            client = RemotingClient()
            await half(group, broker, "A", client=client)
            await client.close()
            await until(lambda: broker.store.queues.end_of(HALF_TOPIC, 0) > 0)
            await producer.heartbeat()
            sent = await half(group, broker, "B", client=producer.client)
            await until(lambda: producer.checks)
            assert broker.transactions.counts.given_up == 0
            header = producer.checks[-1][0]
            answered = await end(
                group,
                broker,
                sent,
                COMMIT,
                half_queue_offset=header.half_queue_offset,
                commitlog_offset=header.commitlog_offset,
                transaction_id=header.transaction_id,
                message_id=header.message_id,
            )
            assert answered.code == 0
        finally:
            await producer.client.close()
