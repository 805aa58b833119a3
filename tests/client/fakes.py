"""A scripted cluster over real sockets: one name server, replicas that share one message log.

A `FakeBroker` answers sends by its `mode`, or by the next entry of `script` if there is one:
"ok", "silent" (never answers; as a mode not even heartbeats), "slow" (answers those), "close"
(breaks the connection, message stored), "refuse" (14 with the `hint`), or (code, remark), followed
by the answer's fields if there are any.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from typing import Any

from raftmq.client.message import MessageQueue
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Answer, Connection
from raftmq.remoting.fast_json import dumps, loads_object
from raftmq.remoting.headers import (
    ConsumerOffsetHeader,
    PullHeader,
    PullResponseHeader,
    QueueOffsetHeader,
    SendHeader,
)
from raftmq.remoting.pop_headers import PopHeader, PopResponseHeader
from raftmq.remoting.server import RemotingServer
from raftmq.store.properties import decode_properties
from raftmq.store.record import MessageRecord, decode_record, encode_record, offset_message_id

Script = str | tuple[int, str] | tuple[int, str, dict[str, str]]


class SharedLog:
    """The log that the fake replicas of a group share."""

    def __init__(self, name: str = "") -> None:
        self.name = name  # of the group
        self.records: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.first: dict[tuple[str, int], int] = {}
        self.popped: dict[str, int] = defaultdict(int)  # topic → messages of queue 0
        self.position = 0

    def append(
        self, topic: str, queue_id: int, body: bytes, properties: str = "", sys_flag: int = 0
    ) -> tuple[int, int]:
        """(queue offset, position)."""
        key = (topic, queue_id)
        offset = self.first.get(key, 0) + len(self.records[key])
        record = MessageRecord(
            topic=topic,
            body=body,
            properties=properties.encode(),
            queue_id=queue_id,
            flag=0,
            queue_offset=offset,
            physical_offset=self.position,
            sys_flag=sys_flag,
            born_timestamp_ms=1,
            born_host=("127.0.0.1", 1),
            store_timestamp_ms=2,
            store_host=("127.0.0.1", 10911),
            reconsume_times=0,
            prepared_transaction_offset=0,
        )
        data = encode_record(record)
        self.records[key].append(data)
        position = self.position
        self.position += len(data)
        return offset, position

    def bodies(self, topic: str) -> list[bytes]:
        """Stored bodies of a topic, every queue."""
        return [
            decode_record(data).body
            for (name, _), items in self.records.items()
            if name == topic
            for data in items
        ]

    def unique_keys(self, topic: str) -> list[str]:
        keys = []
        for (name, _), items in self.records.items():
            for data in items if name == topic else []:
                text = decode_record(data).properties.decode()
                keys.append(text.partition("UNIQ_KEY\x01")[2].partition("\x02")[0])
        return keys


class FakeBroker:
    """One replica."""

    def __init__(self, log: SharedLog, members: dict[str, set[str]] | None = None) -> None:
        self.log = log
        self.late = asyncio.Event()  # when it is set, requests whose script is "late" are served
        self.mode: Script = "ok"
        self.script: deque[Script] = deque()
        self.hint: str | None = None
        self.pull_refused = False
        self.suggests = 0  # the brokerId to pull from next, where a pull finds something
        self.pull_answers: deque[tuple[int, int, int, int]] = deque()  # code, next, min, max
        self.heartbeat_refusal: tuple[int, str] | None = None
        self.heartbeat_s = 0.0  # what it takes to work on a heartbeat; other requests overtake it
        self.send_back_code = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        self.scripts: dict[int, deque[Script]] = defaultdict(deque)  # of other requests, by code
        self.locks: dict[tuple[str, str, int], str] = {}  # group, topic, queue → client
        self.connections: dict[str, Connection] = {}  # by client id, from heartbeats
        self.requests: list[RemotingCommand] = []
        self.members = members if members is not None else defaultdict(set)
        self.changed = asyncio.Event()
        self.server = self._new_server()
        self.port = 0

    def _new_server(self) -> RemotingServer:
        return RemotingServer(
            {
                RequestCode.SEND_MESSAGE_V2: self._send,
                RequestCode.SEND_BATCH_MESSAGE: self._send,
                RequestCode.SEND_REPLY_MESSAGE_V2: self._reply,
                RequestCode.END_TRANSACTION: self._scripted,
                RequestCode.BATCH_ACK_MESSAGE: self._scripted,
                RequestCode.ACK_MESSAGE: self._scripted,
                RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self._scripted,
                RequestCode.POP_MESSAGE: self._pop,
                RequestCode.RECALL_MESSAGE: self._scripted,
                RequestCode.LOCK_BATCH_MQ: self._lock,
                RequestCode.UNLOCK_BATCH_MQ: self._unlock,
                RequestCode.CHECK_CLIENT_CONFIG: self._scripted,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search_offset,
                RequestCode.GET_CONSUME_STATS: self._stats,
                RequestCode.PULL_MESSAGE: self._pull,
                RequestCode.LITE_PULL_MESSAGE: self._pull,
                RequestCode.HEART_BEAT: self._heartbeat,
                RequestCode.UNREGISTER_CLIENT: self._unregister,
                RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
                RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
                RequestCode.GET_MAX_OFFSET: self._max_offset,
                RequestCode.GET_MIN_OFFSET: self._min_offset,
                RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._members,
                RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
                RequestCode.UPDATE_AND_CREATE_TOPIC: self._create_topic,
                RequestCode.VIEW_MESSAGE_BY_ID: self._view,
                RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime,
                RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self._group_config,
            }
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        await self.server.start("127.0.0.1", self.port)
        self.port = self.server.port

    async def stop(self) -> None:
        await self.server.stop(0.1)

    async def restart(self) -> None:
        """Up again at the same address."""
        self.server = self._new_server()
        await self.start()

    def count(self, code: int) -> int:
        return sum(1 for request in self.requests if request.code == code)

    def received(self, code: int) -> list[RemotingCommand]:
        return [request for request in self.requests if request.code == code]

    def push(self, command: RemotingCommand) -> None:
        """Send a one-way request to every client."""
        for connection in list(self.server.connections):
            connection.invoke_oneway(command)

    def appended(self) -> None:
        """Wake held pulls."""
        self.changed.set()
        self.changed = asyncio.Event()

    # ---- handlers

    def _scripted(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """Answered by the next entry of `scripts[code]`, else by `mode`."""
        self.requests.append(request)
        script = self.scripts[request.code]
        mode = script.popleft() if script else self.mode
        if mode == "silent" or request.is_oneway:
            return None
        if mode == "close":
            connection.abort("scripted")
            return None
        if mode == "refuse":
            code = int(ResponseCode.SERVICE_NOT_AVAILABLE)
            return RemotingCommand.response_to(request, code, "[NOT_LEADER] not me", {})
        if isinstance(mode, tuple):
            return RemotingCommand.response_to(request, mode[0], mode[1], {})
        return RemotingCommand.response_to(request, 0, None, {})

    async def _reply(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """325: pushed to the client that its properties name."""
        answer = self._scripted(connection, request)
        if answer is None or answer.code:
            return answer
        header = SendHeader.parse(request.ext, request.code)
        client = decode_properties(header.properties)["REPLY_TO_CLIENT"]
        if client not in self.connections:
            return RemotingCommand.response_to(request, 1, f"no channel of {client}", {})
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        push = RemotingCommand.request(code, header.to_ext(code), request.body)
        return RemotingCommand.response_to(
            request, (await self.connections[client].invoke(push, 3000)).code, None, {}
        )

    def _lock(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        answer = self._scripted(connection, request)
        if answer is None or answer.code:
            return answer
        body = loads_object(request.body)
        granted = []
        for wire in body["mqSet"]:
            key = (body["consumerGroup"], wire["topic"], wire["queueId"])
            if self.locks.setdefault(key, body["clientId"]) == body["clientId"]:
                granted.append(wire)
        return RemotingCommand.response_to(request, 0, None, {}, dumps({"lockOKMQSet": granted}))

    def _unlock(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        body = loads_object(request.body)
        for wire in body["mqSet"]:
            key = (body["consumerGroup"], wire["topic"], wire["queueId"])
            if self.locks.get(key) == body["clientId"]:
                del self.locks[key]
        return self._scripted(connection, request)

    def _search_offset(self, _c: Connection, request: RemotingCommand) -> RemotingCommand:
        """Store timestamps are 2, and time passes with every message of a queue."""
        header = QueueOffsetHeader.parse(request.ext)
        assert header.timestamp_ms is not None
        end = self.log.first.get(key := (header.topic, header.queue_id), 0)
        end += len(self.log.records[key])
        return _offset_answer(request, min(max(0, header.timestamp_ms - 2), end))

    def _stats(self, _c: Connection, request: RemotingCommand) -> RemotingCommand:
        """The group's progress in the topics with its offsets."""
        group = (request.ext or {})["consumerGroup"]
        queues = []
        for (name, topic, queue_id), offset in sorted(self.log.offsets.items()):
            key = topic, queue_id
            end = self.log.first.get(key, 0) + len(self.log.records[key])
            place = {"topic": topic, "brokerName": self.log.name, "queueId": queue_id}
            progress = {"brokerOffset": end, "consumerOffset": offset, "lastTimestamp": 2}
            queues += [f"{dumps(place).decode()}:{dumps(progress).decode()}"] * (name == group)
        if not queues:
            code = int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
            return RemotingCommand.response_to(request, code, f"group[{group}] does not exist")
        body = f'{{"offsetTable":{{{",".join(queues)}}}}}'
        return RemotingCommand.response_to(request, 0, None, None, body.encode())

    def _send(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        self.requests.append(request)
        mode = self.script.popleft() if self.script else self.mode
        if mode in ("silent", "slow"):
            return None
        if mode == "refuse":
            ext = {"leaderAddr": self.hint} if self.hint else {}
            remark = "[NOT_LEADER] not me"
            return RemotingCommand.response_to(
                request, ResponseCode.SERVICE_NOT_AVAILABLE, remark, ext
            )
        if isinstance(mode, tuple) and mode[0] not in (10, 11, 12):
            ext = mode[2] if len(mode) == 3 else {}
            return RemotingCommand.response_to(request, mode[0], mode[1], ext)
        header = SendHeader.parse(request.ext, request.code)
        offset, position = self.log.append(
            header.topic, header.queue_id, request.body, header.properties, header.sys_flag
        )
        self.appended()
        if mode == "close":
            connection.abort("scripted")
            return None
        ext = {
            "msgId": offset_message_id(("127.0.0.1", self.port), position),
            "queueId": str(header.queue_id),
            "queueOffset": str(offset),
        }
        code = mode[0] if isinstance(mode, tuple) else 0  # 10, 11, 12: stored, with a reservation
        return RemotingCommand.response_to(request, code, None, ext)

    async def _pop(self, _c: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """One message of queue 0, which no pop has got yet."""
        self.requests.append(request)
        script = self.scripts[request.code]
        mode = script.popleft() if script else self.mode
        if mode == "silent":
            return None
        if mode == "refuse":
            code = int(ResponseCode.SERVICE_NOT_AVAILABLE)
            return RemotingCommand.response_to(request, code, "[NOT_LEADER] not me", {})
        if mode == "full":
            return RemotingCommand.response_to(request, ResponseCode.POLLING_FULL, "", {})
        if mode == "late":
            await self.late.wait()
        header = PopHeader.parse(request.ext)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + header.poll_ms / 1000
        items = self.log.records[header.topic, 0]
        while self.log.popped[header.topic] == len(items):
            changed = self.changed
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                return RemotingCommand.response_to(request, ResponseCode.POLLING_TIMEOUT, "", {})
        offset = self.log.popped[header.topic]
        self.log.popped[header.topic] += 1
        head = PopResponseHeader(5, header.invisible_ms, 0, 0, f"0 0 {offset}", f"0 0 {offset}")
        return RemotingCommand.response_to(request, 0, None, head.to_ext(), items[offset])

    async def _pull(self, _c: Connection, request: RemotingCommand) -> RemotingCommand | None:
        self.requests.append(request)
        if self.scripts[request.code]:
            assert self.scripts[request.code].popleft() == "silent"
            return None
        if self.pull_refused:
            ext = {"leaderAddr": self.hint} if self.hint else {}
            return RemotingCommand.response_to(
                request, ResponseCode.SERVICE_NOT_AVAILABLE, "[NOT_LEADER]", ext
            )
        header = PullHeader.parse(request.ext)
        if self.pull_answers:
            code, following, low, high = self.pull_answers.popleft()
            return _pull_answer(request, code, following, low, high)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + header.suspend_timeout_ms / 1000
        key = (header.topic, header.queue_id)
        while True:
            first = self.log.first.get(key, 0)
            items = self.log.records[key]
            end = first + len(items)
            at = header.queue_offset
            if at < end:
                chosen = items[max(0, at - first) : max(0, at - first) + header.message_count_max]
                following = max(at, first) + len(chosen)
                body = b"".join(chosen)
                return _pull_answer(request, 0, following, first, end, body, self.suggests)
            changed = self.changed
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                return _pull_answer(request, ResponseCode.PULL_NOT_FOUND, at, first, end)

    def _heartbeat(self, _c: Connection, request: RemotingCommand) -> Answer:
        self.requests.append(request)
        if self.heartbeat_refusal is not None:
            return RemotingCommand.response_to(request, *self.heartbeat_refusal)
        body = loads_object(request.body)
        self.connections[body["clientID"]] = _c
        if self.mode == "silent":
            return None
        if not self.heartbeat_s:
            return self._join(request, body)
        # In another thread, as it were: also when the connection is gone by then.
        loop = asyncio.get_running_loop()
        loop.call_later(self.heartbeat_s, lambda: _c.reply(request, self._join(request, body)))
        return None

    def _join(self, request: RemotingCommand, body: dict[str, Any]) -> RemotingCommand:
        for data in body["consumerDataSet"]:
            self.members[data["groupName"]].add(body["clientID"])
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, None, {})

    def _unregister(self, _c: Connection, request: RemotingCommand) -> RemotingCommand:
        self.requests.append(request)
        ext = request.ext or {}
        if "consumerGroup" in ext:
            self.members[ext["consumerGroup"]].discard(ext["clientID"])
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, None, {})

    def _query_offset(self, _c: Connection, request: RemotingCommand) -> RemotingCommand:
        header = ConsumerOffsetHeader.parse(request.ext)
        result = self.log.offsets.get((header.consumer_group, header.topic, header.queue_id))
        if result is None:
            return RemotingCommand.response_to(request, ResponseCode.QUERY_NOT_FOUND, "none", {})
        return _offset_answer(request, result)

    def _update_offset(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        script = self.scripts[request.code]
        if script:
            return self._scripted(connection, request)
        self.requests.append(request)
        header = ConsumerOffsetHeader.parse(request.ext)
        assert header.commit_offset is not None
        key = (header.consumer_group, header.topic, header.queue_id)
        self.log.offsets[key] = header.commit_offset
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, None, {})

    def _max_offset(self, _c: Connection, request: RemotingCommand) -> RemotingCommand:
        header = QueueOffsetHeader.parse(request.ext)
        key = (header.topic, header.queue_id)
        return _offset_answer(request, self.log.first.get(key, 0) + len(self.log.records[key]))

    def _min_offset(self, _c: Connection, request: RemotingCommand) -> RemotingCommand:
        header = QueueOffsetHeader.parse(request.ext)
        return _offset_answer(request, self.log.first.get((header.topic, header.queue_id), 0))

    def _members(self, _c: Connection, request: RemotingCommand) -> RemotingCommand:
        ids = sorted(self.members[(request.ext or {})["consumerGroup"]])
        body = dumps({"consumerIdList": ids})
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, None, {}, body)

    def _send_back(self, _c: Connection, request: RemotingCommand) -> RemotingCommand:
        self.requests.append(request)
        return RemotingCommand.response_to(request, self.send_back_code, "scripted")

    def _create_topic(self, _c: Connection, request: RemotingCommand) -> RemotingCommand:
        self.requests.append(request)
        if self.mode == "refuse":
            return RemotingCommand.response_to(
                request, ResponseCode.SERVICE_NOT_AVAILABLE, "[NOT_LEADER]", {}
            )
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, None, {})

    def _view(self, _c: Connection, request: RemotingCommand) -> RemotingCommand:
        position = int((request.ext or {})["offset"])
        for items in self.log.records.values():
            for data in items:
                if decode_record(data).physical_offset == position:
                    return RemotingCommand.response_to(request, 0, None, {}, data)
        return RemotingCommand.response_to(request, ResponseCode.SYSTEM_ERROR, "not found", {})

    def _group_config(self, _c: Connection, request: RemotingCommand) -> RemotingCommand:
        code = int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        return RemotingCommand.response_to(request, code, "scripted")

    def _runtime(self, _c: Connection, request: RemotingCommand) -> RemotingCommand:
        body = dumps({"table": {"raftRole": "leader", "raftTerm": "3"}})
        return RemotingCommand.response_to(request, 0, None, {}, body)


class FakeNameServer:
    """Answers 105, 106 and 206 from `groups`: name → {brokerId: broker}, and `topics`."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[int, FakeBroker]] = {}
        self.topics: dict[str, dict[str, tuple[int, int]]] = {}  # topic → group → queues, perm
        self.requests: list[RemotingCommand] = []
        self.silent = False
        self.raft = True  # whether the groups are Raft groups
        self.server = RemotingServer(
            {
                RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
                RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster,
                RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            }
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def count(self, code: int) -> int:
        return sum(1 for request in self.requests if request.code == code)

    def _broker_data(self, name: str) -> dict[str, Any]:
        addresses = {key: broker.address for key, broker in self.groups[name].items()}
        data = {"cluster": "c", "brokerName": name, "brokerAddrs": addresses}
        return data | {"raftGroup": True} if self.raft else data

    def _route(self, _c: Connection, request: RemotingCommand) -> RemotingCommand | None:
        self.requests.append(request)
        if self.silent:
            return None
        topic = self.topics.get((request.ext or {})["topic"])
        if topic is None:
            return RemotingCommand.response_to(request, ResponseCode.TOPIC_NOT_EXIST, "no route")
        queues = [
            {"brokerName": n, "readQueueNums": c, "writeQueueNums": c, "perm": p, "topicSysFlag": 0}
            for n, (c, p) in topic.items()
        ]
        body = {"queueDatas": queues, "brokerDatas": [self._broker_data(n) for n in topic]}
        return RemotingCommand.response_to(request, 0, None, None, dumps(body))

    def _cluster(self, _c: Connection, request: RemotingCommand) -> RemotingCommand | None:
        self.requests.append(request)
        if self.silent:
            return None
        # The map keys of this one are unquoted numbers, as Apache's name server writes them.
        parts = []
        for name, group in self.groups.items():
            addresses = ",".join(f'{key}:"{b.address}"' for key, b in group.items())
            kind = ',"raftGroup":true' if self.raft else ""
            parts.append(f'"{name}":{{"brokerName":"{name}","brokerAddrs":{{{addresses}}}{kind}}}')
        clusters = '"clusterAddrTable":{"c":["g0"]}'
        body = f'{{"brokerAddrTable":{{{",".join(parts)}}},{clusters}}}'
        return RemotingCommand.response_to(request, 0, None, None, body.encode())

    def _topics(self, _c: Connection, request: RemotingCommand) -> RemotingCommand:
        body = dumps({"topicList": sorted(self.topics)})
        return RemotingCommand.response_to(request, 0, None, None, body)


class FakeCluster:
    """`async with FakeCluster({"g0": 3}) as cluster`: groups with so many replicas each."""

    def __init__(self, groups: dict[str, int], topic: str = "T", queues: int = 4) -> None:
        self.name_server = FakeNameServer()
        self.logs: dict[str, SharedLog] = {}
        self.brokers: dict[str, list[FakeBroker]] = {}
        self._shape = groups
        self._topic = topic
        self._queues = queues

    async def __aenter__(self) -> FakeCluster:
        await self.name_server.server.start("127.0.0.1")
        for name, count in self._shape.items():
            log = self.logs[name] = SharedLog(name)
            members: dict[str, set[str]] = defaultdict(set)
            self.brokers[name] = [FakeBroker(log, members) for _ in range(count)]
            for broker in self.brokers[name]:
                await broker.start()
            self.lead(name, 0, tell_route=True)
        self.name_server.topics[self._topic] = {n: (self._queues, 6) for n in self._shape}
        return self

    async def __aexit__(self, *_: object) -> None:
        for brokers in self.brokers.values():
            for broker in brokers:
                await broker.stop()
        await self.name_server.server.stop(0.1)

    @property
    def namesrv(self) -> str:
        return self.name_server.address

    def lead(self, name: str, index: int, *, tell_route: bool, hint: bool = False) -> None:
        """Make a replica the leader; the others refuse, with its address if `hint`."""
        brokers = self.brokers[name]
        for number, broker in enumerate(brokers):
            leads = number == index
            broker.mode = "ok" if leads else "refuse"
            broker.pull_refused = not leads
            broker.hint = brokers[index].address if hint else None
        if tell_route:
            others = [b for number, b in enumerate(brokers) if number != index]
            self.name_server.groups[name] = dict(enumerate([brokers[index], *others]))

    def no_leader(self, name: str) -> None:
        for broker in self.brokers[name]:
            broker.mode = "refuse"
            broker.pull_refused = True
            broker.hint = None


def queue(queue_id: int = 0, name: str = "g0", topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, name, queue_id)


def _offset_answer(request: RemotingCommand, offset: int) -> RemotingCommand:
    return RemotingCommand.response_to(request, 0, None, {"offset": str(offset)})


def _pull_answer(
    request: RemotingCommand,
    code: int,
    following: int,
    low: int,
    high: int,
    body: bytes = b"",
    suggests: int = 0,
) -> RemotingCommand:
    ext = PullResponseHeader(suggests, following, low, high).to_ext()
    return RemotingCommand.response_to(request, code, None, ext, body)
