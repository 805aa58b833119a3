"""Every request code of a broker with its largest legal input and its worst illegal one, and the
processor time that each takes of the event loop at once.

`python -m tests.broker.turns` prints the table. `CASES` is complete: tests/broker/test_turns.py
compares it with the broker's handlers.
"""

from __future__ import annotations

import asyncio
import gc
import struct
import sys
import tempfile
import time
from asyncio.events import Handle
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from raftmq.broker.messages.send_request import BATCH_COUNT_MAX
from raftmq.broker.tables.groups import SubscriptionGroup
from raftmq.broker.tables.topics import TopicConfig
from raftmq.remoting.codes import BODY_BYTES_MAX, RequestCode
from raftmq.remoting.headers import PullHeader, SendHeader
from raftmq.store.record import pack_host
from tests.broker.cluster import Group
from tests.present import present
from tests.waiting import until

TOPICS, GROUPS, WIDE, MEMBERS, STORED = 1_000, 1_000, 1_024, 1_000, 3 * BATCH_COUNT_MAX
LARGE = 1 << 20


class World:
    """One leader with much of everything."""

    def __init__(self, root: Path) -> None:
        self.group = Group(
            root, frameSizeMax=str(1 << 20), mappedFileSizeCommitLog=str(32 << 20),
            enablePropertyFilter="true", maxTransferCountOnMessageInMemory="1024",
        )  # fmt: skip

    async def fill(self) -> None:
        group = self.group
        self.broker = broker = await group.leading()
        for topic in ("T", "Small", "Large", "P"):
            assert (await group.create_topic(broker, topic)).code == 0
        state = broker.state
        for n in range(TOPICS):
            state.topics.put(TopicConfig(f"topic-{n:05}", 4, 4), 0)
        state.topics.put(TopicConfig("Wide", WIDE, WIDE), 0)
        for n in range(GROUPS):
            state.groups.put(SubscriptionGroup(f"group-{n:05}"), 0)
        for group_name in ("cg", "big"):
            state.groups.put(SubscriptionGroup(group_name), 0)
        for n in range(TOPICS):
            for queue in range(4):
                state.offsets.commit([(f"topic-{n:05}", "big", queue, 1)])
        state.offsets.commit([("Wide", "big", queue, 1) for queue in range(WIDE)])
        for _ in range(STORED // BATCH_COUNT_MAX):
            answer = await self.ask(320, send_ext("T", "WAIT\x01true\x02", 320), BATCH)
            assert answer.code == 0, answer
        small = [group.send(broker, "Small", b"s" * 300, properties=f"KEYS\x01key\x02a\x01{n}\x02")
                 for n in range(300)]  # fmt: skip
        large = [group.send(broker, "Large", bytes(LARGE)) for _ in range(24)]
        mixed = [one for n in range(24) for one in (*small[12 * n : 12 * n + 12], large[n])]
        for first in range(0, len(mixed), 26):
            await asyncio.gather(*mixed[first : first + 26])
        await asyncio.gather(*small[288:])
        assert (await self.ask(34, None, heartbeat("crowd", 1))).code == 0
        members = broker.clients.consumers["cg"].members
        (member,) = members.values()
        for n in range(MEMBERS):
            members[f"member-{n}"] = member
        await until(lambda: not broker.sends.held_bytes)

    async def ask(self, code, ext=None, body=b""):
        return await self.group.ask(self.broker, code, ext, body, timeout_ms=120_000)


def send_ext(topic, properties="", code=310):
    header = SendHeader("pg", topic, "TBW102", 4, 0, 0, 1_700_000_000_000, 0, properties)
    return header.to_ext(code)


def item(body=b"b", properties=b""):
    size = 22 + len(body) + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, 0, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


BATCH = item() * BATCH_COUNT_MAX


def subscription(topic, text="*", kind="TAG"):
    return {"topic": topic, "subString": text, "subVersion": 1, "expressionType": kind}


def heartbeat(client, groups, subscriptions=1, tags="*"):
    reported = [subscription(f"topic-{n:05}", tags) for n in range(subscriptions)]
    name = "cg" if groups == 1 else "group-"
    consumers = [{"groupName": name if groups == 1 else f"{name}{n:05}", "consumeType":
                  "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "consumeFromWhere":
                  "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": reported}
                 for n in range(groups)]  # fmt: skip
    return orjson.dumps({"clientID": client, "consumerDataSet": consumers, "producerDataSet": []})


def lists(*keys, entry=b"{}"):
    """Return a body of BODY_BYTES_MAX whose lists of these names have as many entries as fit."""
    start = b'{"clientID":"c","consumerGroup":"cg","clientId":"c","topic":"T"'
    room = (BODY_BYTES_MAX - len(start) - 64) // len(keys)
    parts = [start]
    for key in keys:
        count = (room - len(key) - 6) // (len(entry) + 1)
        parts.append(b',"%s":[%s]' % (key.encode(), b",".join([entry] * count)))
    body = b"".join(parts) + b"}"
    assert len(body) <= BODY_BYTES_MAX
    return body


LISTS = ("consumerDataSet", "producerDataSet", "mqSet", "topicConfigList", "groupConfigList",
         "acks", "subscriptionDataSet")  # fmt: skip
# Bodies that cost much before they are refused.
JUNK = {
    "empty objects": lists(*LISTS),
    "numbers": lists(*LISTS, entry=b"1"),
    "deep": b"[" * BODY_BYTES_MAX,
    "fields": b"{" + b",".join(b'"%x":0' % n for n in range(100_000)) + b"}",
    "dialect": b"{" + b",".join(b"%d:0" % n for n in range(100_000)) + b"}",
    "some fields": b"{" + b",".join(b'"%x":0' % n for n in range(32_000)) + b"}",
    "some of the dialect": b"{" + b",".join(b'%d:"\\""' % n for n in range(4_000)) + b"}",
    "text": b'{"clientID":"' + "ä".encode() * (BODY_BYTES_MAX // 2 - 20) + b'"}',
}
EVERYWHERE = ("empty objects", "some fields", "some of the dialect")  # to the others, these
EXT = {
    "topic": "T", "consumerGroup": "big", "group": "big", "producerGroup": "pg", "queueId": "0",
    "queueOffset": "0", "offset": "0", "timestamp": "1", "clientID": "crowd", "clientId": "crowd",
    "maxNum": "2147483647", "count": "2147483647", "maxMsgNums": "1024", "index": "0",
    "beginTimestamp": "0", "endTimestamp": str(1 << 62), "key": "key", "isForce": "true",
    "srcGroup": "big", "destGroup": "fresh", "groupName": "big", "commitOffset": "0",
    "originMsgId": "", "delayLevel": "3", "statsName": "TOPIC_PUT_NUMS", "statsKey": "T",
    "minTime": "0", "bornTime": "0", "pollTime": "0", "invisibleTime": "60000", "initMode": "0",
    "order": "false", "op": "list", "sysFlag": "0", "subVersion": "0", "suspendTimeoutMillis": "0",
    "subscription": "*", "extraInfo": "x", "target": "nobody",
}  # fmt: skip


def pulls(code):
    """Return pulls of small messages among large ones, of many, and with filters."""

    def pull(topic, offset=0, text="*", kind="TAG", count=1024):
        header = PullHeader("cg", topic, 0, offset, count, 0x4, 0, 0, text, 0, kind)
        return header.to_ext(), b""

    tags = " || ".join(f"tag{n}" for n in range(1_000))
    deep = " OR ".join(f"a = '{n}x'" for n in range(60))
    patterns = " OR ".join(f"a LIKE '%{n}x%'" for n in range(40))
    return {
        "many": pull("T"),
        "small among large": pull("Small"),
        "large": pull("Large"),
        "tags that match nothing": pull("T", text=tags),
        "expression that matches nothing": pull("T", text=deep, kind="SQL92"),
        "patterns": pull("T", text=patterns, kind="SQL92"),
        "expression over large frames": pull("Small", text=deep, kind="SQL92"),
        "illegal": pull("T", text="(" * 60_000, kind="SQL92"),
    }


def pops(code):
    ext = {**EXT, "consumerGroup": "cg", "queueId": "-1", "maxMsgNums": "32"}
    deep = " OR ".join(f"a = '{n}x'" for n in range(60))
    return {
        "many": (ext, b""),
        "wide": ({**ext, "topic": "Wide"}, b""),
        "small among large": ({**ext, "topic": "Small"}, b""),
        "expression": ({**ext, "topic": "Small", "exp": deep, "expType": "SQL92"}, b""),
    }


def sends(code):
    large = bytes(4 << 20)
    properties = "".join(f"p{n}\x01v\x02" for n in range(4_000))
    ext = send_ext("T", properties, code)
    return {
        "large": (send_ext("T", "", code), large),
        "properties": (ext, b"x"),
        "longest properties": (send_ext("T", "a\x01" + "v" * 32_000 + "\x02", code), b"x"),
        "too long": (send_ext("T", "", code), bytes((4 << 20) + 1)),
    }


def batches(code):
    ext = send_ext("T", "WAIT\x01true\x02", code)
    writer = {"writer": "w", "epoch": "1", "batch": "0", "sequence": "0"}
    last_wrong = BATCH[:-1] + b"\1"
    usual = b"KEYS\x01k\x02UNIQ_KEY\x01%032X\x02TAGS\x01t\x02"
    return {
        "largest": (ext | writer, BATCH),
        "usual": (ext | writer, b"".join(item(b"x" * 100, usual % n) for n in range(8_192))),
        "too many": (ext | writer, item() * 180_000),
        "wrong at the end": (ext | writer, last_wrong),
        "specials": (ext | writer, item() * 8_000 + item(b"x", b"DELAY\x013\x02")),
    }


def heartbeats(code):
    many = [{"groupName": f"group-{n:05}"} for n in range(1_000)]
    return {
        "groups": (None, heartbeat("hb1", 1_000)),
        "subscriptions": (None, heartbeat("hb2", 1, 8_000)),
        "many tags": (None, heartbeat("hb6", 1, 300, "a||" * 990)),
        "a long tag": (None, heartbeat("hb7", 1, 1, "a" * 1_000_000)),
        "tags": (None, heartbeat("hb3", 1, 60, " || ".join(f"tag{n}" for n in range(999)))),
        "producers": (None, orjson.dumps({"clientID": "hb4", "producerDataSet": many})),
        "unknown groups": (None, heartbeat("hb5", 1_000).replace(b"group-", b"fresh-")),
    }


def queues(code):
    entry = {"topic": "T", "brokerName": "group-a", "queueId": 0}
    body = {"consumerGroup": "cg", "clientId": "crowd"}

    def of(count):
        return orjson.dumps(body | {"mqSet": [entry | {"queueId": n} for n in range(count)]})

    return {"largest": (None, of(5_000)), "too many": (None, of(15_000))}


def tables(key, entry):
    def of(code):
        small = [entry(n) for n in range(5_000)]
        return {
            "largest": (None, orjson.dumps({key: small})[:BODY_BYTES_MAX]),
            "known": (None, orjson.dumps({key: small[:2_000]})),
        }

    return of


def acks(code):
    one = {"c": "cg", "t": "T", "r": "0", "q": 0, "rq": 0, "so": 0, "pt": 1, "it": 60_000,
           "b": [255, 255, 255, 255]}  # fmt: skip
    many = [one | {"so": n} for n in range(8_000)]
    bits = {**one, "b": [255] * 200_000}
    return {
        "many": (None, orjson.dumps({"brokerName": "group-a", "acks": many})),
        "bits": (None, orjson.dumps({"brokerName": "group-a", "acks": [bits]})),
    }


def filters(code):
    deep = " OR ".join(f"a = '{n}x'" for n in range(4_000))
    return {
        "expression": (None, orjson.dumps(
            {"group": "cg", "subscriptionData": subscription("T", deep, "SQL92")})),
        "nested": (None, orjson.dumps(
            {"group": "cg", "subscriptionData": subscription("T", "(" * 900_000, "SQL92")})),
    }  # fmt: skip


def definitions(code):
    full = {"since": None, "after": ""}
    return {
        "full": (None, orjson.dumps({"topics": full, "groups": full, "accounts": True})),
        "long": (None, orjson.dumps({"topics": full, "groups": {"after": "x" * 900_000}})),
    }


def settings(code):
    lines = b"\n".join(b"key%d=1" % n for n in range(80_000))
    known = b"\n".join([b"brokerPermission=6"] * 50_000)
    return {"unknown": (None, lines), "repeated": (None, known)}


def usual(**changes):
    """Return a request with the usual fields, and one with these."""

    def of(code):
        result = {"usual": (EXT, b"")}
        if changes:
            result["changed"] = ({**EXT, **changes}, b"")
        return result

    return of


def views(code):
    host = pack_host(("127.0.0.1", 10911)).hex()
    return {
        "a large one": ({**EXT, "offset": "large", "msgId": host}, b""),
        "none": (EXT, b""),
    }


C = RequestCode
CASES = {
    C.SEND_MESSAGE: sends, C.SEND_MESSAGE_V2: sends, C.SEND_REPLY_MESSAGE: sends,
    C.SEND_REPLY_MESSAGE_V2: sends, C.SEND_BATCH_MESSAGE: batches, C.SEND_WRITER_BATCH: batches,
    C.PULL_MESSAGE: pulls, C.LITE_PULL_MESSAGE: pulls,
    C.POP_MESSAGE: pops, C.PEEK_MESSAGE: pops, C.NOTIFICATION: pops, C.POLLING_INFO: usual(),
    C.QUERY_MESSAGE: usual(topic="Small", maxNum="64"),
    C.QUERY_CONSUMER_OFFSET: usual(), C.UPDATE_CONSUMER_OFFSET: usual(commitOffset=str(1 << 62)),
    C.UPDATE_AND_CREATE_TOPIC: usual(topic="New", readQueueNums="65536", writeQueueNums="65536",
        perm="6", topicFilterType="SINGLE_TAG", defaultTopic="TBW102"),
    C.UPDATE_AND_CREATE_TOPIC_LIST: tables("topicConfigList", lambda n: {
        "topicName": f"topic-{n:05}", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}),
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: tables("groupConfigList", lambda n: {
        "groupName": f"group-{n:05}", "consumeEnable": True}),
    C.GET_ALL_TOPIC_CONFIG: usual(), C.UPDATE_BROKER_CONFIG: settings, C.GET_BROKER_CONFIG: usual(),
    C.GET_BROKER_RUNTIME_INFO: usual(), C.SEARCH_OFFSET_BY_TIMESTAMP: usual(boundaryType="upper"),
    C.GET_MAX_OFFSET: usual(), C.GET_MIN_OFFSET: usual(), C.GET_EARLIEST_MSG_STORETIME: usual(),
    C.VIEW_MESSAGE_BY_ID: views, C.HEART_BEAT: heartbeats, C.UNREGISTER_CLIENT: usual(),
    C.CONSUMER_SEND_MSG_BACK: views, C.END_TRANSACTION: usual(commitOrRollback="8",
        tranStateTableOffset="0", commitLogOffset="0", msgId="x", transactionId="x"),
    C.GET_CONSUMER_LIST_BY_GROUP: usual(consumerGroup="cg"),
    C.LOCK_BATCH_MQ: queues, C.UNLOCK_BATCH_MQ: queues, C.GET_ALL_CONSUMER_OFFSET: usual(),
    C.GET_ALL_DELAY_OFFSET: usual(), C.CHECK_CLIENT_CONFIG: filters,
    C.UPDATE_AND_CREATE_ACL_CONFIG: usual(accessKey="a" * 5_000, secretKey="s" * 50_000),
    C.DELETE_ACL_CONFIG: usual(accessKey="nobody"), C.GET_BROKER_CLUSTER_ACL_INFO: usual(),
    C.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: usual(globalWhiteAddrs=",".join(["1.2.3.4"] * 5_000)),
    C.GET_BROKER_CLUSTER_ACL_CONFIG: usual(),
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: usual(), C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: usual(),
    C.GET_TOPIC_STATS_INFO: usual(topic="Wide"),
    C.GET_CONSUMER_CONNECTION_LIST: usual(consumerGroup="cg"),
    C.GET_PRODUCER_CONNECTION_LIST: usual(), C.DELETE_SUBSCRIPTIONGROUP: usual(groupName="big"),
    C.GET_CONSUME_STATS: usual(topic=""), C.DELETE_TOPIC_IN_BROKER: usual(topic="Wide"),
    C.EMPTY_TOPIC: usual(topic="Wide"),
    C.INVOKE_BROKER_TO_RESET_OFFSET: usual(topic="Wide", timestamp="-1"),
    C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: usual(topic="Wide"),
    C.QUERY_TOPIC_CONSUME_BY_WHO: usual(), C.QUERY_CONSUME_TIME_SPAN: usual(topic="Wide"),
    C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: usual(), C.CLEAN_EXPIRED_CONSUMEQUEUE: usual(),
    C.GET_CONSUMER_RUNNING_INFO: usual(clientId="nobody"),
    C.CONSUME_MESSAGE_DIRECTLY: usual(clientId="nobody", msgId="0" * 32),
    C.CLONE_GROUP_OFFSET: usual(topic=""), C.VIEW_BROKER_STATS_DATA: usual(),
    C.CLEAN_UNUSED_TOPIC: usual(), C.GET_BROKER_CONSUME_STATS: usual(isOrder="false"),
    C.QUERY_CONSUME_QUEUE: usual(count="5000"), C.GET_ALL_PRODUCER_INFO: usual(),
    C.DELETE_EXPIRED_COMMITLOG: usual(), C.QUERY_TOPICS_BY_CONSUMER: usual(),
    C.QUERY_SUBSCRIPTION_BY_CONSUMER: usual(), C.GET_TOPIC_CONFIG: usual(),
    C.GET_SUBSCRIPTIONGROUP_CONFIG: usual(), C.RECALL_MESSAGE: usual(recallHandle="A" * 60_000),
    C.QUERY_ASSIGNMENT: lambda code: {"wide": (None, orjson.dumps(
        {"topic": "Wide", "consumerGroup": "cg", "clientId": "crowd", "strategyName": "AVG",
         "messageModel": "CLUSTERING"}))},
    C.SET_MESSAGE_REQUEST_MODE: lambda code: {"usual": (None, orjson.dumps(
        {"topic": "T", "consumerGroup": "cg", "mode": "POP", "popShareQueueNum": 8}))},
    C.GET_ALL_MESSAGE_REQUEST_MODE: usual(), C.GET_BROKER_HA_STATUS: usual(),
    C.TRANSFER_LEADERSHIP: usual(), C.CHANGE_MEMBERS: usual(add="x;" * 20_000),
    C.BACKUP: usual(), C.GET_DEFINITIONS: definitions, C.DRAIN_GROUP: usual(op="status"),
    C.TAKE_MESSAGES: usual(), C.WRITERS: usual(), C.ACK_MESSAGE: usual(),
    C.CHANGE_MESSAGE_INVISIBLETIME: usual(), C.BATCH_ACK_MESSAGE: acks,
}  # fmt: skip
LAST = (C.DELETE_SUBSCRIPTIONGROUP, C.EMPTY_TOPIC, C.DELETE_TOPIC_IN_BROKER, C.CLEAN_UNUSED_TOPIC)


class Longest:
    """The longest callback of the loop, in processor time, since `begin`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.what = ""

    def begin(self) -> None:
        self.seconds, self.what = 0.0, ""

    @contextmanager
    def watching(self):
        run, clock = Handle._run, time.thread_time

        def timed(handle: Handle) -> None:
            started_s = clock()
            run(handle)
            took_s = clock() - started_s
            if took_s > self.seconds:
                self.seconds, self.what = took_s, repr(handle)

        Handle._run = timed  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            Handle._run = run  # type: ignore[method-assign]


async def measure(root: Path, codes=None, limit_s=0.02):
    """Return (seconds, code, case, callback, answer) of each request, the longest turn first. What
    takes longer than the limit is judged by what the machine does at that moment, and asked again,
    up to three times: other work may have come between."""
    try:
        return await _measure(root, codes or CASES, limit_s)
    finally:
        gc.enable()


async def _measure(root, codes, limit_s):
    result = []
    world, longest = World(root), Longest()
    async with world.group:
        await world.fill()
        gc.collect()
        gc.disable()  # a collection falls upon whoever comes
        queue = world.broker.store.queues.queue("Large", 0)
        large_at = str(struct.unpack(">q12x", queue.entries(0, 1))[0])
        for code in sorted(codes, key=lambda code: (code in LAST, code)):
            cases = dict(CASES[code](code))
            for name in JUNK if code == C.HEART_BEAT else EVERYWHERE:
                cases[f"junk: {name}"] = (EXT, JUNK[name])
            for name, (ext, body) in cases.items():
                if ext is not None and ext.get("offset") == "large":
                    ext = {**ext, "offset": large_at}
                best = None
                for _ in range(3):
                    await asyncio.sleep(0)
                    longest.begin()
                    with longest.watching():
                        answer = await world.ask(code, ext, body)
                        for _ in range(5):
                            await asyncio.sleep(0)
                    seconds = longest.seconds
                    if seconds >= limit_s:
                        seconds /= calibrated()
                    took = (seconds, longest.what, answer)
                    best = took if best is None or took[0] < best[0] else best
                    if best[0] < limit_s:
                        break
                seconds, what, answer = present(best)
                result.append((seconds, code, name, what, answer))
    return sorted(result, key=lambda entry: -entry[0])


def calibrated() -> float:
    """Return how many times slower this machine is than the one for which limits are given."""
    best = 1.0
    for _ in range(3):
        started_s = time.thread_time()
        parts = [struct.pack(">iqi", n, n, n) for n in range(20_000)]
        b"".join(parts)
        dict(enumerate(parts))
        best = min(best, time.thread_time() - started_s)
    return max(1.0, best / 0.0050)


def unique(worst):
    shown: list[Any] = []
    for entry in worst.values():
        if not any(entry is other for other in shown):
            shown.append(entry)
    return shown


def main() -> None:
    codes = [int(word) for word in sys.argv[1:]] or None
    with tempfile.TemporaryDirectory() as root:
        result = asyncio.run(measure(Path(root), codes))
    print(f"this machine is {calibrated():.2f} times slower than the reference")
    print(f"{'ms':>8}  {'code':>6}  request")
    worst: dict[object, tuple] = {}
    for entry in result:
        if entry[0] > 0.008:
            worst.setdefault((entry[1], entry[2]), entry)
        worst.setdefault(entry[1], entry)
    for seconds, code, name, what, answer in unique(worst):
        label = f"{RequestCode(code).name} ({name}): {answer.code} {(answer.remark or '')[:50]!r}"
        print(f"{1000 * seconds:8.2f}  {code:>6}  {label}  {what[:90] if seconds > 0.01 else ''}")


if __name__ == "__main__":
    main()
