"""What a slave takes from its master's answers, without a network."""

from typing import Any, cast

import orjson
import pytest

from raftmq.broker.replication.ha.metadata import LogComparison, MetadataError, MetadataSync
from raftmq.broker.replication.ha.slave import LogsDiffer
from raftmq.broker.tables.state import BrokerState
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand

RECORD = b"the record at 100"
END = 100 + len(RECORD)


class Log:
    def __init__(self, max_offset=END):
        self.max_offset = max_offset
        self.min_offset = 0

    def record_at(self, offset):
        return RECORD if offset == 100 else None


class Master:
    """Answers 28 with the ends of its log and 33 with a record, or with a refusal."""

    def __init__(self, record=RECORD, refusal=None, address="127.0.0.1:10911"):
        self.record = record
        self.refusal = refusal
        self.address = lambda: address

    async def ask(self, code, ext=None):
        if code == RequestCode.GET_BROKER_RUNTIME_INFO:
            table = {"commitLogMaxOffset": str(END), "commitLogMinOffset": "0"}
            return RemotingCommand(ResponseCode.SUCCESS, body=orjson.dumps({"table": table}))
        assert (code, ext) == (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "100"})
        if self.refusal is not None:
            remark, response = self.refusal
            raise MetadataError(f"{code.name}: {remark}", code=response)
        return RemotingCommand(ResponseCode.SUCCESS, body=self.record)


def comparison(master, log=None):
    return LogComparison(master, cast(Any, log or Log()), lambda: 100)


async def test_slave_log_with_the_masters_last_record_is_a_prefix():
    await comparison(Master()).verify()


@pytest.mark.parametrize(
    "remark", ["can not find message by offset: 100", "can not find message by the offset, 100"]
)
async def test_master_without_the_slaves_last_record_has_another_log(remark):
    """The words of our broker and of Apache's."""
    with pytest.raises(LogsDiffer, match="the master has no record at 100"):
        await comparison(Master(refusal=(remark, ResponseCode.SYSTEM_ERROR))).verify()


async def test_slave_log_is_not_compared_without_a_master_address():
    unknown = Master(address="")
    with pytest.raises(MetadataError, match="masterAddress is not set"):
        await comparison(unknown).verify()
    await comparison(unknown, Log(0)).verify()  # an empty log is a prefix of any


async def test_master_with_a_different_last_record_has_another_log():
    with pytest.raises(LogsDiffer, match="the logs have parted"):
        await comparison(Master(b"another at 100!!!")).verify()


@pytest.mark.parametrize(
    ("remark", "code"),
    [
        ("OSError: [Errno 5] Input/output error", ResponseCode.SYSTEM_ERROR),
        ("[BUSY] too many requests", ResponseCode.SYSTEM_BUSY),
        ("no right to read it", ResponseCode.NO_PERMISSION),
    ],
)
async def test_master_that_cannot_answer_does_not_count_as_another_log(remark, code):
    with pytest.raises(MetadataError, match="VIEW_MESSAGE_BY_ID"):
        await comparison(Master(refusal=(remark, code))).verify()


TOPIC = {"topicName": "T", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
BODIES = {
    RequestCode.GET_ALL_TOPIC_CONFIG: ("topicConfigTable", {"T": TOPIC, "bad-topic": {}}),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (
        "subscriptionGroupTable",
        {"g": {"groupName": "g"}, "bad-group": {"groupName": "a b"}},
    ),
    RequestCode.GET_ALL_CONSUMER_OFFSET: (
        "offsetTable",
        {"T@g": {"0": 5}, "bad-offset": {"0": None}},
    ),
    RequestCode.GET_ALL_DELAY_OFFSET: ("offsetTable", {"3": 7, "bad-level": 1}),
}


class Tables:
    """A master of Apache's whose tables have an entry each that is not taken here."""

    def address(self):
        return "127.0.0.1:10911"

    async def ask(self, code, ext=None):
        if code == RequestCode.GET_TIMER_CHECK_POINT:
            raise MetadataError("not here", code=ResponseCode.SYSTEM_ERROR)
        key, table = BODIES[code]
        body = {"dataVersion": {"counter": 1, "timestamp": 2}, key: table}
        return RemotingCommand(ResponseCode.SUCCESS, body=orjson.dumps(body))


class Files:
    async def saved(self):
        pass


async def test_invalid_entry_of_the_master_is_skipped_alone(caplog):
    async def at_once():
        pass

    state = BrokerState()
    sync = MetadataSync(
        cast(Any, Tables()),
        state,
        cast(Any, None),
        cast(Any, Files()),
        interval_ms=1,
        wall_ms=lambda: 1,
        on_topics=lambda: None,
        master_has_all=at_once,
        log_has_all=at_once,
    )
    sync.link_changed(True)
    for _ in range(2):
        await sync.sync()
    assert (list(state.topics.entries), list(state.groups.entries)) == (["T"], ["g"])
    assert state.offsets.get("T", "g", 0) == 5 and state.delays.get(3) == 7
    reported = [r.message for r in caplog.records if r.message.startswith("entries_refused")]
    assert (
        len(reported) == 1 and "count=4" in reported[0]
    )  # once, though it is asked again and again
    for name in ("bad-topic", "bad-group", "bad-offset", "bad-level"):
        assert name in reported[0]
