"""What operators do over HTTP is recorded in the group's log, and survives its leader."""

import asyncio

import orjson
import pytest

from raftmq.broker.admin.operator_log import Deed, OperatorLog
from raftmq.broker.errors import OutcomeUnknown, Refused
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.headers import SendHeader
from raftmq.remoting.names import OPERATOR_LOG_TOPIC
from tests.broker.http.test_api import made, sent
from tests.waiting import until

LOG = f"/api/v1/topics/{OPERATOR_LOG_TOPIC}/messages"
DEED = Deed("putTopic", "T", "eve", "", "{}")


async def records(client, count):
    """Return the records, oldest first, once there are so many."""
    found = []

    async def enough():
        nonlocal found
        items = (await client.get(LOG, limit=100)).json["items"]
        found = [orjson.loads(one["text"]) for one in reversed(items)]
        return len(found) >= count

    await until(enough, lambda: found)
    return found


def told(record):
    return record["what"], record["target"], record["by"], record["outcome"]


async def test_operator_log_records_an_http_change_before_and_after_it(client):
    await made(client, "T")
    refused = await client.put("/api/v1/topics/T", {}, If_None_Match="*")
    assert refused.status == 412
    requested, done, again, failed = await records(client, 4)
    assert told(requested) == ("putTopic", "T", "local", "asked")
    assert told(done) == ("putTopic", "T", "local", "done")
    assert requested["id"] == done["id"] != again["id"] == failed["id"]
    assert told(failed) == ("putTopic", "T", "local", "failed")
    assert orjson.loads(requested["detail"])["writeQueueNums"] == 2


async def test_operator_log_has_the_forwarded_operator_and_no_message_body(client):
    await made(client, "T")
    await client.post(
        "/api/v1/messages", {"topic": "T", "body": "private"}, X_Operator="Eve%20Adams"
    )
    record = (await records(client, 3))[2]
    assert (record["by"], record["via"]) == ("Eve Adams", "local")
    assert "private" not in record["detail"]
    requested = {"topic": "T", "to": {"position": "latest"}, "preview": True}
    await client.post("/api/v1/consumer-groups/G/reset", requested)
    assert len(await records(client, 4)) == 4  # a preview changes nothing


async def test_operator_log_records_a_log_level_change_afterwards(client):
    answer = await client.put("/api/v1/log-levels/raftmq.broker.x", {"level": "INFO"})
    assert answer.status in (200, 404)
    (record,) = await records(client, 1)
    assert record["what"] == "setLogLevel" and record["outcome"] in ("done", "failed")


async def test_operator_log_topic_rejects_client_writes(client, group, broker):
    header = SendHeader("P", OPERATOR_LOG_TOPIC, "TBW102", 4, 0, 0, 0, 0, "")
    ext = header.to_ext(int(RequestCode.SEND_MESSAGE_V2))
    answer = await group.ask(broker, RequestCode.SEND_MESSAGE_V2, ext, b"forged")
    assert answer.code == ResponseCode.NO_PERMISSION
    body = {"topic": OPERATOR_LOG_TOPIC, "body": "forged"}
    assert (await client.post("/api/v1/messages", body)).status == 409
    assert (await client.put(f"/api/v1/topics/{OPERATOR_LOG_TOPIC}", {}, If_Match="*")).status > 400


async def test_sends_work_on_a_broker_with_an_operator_log(client):
    await made(client, "T")
    assert (await sent(client, "T", "x"))["queueOffset"] == 0


class Sends:
    """A send path whose outcomes a test decides: None, or an error to raise or to end with."""

    def __init__(self, *outcomes, at_once=False):
        self.outcomes = list(outcomes)
        self.at_once = at_once
        self.stored = []

    def store(self, messages, command, done, *, reserve_bytes=0):
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is not None and self.at_once:
            raise outcome
        self.stored += [orjson.loads(one.body)["outcome"] for one in messages]
        asyncio.get_running_loop().call_soon(done, outcome)

    def wake(self, at_once=False):
        pass


async def worked():
    return "result"


async def test_change_is_rejected_if_its_operator_record_may_not_be_stored():
    sends = Sends(OutcomeUnknown("no majority"))
    with pytest.raises(Refused, match="it was not done") as refused:
        await OperatorLog(sends, lambda: 1).around(DEED, worked)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert refused.value.remark == (  # one word: nobody should look for what was not done
        "[BUSY] it was not done, because it could not be recorded: the group did not commit the"
        " record; nothing was changed"
    )
    with pytest.raises(Refused, match="busy"):
        await OperatorLog(
            Sends(Refused(ResponseCode.SYSTEM_BUSY, "busy", tag="BUSY"), at_once=True), lambda: 1
        ).around(DEED, worked)


@pytest.mark.parametrize("tag", ["NOT_LEADER", "DISK_FULL"])
async def test_change_without_operator_record_works_on_full_disks_and_followers(tag):
    sends = Sends(Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "no", tag=tag), at_once=True)
    assert await OperatorLog(sends, lambda: 1).around(DEED, worked) == "result"
    assert sends.stored == []


async def test_operator_log_records_an_unknown_outcome():
    async def lost():
        raise OutcomeUnknown("cut off")

    sends = Sends()
    with pytest.raises(OutcomeUnknown):
        await OperatorLog(sends, lambda: 1).around(DEED, lost)
    assert sends.stored == ["asked", "unknown"]


class Silent(Sends):
    """Stores without an end."""

    def store(self, messages, command, done, *, reserve_bytes=0):
        super().store(messages, command, lambda _: None)


async def end_while(doing, *, began):
    """Cancel it once it has begun to wait."""
    task = asyncio.ensure_future(doing)
    await until(began)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_operator_log_records_the_outcome_of_a_cancelled_change():
    working = []

    async def for_long():
        working.append(1)
        await asyncio.Event().wait()

    sends = Sends()
    log = OperatorLog(sends, lambda: 1)
    await end_while(log.around(DEED, for_long), began=lambda: working)
    assert sends.stored == ["asked", "unknown"]
    await end_while(log.afterwards(DEED, for_long), began=lambda: len(working) == 2)
    assert sends.stored == ["asked", "unknown", "unknown"]
    silent = Silent()
    await end_while(
        OperatorLog(silent, lambda: 1).around(DEED, worked), began=lambda: silent.stored
    )
    assert silent.stored == ["asked", "failed"]
