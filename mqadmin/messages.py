"""Commands for messages.

queryMsgById, queryMsgByKey, queryMsgByUniqueKey, queryMsgByOffset, queryCq, printMsg,
consumeMessage, sendMessage. Only sendMessage changes the cluster; reads commit no offsets.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from raftmq.client.admin import TIME_MS_MAX, Admin
from raftmq.client.errors import BrokerRefused, ClientError
from raftmq.client.message import Message, MessageExt, MessageQueue
from raftmq.client.producer.producer import Producer
from raftmq.client.producer.sender import SendConfig
from raftmq.remoting.address import format_address
from raftmq.remoting.codes import ResponseCode

from .command import (
    Arguments,
    CommandError,
    Done,
    Fields,
    Section,
    Table,
    show_time,
)

PRODUCER_GROUP = "TOOLS_PRODUCER"
PRINTED_MAX = 10_000  # per answer of printMsg and consumeMessage
PULL_COUNT = 32


async def by_id(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    sections: list[Section] = []
    several = "," in arguments.text("msgId")
    for msg_id in filter(None, (i.strip() for i in arguments.text("msgId").split(","))):
        message = await _find(admin, arguments.text("topic"), msg_id)
        if message is None:
            raise CommandError(f"no message {msg_id}")
        if arguments.boolean("sendMessage"):
            sections.append(await _resend(admin, message))
            continue
        result = await _described(admin, arguments, message)
        sections += [Fields(p.values, f"{msg_id} {p.title}") for p in result] if several else result
    return sections


async def by_unique_key(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    topic, key = arguments.text("topic"), arguments.text("msgId")
    result = await admin.message.query(topic, key, 32, unique_key=True)
    if not result:
        raise CommandError(f"no message {key} in topic {topic}")
    if arguments.on("showAll"):
        return [Table([_row(message) for message in result])]
    return list(await _described(admin, arguments, result[0]))


async def _find(admin: Admin, topic: str, msg_id: str) -> MessageExt | None:
    """Find a message by its offset message id (with the broker's address) or UNIQ_KEY."""
    try:
        message = await admin.message.view(msg_id)
        if message.topic == topic:
            return message
    except ClientError:  # a UNIQ_KEY has the same form, but no valid broker
        pass
    result = await admin.message.query(topic, msg_id, 32, unique_key=True)
    return result[0] if result else None


async def _described(admin: Admin, arguments: Arguments, message: MessageExt) -> list[Fields]:
    group, client_id = arguments.text("consumerGroup"), arguments.text("clientId")
    if group and client_id:
        return [await _consume_directly(admin, message, group, client_id)]
    charset = arguments.text("bodyFormat")
    return [Fields(_complete(message, charset), "message"), await _tracks(admin, message)]


async def _consume_directly(
    admin: Admin, message: MessageExt, group: str, client_id: str
) -> Fields:
    for address in (await admin.cluster.leaders_of(message.topic)).values():
        try:
            result = await admin.group.consume_directly(
                address, group, client_id, message.offset_msg_id, message.broker_name
            )
        except BrokerRefused as error:
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                continue
            raise
        return Fields(result, "result")
    raise CommandError(f"client {client_id} of group {group} is not connected")


async def _resend(admin: Admin, message: MessageExt) -> Fields:
    again = Message(message.topic, message.body, message.tags, message.keys)
    async with producer_of(admin) as producer:
        result = await producer.send(again)
    return Fields(
        {"status": result.status.name, "msgId": result.msg_id, "offset": result.queue_offset},
        "sent",
    )


async def _tracks(admin: Admin, message: MessageExt) -> Fields:
    """Return each group's consumption state of the message."""
    tracks: dict[str, str] = {}
    leaders = await admin.cluster.leaders_of(message.topic)
    for address in leaders.values():
        for group in await admin.topic.groups(address, message.topic):
            if group not in tracks:
                tracks[group] = await _track(admin, group, message)
    return Fields(tracks, "consumers")


async def _track(admin: Admin, group: str, message: MessageExt) -> str:
    stats = await admin.group.stats(group, message.topic)
    for queue, at in stats.queues.items():
        if queue.queue_id == message.queue_id and message.broker_name in ("", queue.broker_name):
            return "CONSUMED" if at.consumer_offset > message.queue_offset else "NOT_CONSUME_YET"
    return "UNKNOWN"


async def by_key(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    start, end = arguments.integer("beginTimestamp"), arguments.integer("endTimestamp")
    result = await admin.message.query(
        arguments.text("topic"),
        arguments.text("msgKey"),
        arguments.integer("maxNum") or 64,
        start or 0,
        TIME_MS_MAX if end is None else end,
    )
    rows = [
        {"msgId": m.msg_id, "broker": m.broker_name, "queue": m.queue_id, "offset": m.queue_offset}
        for m in result
    ]
    return [Table(rows, columns=("msgId", "broker", "queue", "offset"))]


async def by_offset(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    queue_id, offset = arguments.integer("queueId"), arguments.integer("offset")
    assert queue_id is not None and offset is not None  # required
    queue = MessageQueue(arguments.text("topic"), arguments.text("brokerName"), queue_id)
    result, _ = await admin.message.pull(queue, offset, 1)
    if not result or result[0].queue_offset != offset:
        raise CommandError(f"there is no message at offset {offset} of {_named(queue)}")
    return [Fields(_complete(result[0], arguments.text("bodyFormat")))]


async def queue_units(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    topic, queue_id = arguments.text("topic"), arguments.integer("queue")
    index, count = arguments.integer("index"), arguments.integer("count")
    assert queue_id is not None and index is not None  # required
    address = arguments.text("broker")
    if not address:
        leaders = await admin.cluster.leaders_of(topic)
        if not leaders:
            raise CommandError(f"nobody leads a broker group that has topic {topic}")
        address = next(iter(leaders.values()))
    body = await admin.message.consume_queue(
        address, topic, queue_id, index, count or 10, arguments.text("consumer")
    )
    rows = [
        {
            "index": index + at,
            "commitLogOffset": unit.get("physicOffset"),
            "size": unit.get("physicSize"),
            "tagsCode": unit.get("tagsCode"),
            "matches": bool(unit.get("eval", True)),
            "note": unit.get("msg") or "",
        }
        for at, unit in enumerate(body.get("queueData") or [])
    ]
    about = {"minIndex": body.get("minQueueIndex"), "maxIndex": body.get("maxQueueIndex")}
    if body.get("subscriptionData"):
        about["subscription"] = body["subscriptionData"].get("subString")
    return [Fields(about, "queue"), Table(rows, "units", ("index", "commitLogOffset", "size"))]


async def print_all(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    topic = arguments.text("topic")
    queues = (await admin.cluster.route(topic)).read_queues(topic)
    with_body = arguments.boolean("printBody") is not False
    expression, charset = arguments.text("subExpression") or "*", arguments.text("charsetName")
    shown = partial(_row, charset=charset, with_body=with_body)
    rows = await _read(admin, queues, arguments, PRINTED_MAX, shown, expression=expression)
    if len(rows) == PRINTED_MAX:
        return [Table(rows, "messages"), Fields({"more": "not shown"}, "rest")]
    return [Table(rows, columns=("msgId", "queue", "offset"))]


async def consume(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    topic, name = arguments.text("topic"), arguments.text("brokerName")
    queue_id, offset = arguments.integer("queueId"), arguments.integer("offset")
    if (queue_id is not None and not name) or (offset is not None and queue_id is None):
        raise CommandError("-o OFFSET needs -i QUEUE, and -i QUEUE needs -b BROKER", usage=True)
    queues = [
        queue
        for queue in (await admin.cluster.route(topic)).read_queues(topic)
        if name in ("", queue.broker_name) and queue_id in (None, queue.queue_id)
    ]
    if not queues:
        raise CommandError(f"topic {topic} has no such queue")
    most = min(arguments.integer("MessageNumber") or 128, PRINTED_MAX)
    rows = await _read(admin, queues, arguments, most, _row, offset)
    return [Table(rows, columns=("msgId", "queue", "offset"))]


async def _read(
    admin: Admin,
    queues: Sequence[MessageQueue],
    arguments: Arguments,
    count_max: int,
    shown: Callable[[MessageExt], dict[str, Any]],
    start: int | None = None,
    expression: str = "*",
) -> list[dict[str, Any]]:
    """Return the queues' first messages from `start` or the flags' time, formatted."""
    requested = {tag.strip() for tag in expression.split("||")} - {"*", ""}
    rows: list[dict[str, Any]] = []
    for queue in queues:
        offset, end = await _span(admin, queue, arguments)
        offset = offset if start is None else start
        while offset < end:
            result, following = await admin.message.pull(queue, offset, PULL_COUNT, expression)
            for message in result:
                # Brokers compare only the tag's hash.
                if message.queue_offset < end and (not requested or message.tags in requested):
                    rows.append(shown(message))
                    if len(rows) == count_max:
                        return rows
            if following <= offset:
                break
            offset = following
    return rows


async def _span(admin: Admin, queue: MessageQueue, arguments: Arguments) -> tuple[int, int]:
    """Return the first offset, and the offset after the last."""
    start_ms = arguments.integer("beginTimestamp")
    end_ms = arguments.integer("endTimestamp")
    offsets = admin.offset
    start = await (offsets.min(queue) if start_ms is None else offsets.search(queue, start_ms))
    end = await (offsets.max(queue) if end_ms is None else offsets.search(queue, end_ms))
    return start, end


async def send(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    if arguments.boolean("msgTraceEnable"):
        raise CommandError("-m true: message traces are not written by this tool", usage=True)
    topic, name = arguments.text("topic"), arguments.text("broker")
    queue_id = arguments.integer("qid")
    if (queue_id is None) != (not name):
        raise CommandError("-b BROKER and -i QUEUE go together", usage=True)
    queue = None if queue_id is None else MessageQueue(topic, name, queue_id)
    keys, tags = arguments.text("key"), arguments.text("tags")
    message = Message(topic, arguments.text("body").encode(), tags or None, keys or None)
    async with producer_of(admin) as producer:
        result = await producer.send(message, queue=queue)
    values = {
        "broker": result.queue.broker_name,
        "queue": result.queue.queue_id,
        "offset": result.queue_offset,
        "status": result.status.name,
        "msgId": result.msg_id,
        "offsetMsgId": result.offset_msg_id,
    }
    where = f"queue {result.queue.queue_id} of {result.queue.broker_name}"
    return [Done(f"{result.msg_id} is at offset {result.queue_offset} of {where}", values)]


def producer_of(admin: Admin, config: SendConfig | None = None) -> Producer:
    """Return a producer with the admin client's connection and signing settings."""
    servers, how = list(admin.name_servers), admin.instance_config
    return Producer(PRODUCER_GROUP, servers, config=config, instance_config=how)


def _named(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of topic {queue.topic} at {queue.broker_name}"


def _text(body: bytes, charset: str = "") -> str:
    """Return the body as text, or as `base64:…`. Raises CommandError."""
    try:
        return body.decode(charset or "utf-8")
    except LookupError as error:
        raise CommandError(f"unknown charset {charset!r}", usage=True) from error
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(body).decode()}"


def _row(message: MessageExt, charset: str = "", *, with_body: bool = True) -> dict[str, Any]:
    row: dict[str, Any] = {
        "msgId": message.msg_id,
        "broker": message.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "tags": message.tags or "",
        "keys": message.keys or "",
        "stored": show_time(message.store_timestamp_ms),
    }
    if with_body:
        row["body"] = _text(message.body, charset)
    return row


def _complete(message: MessageExt, charset: str = "") -> dict[str, Any]:
    return {
        "offsetMsgId": message.offset_msg_id,
        "msgId": message.msg_id,
        "topic": message.topic,
        "tags": message.tags or "",
        "keys": message.keys or "",
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "reconsumeTimes": message.reconsume_times,
        "born": show_time(message.born_timestamp_ms),
        "stored": show_time(message.store_timestamp_ms),
        "bornHost": format_address(*message.born_host),
        "storeHost": format_address(*message.store_host),
        "sysFlag": message.sys_flag,
        "properties": dict(sorted(message.properties.items())),
        "body": _text(message.body, charset),
    }
