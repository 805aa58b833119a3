"""Idempotent sends: what is known of them, for how long, and what a second try is answered."""

import asyncio

import orjson
import pytest

from raftmq.broker.durations import DURATIONS
from raftmq.broker.send import idempotency
from raftmq.broker.tables.idempotent_sends import KEY_LENGTH_MAX, Sent, SentOnce
from raftmq.broker.tables.state import BrokerState, commit_offsets
from raftmq.broker.tables.topics import TopicConfig
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.command import BINARY
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.headers import SendResponseHeader
from raftmq.store.properties import decode_properties
from raftmq.store.record import decode_record, pack_host, walk_records
from tests.broker.cluster import Group
from tests.broker.delayed.test_delay_group import PATIENT, everything
from tests.broker.send.test_frame_builder import batch_body
from tests.broker.send.test_service import Bench
from tests.waiting import until

HOST = pack_host(("127.0.0.1", 10911)).hex().upper()


def once(key="K", more=""):
    return f"UNIQ_KEY\x01{key}\x02IDEMPOTENT\x01true\x02{more}"


def commit(bench):
    """The next frame is applied, tables first; returns its records."""
    frame = bench.log.cut(bench.sends)
    assert frame is not None
    if len(frame.command):
        at = frame.position + frame.records_at
        bench.state.apply(frame.index, frame.timestamp_ms, frame.command, at)
    bench.answer(frame)
    return [decode_record(frame.data, at) for at, _ in walk_records(frame.data)]


def answered(bench):
    return [
        SendResponseHeader.parse(answer.ext) if answer.code == 0 else answer.code
        for answer in bench.connection.answers()
    ]


def test_repeated_idempotent_send_gets_the_first_answer_and_is_not_stored():
    bench = Bench()
    bench.send(e="1")
    bench.send(e="2", i=once())
    bench.send(e="2")
    records = commit(bench)
    first = answered(bench)[1]
    assert (first.queue_id, first.queue_offset) == (2, 0)
    assert first.message_id == f"{HOST}{records[1].physical_offset:016X}"
    bench.send(e="3", i=once())
    bench.send(e="3", i=once(), kind=BINARY)
    bench.send(e="3", i=once(), one_way=True)
    assert bench.log.cut(bench.sends) is None
    assert answered(bench) == [first, first]
    assert bench.sends.repeat_count == 3
    bench.send(e="3", i=once("L"))
    bench.state.topics.put(TopicConfig("U", 4, 4), 0)
    bench.send(b="U", i=once())  # of another topic
    bench.send(e="3", i="UNIQ_KEY\x01K\x02")  # did not ask for it
    assert len(commit(bench)) == 3


def test_repeated_idempotent_send_waits_for_the_first_outcome():
    bench = Bench()
    bench.send(i=once())
    bench.send(i=once())
    frame = bench.log.cut(bench.sends)
    bench.send(i=once())
    assert frame.record_count == 1
    assert bench.log.cut(bench.sends) is None
    bench.answer(frame)
    first, second, third = answered(bench)
    assert first == second == third
    assert bench.sends.held_bytes == 0


def test_idempotent_send_that_was_not_stored_may_be_repeated():
    bench = Bench()
    bench.send(i=once())
    bench.send(i=once())
    bench.log.cut(bench.sends)
    bench.sends.truncated(1)
    assert answered(bench) == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    bench.send(i=once())
    bench.sends.leadership(2, False)
    bench.sends.leadership(3, True)
    bench.log.term = 3
    answered(bench)
    bench.send(i=once())
    assert len(commit(bench)) == 1


def test_idempotent_send_of_unknown_outcome_blocks_its_repetitions():
    bench = Bench()
    bench.send(i=once())
    bench.send(i=once())
    frame = bench.log.cut(bench.sends)
    bench.clock_ms += DURATIONS.outcome
    bench.sends.sweep()
    assert answered(bench) == [ResponseCode.SYSTEM_ERROR] * 2
    bench.send(i=once())  # its fate is still open
    assert bench.log.cut(bench.sends) is None
    bench.clock_ms += DURATIONS.outcome - 1
    bench.sends.sweep()
    assert answered(bench) == []
    bench.clock_ms += 1
    bench.sends.sweep()
    assert answered(bench) == [ResponseCode.SYSTEM_ERROR]
    bench.send(i=once())
    bench.answer(frame)
    (result,) = answered(bench)
    assert result.queue_offset == 0


def test_waiting_idempotent_repetitions_are_limited(monkeypatch):
    monkeypatch.setattr(idempotency, "WAITING_MAX", 3)
    bench = Bench()
    for _ in range(5):
        bench.send(i=once())
    assert answered(bench) == [ResponseCode.SYSTEM_BUSY]
    bench.sends.close()
    assert len(answered(bench)) == 4, "all others are answered"


def test_idempotent_window_is_limited_in_age_and_number_on_all_replicas():
    bench = Bench(idempotent_window_ms=1_000, idempotent_window_max=3)
    for key in "ABCD":
        bench.now_ms += 10
        bench.send(i=once(key))
        commit(bench)
    assert [key for _, key in bench.state.once.sent] == ["B", "C", "D"]
    bench.now_ms += 980  # B is 1,000 old, and A gone
    answered(bench)
    for key in "AB":
        bench.send(i=once(key))
    assert len(commit(bench)) == 1
    bench.now_ms += 1_001
    bench.send(i=once("D"))
    commit(bench)
    assert [key for _, key in bench.state.once.sent] == ["D"]


def test_idempotent_send_in_a_frame_with_commands_has_its_own_position():
    bench = Bench()
    bench.sends.store([], commit_offsets([("T", "g", 0, 7)]), lambda *_: None)
    bench.send(i=once("A"))
    bench.send(b"y" * 100, e="0")
    bench.send(i=once("B"), e="0")
    records = commit(bench)
    sent = bench.state.once.sent
    assert bench.state.offsets.get("T", "g", 0) == 7
    assert [sent["T", key].position for key in "AB"] == [
        records[0].physical_offset,
        records[2].physical_offset,
    ]
    assert [sent["T", key].queue_offset for key in "AB"] == [0, 2]


def test_repeated_delayed_idempotent_send_gets_the_chosen_queue():
    bench = Bench()
    for _ in range(2):
        bench.send(e="3", i=once(more="DELAY\x012\x02"))
    commit(bench)
    bench.send(e="1", i=once(more="DELAY\x012\x02"))
    headers = answered(bench)
    assert headers[0] == headers[1] == headers[2]
    assert headers[0].queue_id == 3


def test_retry_of_an_idempotent_message_is_no_repetition():
    bench = Bench()
    for times in "12":
        bench.send(b="%RETRY%g", e="0", j=times, i=once())
        bench.log.commit_commands(bench.sends.topic_changed)
        assert len(commit(bench)) == 1
    assert not bench.state.once.sent


@pytest.mark.parametrize("text", ["IDEMPOTENT\x01true\x02", once("K" * (KEY_LENGTH_MAX + 1))])
def test_idempotent_send_without_a_unique_key_is_rejected(text):
    bench = Bench()
    bench.send(i=text)
    assert answered(bench) == [ResponseCode.MESSAGE_ILLEGAL]
    bench.send(i=once('é\\"' * 85))
    assert len(commit(bench)) == 1


def test_idempotent_property_must_be_true_and_is_rejected_in_a_batch():
    bench = Bench()
    for value in ("false", "TRUE", "truer"):
        for _ in range(2):
            bench.send(i=f"UNIQ_KEY\x01K\x02IDEMPOTENT\x01{value}\x02")
    assert len(commit(bench)) == 6
    answered(bench)
    bench.send(batch_body((b"a", once().encode(), 0)), code=320)
    bench.send(batch_body((b"a", b"", 0)), code=320, i=once())
    assert answered(bench) == [ResponseCode.MESSAGE_ILLEGAL] * 2


def test_idempotent_send_table_round_trip():
    table = SentOnce()
    table.sent["T", "K"] = Sent(5, 6, 7, 8, HOST)
    twin = SentOnce()
    twin.sent = table.sent
    twin.own()
    table.sent.clear()
    again = SentOnce()
    again.load(orjson.loads(orjson.dumps(twin.to_json())), 3)
    assert again.sent == twin.sent
    assert again.applied_index == 3
    assert again.get(("T", "K"), 5) == Sent(5, 6, 7, 8, HOST)
    assert again.get(("T", "K"), 6) is None


def test_reapplied_idempotent_sends_change_nothing():
    state = BrokerState()
    command = b'{"op":"sent_once","window_ms":9,"max":1,"host":"00","sends":[["T","%s",0,0,0]]}'
    state.apply(1, 1, command % b"A", 100)
    state.apply(2, 2, command % b"B", 200)
    state.apply(1, 1, command % b"A", 100)
    assert list(state.once.sent) == [("T", "B")]


async def test_idempotent_sends_repeated_at_the_next_leader_are_not_stored_again(tmp_path):
    """The first tries are answered by a leader that dies then; all come again, some twice."""
    async with Group(tmp_path, 3, {"snapshot": 200}, **PATIENT) as group:
        first = await group.leader()
        leader = group.brokers[first]
        await group.create_topic(leader, "T")
        reported = {}
        for number in range(10):
            answer = await group.send(leader, "T", b"x", number % 4, once(f"K{number}"))
            assert answer.code == 0
            reported[number] = answer.ext
        await group.kill(first)
        second = await group.leader()
        for broker in (group.brokers[second], group.brokers[second]):
            for number in range(10):
                again = await group.send(broker, "T", b"x", 0, once(f"K{number}"))
                assert again.ext == reported[number]
        assert len(await everything(group, broker, "T")) == 10
        await group.start(first)
        await until(lambda: group.brokers[first].state.once.sent == broker.state.once.sent)
        # From the snapshot, or from the log: it knows as much.
        await group.stop(second)
        third = await group.leading()
        again = await group.send(third, "T", b"x", 0, once("K7"))
        assert again.ext == reported[7]
        records = await everything(group, third, "T")
        keys = [decode_properties(record.properties)["UNIQ_KEY"] for record in records]
        assert sorted(keys) == [f"K{number}" for number in range(10)]


async def test_idempotent_sends_in_flight_at_a_leader_crash_are_stored_once(tmp_path):
    """Sends are under way as the leader dies: nobody knows which of them are stored, and all are
    tried again until they are answered."""
    async with Group(tmp_path, 3, **PATIENT) as group:
        first = await group.leader()
        await group.create_topic(group.brokers[first], "T")

        async def persist(number):
            while True:
                broker = await group.leading()
                try:
                    answer = await group.send(
                        broker, "T", b"x", number % 4, once(f"K{number}"), timeout_ms=3_000
                    )
                except RemotingError:
                    continue
                if answer.code == 0:
                    return int(answer.ext["queueId"]), int(answer.ext["queueOffset"])

        senders = [asyncio.create_task(persist(number)) for number in range(60)]
        await until(lambda: group.brokers[first].sends.put_count > 0)
        more = [asyncio.create_task(persist(number)) for number in range(30)]  # and twice at once
        await group.kill(first)
        positions = await asyncio.gather(*senders)
        assert await asyncio.gather(*more) == positions[:30]
        records = await everything(group, await group.leading(), "T")
        result = {
            decode_properties(record.properties)["UNIQ_KEY"]: (record.queue_id, record.queue_offset)
            for record in records
        }
        assert result == {f"K{number}": position for number, position in enumerate(positions)}
        assert len(records) == 60


async def test_idempotent_sends_survive_a_restart_in_both_modes(tmp_path):
    for name, settings in (("raft", {}), ("classic", {"enableDLegerCommitLog": "false"})):
        async with Group(tmp_path / name, **settings) as group:
            broker = await group.leading()
            await group.create_topic(broker, "T")
            first = await group.send(broker, "T", b"x", 1, once())
            assert first.code == 0
            await group.stop("n0")
            assert (tmp_path / name / "n0/config/sentOnce.json").exists()
            await group.start("n0")
            broker = await group.leading()
            again = await group.send(broker, "T", b"x", 2, once())
            assert (again.ext["queueOffset"], again.ext["queueId"]) == ("0", "1")
            assert again.ext["msgId"] == first.ext["msgId"]
            assert len(await everything(group, broker, "T")) == 1
