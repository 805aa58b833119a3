"""`python -m tests.fuzz.record`: make `recorded.jsonl` anew, after the protocols have changed.

All nodes of `world` run behind taps; producers, consumers, tools and browsers do a little of
everything; what went through the taps is kept, some of each kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
import struct
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from raftmq.client import (
    Admin,
    ClientError,
    ConsumeFrom,
    ConsumerConfig,
    ConsumeResult,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from raftmq.dledger.transport import wire
from raftmq.dledger.transport.peer_auth import PROOF_SIZE_BYTES
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codec import FrameReader, decode_command
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import BINARY, RemotingCommand
from raftmq.remoting.errors import RemotingError, RemotingProtocolError
from tests.fuzz.samples import Sample, save
from tests.fuzz.tap import Conversation, Taps
from tests.fuzz.world import GROUPS, HOST, World

PATIENCE_S = 120.0
TOPIC, GROUP = "Fuzzed", "fuzz"
FILLED_IN = {"topic": TOPIC, "group": GROUP, "name": GROUP, "queueId": "0", "consumerGroup": GROUP}


async def main() -> None:
    taps = Taps()
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory), ["names", *sum(GROUPS.values(), ())], route=taps.to)
        web = {name: taps.to("nameshttp" if name == "names" else "http", node.ports["http"])
               for name, node in world.nodes.items()}  # fmt: skip
        secure = taps.to("tls", world.nodes["n0"].ports["remoting"])
        await taps.start()
        with world:
            await _everything(world, web, secure)
        await taps.stop()
    count = save(sample for talk in taps.conversations for sample in samples_of(talk))
    print(f"{count} samples kept of {len(taps.conversations)} conversations")


async def _everything(world: World, web: Mapping[str, int], secure: int) -> None:
    async with Admin(world.namesrv) as admin:
        await _until_ready(admin)
        await admin.topic.create(TOPIC, 4)
        await asyncio.sleep(2)  # until name servers have heard of it
        await _clients(world.namesrv)
        leader = (await admin.cluster.leaders_of(TOPIC))["raft3"]
        await _tools(admin, leader)
        await _binary(leader)
        for name in world.nodes:
            await asyncio.to_thread(_browse, web[name])
        await asyncio.to_thread(_greet, secure, world.ca)
        await admin.broker.transfer_leadership(leader)  # brings votes
        await asyncio.sleep(3)


async def _until_ready(admin: Admin) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(ClientError, RemotingError):
                brokers = (await admin.cluster.info()).brokers.values()
                if len(brokers) == len(GROUPS) and all(b.leader for b in brokers):
                    return
            await asyncio.sleep(0.2)


class _Decided:
    """A transaction's listener: every third is committed, rolled back, asked for later."""

    def __init__(self) -> None:
        self._count = 0

    def execute(self, message: Message, arg: Any) -> TransactionState:
        self._count += 1
        return list(TransactionState)[self._count % 3]

    def check(self, message: Any) -> TransactionState:
        return TransactionState.COMMIT


async def _clients(namesrv: str) -> None:
    tries = 0

    async def listen(messages: list[Any]) -> ConsumeResult:
        nonlocal tries
        tries += 1
        return ConsumeResult.RECONSUME_LATER if tries < 3 else ConsumeResult.SUCCESS

    early = ConsumerConfig(consume_from=ConsumeFrom.FIRST_OFFSET, commit_interval_ms=500)
    orderly = ConsumerConfig(orderly=True, commit_interval_ms=500, confirm_commits=True)
    consumers = [PushConsumer(GROUP, namesrv, listen, config=early),
                 PushConsumer("fuzz2", namesrv, listen, config=orderly)]  # fmt: skip
    consumers[0].subscribe(TOPIC, "a || b")
    consumers[1].subscribe(TOPIC, "k > 3 AND TAGS IS NOT NULL", "SQL92")
    lite = LitePullConsumer("fuzz3", namesrv)
    lite.subscribe(TOPIC)
    async with contextlib.AsyncExitStack() as stack:
        for each in consumers:
            await stack.enter_async_context(each)
        await stack.enter_async_context(lite)
        producer = await stack.enter_async_context(Producer(GROUP, namesrv))
        for number in range(20):
            await producer.send(Message(TOPIC, b"x" * (number + 1), tags="a", keys=["k1", "k2"],
                                        properties={"k": str(number)}))  # fmt: skip
        queue = (await producer.queues(TOPIC))[0]
        many = [Message(TOPIC, b"%d" % n, tags="b") for n in range(3)]
        await producer.send_batch(many, queue=queue)
        await producer.send(Message(TOPIC, b"later", delay_level=1))
        await producer.send(Message(TOPIC, b"y" * 10_000, tags="b"))
        await producer.send_oneway(Message(TOPIC, b"nobody answers"))
        with contextlib.suppress(ClientError):  # nobody replies
            await producer.request(Message(TOPIC, b"who?"), timeout_ms=200)
        decided = TransactionProducer("fuzz4", namesrv, _Decided())
        await stack.enter_async_context(decided)
        for number in range(6):
            await decided.send_in_transaction(Message(TOPIC, b"t%d" % number))
        await lite.poll(1_000)
        await asyncio.sleep(6)  # checks of transactions, commits, retries


async def _tools(admin: Admin, leader: str) -> None:
    queue = MessageQueue(TOPIC, "raft3", 0)
    messages, _ = await admin.message.pull(queue, 0)
    calls = [
        admin.cluster.topics(), admin.topic.configs(leader), admin.topic.config(leader, TOPIC),
        admin.offset.max(queue), admin.offset.min(queue), admin.offset.search(queue, 1),
        admin.offset.committed(GROUP, queue), admin.offset.commit(GROUP, queue, 1),
        admin.message.view(messages[0].offset_msg_id), admin.message.query(TOPIC, "k1"),
        admin.group.consumers(GROUP, leader), admin.name_server.put_kv("fuzz", "k", "v"),
        admin.name_server.delete_kv("fuzz", "k"),
        admin.group.configs(leader),
        admin.group.put(leader, {"groupName": "fuzz5", "retryMaxTimes": 3}),
        admin.group.delete(leader, "fuzz5"), admin.topic.offsets(TOPIC), admin.group.stats(GROUP),
        admin.broker.consume_stats(leader), admin.topic.groups(leader, TOPIC),
        admin.broker.stats(leader, "TOPIC_PUT_NUMS", TOPIC), admin.broker.members(leader),
        admin.group.connection(leader, GROUP), admin.broker.producer_connection(leader, GROUP),
        admin.offset.reset(leader, GROUP, TOPIC, 0), admin.broker.config(leader),
        admin.offset.clone(leader, GROUP, "fuzz2", TOPIC), admin.name_server.configs(),
        admin.message.consume_queue(leader, TOPIC, 0, 0, 10),
        admin.broker.clean_expired_queues(leader),
    ]  # fmt: skip
    for call in calls:
        with contextlib.suppress(ClientError):  # some ask for what is not there: a request, too
            await call


async def _binary(leader: str) -> None:
    """Some requests with the binary header."""
    remoting = RemotingClient()
    for code, ext in ((RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}),
                      (RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC})):  # fmt: skip
        command = RemotingCommand.request(code, ext)
        command.serialize_type = BINARY
        await remoting.invoke(leader, command)
    await remoting.close()


def _browse(port: int) -> None:
    """Everything that can be read, and what is changed of our own topic and group."""
    base = f"http://{HOST}:{port}"
    with urllib.request.urlopen(f"{base}/api/v1/openapi.json", timeout=PATIENCE_S) as answer:
        paths = json.load(answer)["paths"]
    for path, methods in paths.items():
        target = re.sub(r"\{(\w+)\}", lambda m: FILLED_IN.get(m[1], m[1]), path)
        if "events" in path:
            continue  # never ends
        for method in methods:
            if method != "get" and TOPIC not in target and GROUP not in target:
                continue
            body = b'{"readQueues":4,"writeQueues":4,"topic":"Fuzzed"}' if method != "get" else None
            request = urllib.request.Request(base + target, body, method=method.upper())
            request.add_header("Content-Type", "application/json")
            with contextlib.suppress(urllib.error.HTTPError):
                urllib.request.urlopen(request, timeout=PATIENCE_S).read()


def _greet(port: int, ca: str) -> None:
    """A TLS connection, for its first bytes."""
    context = ssl.create_default_context(cafile=ca)
    with contextlib.suppress(OSError):
        with socket.create_connection((HOST, port), PATIENCE_S) as plain:
            context.wrap_socket(plain, server_hostname=HOST).close()
    time.sleep(0.1)


def samples_of(talk: Conversation) -> Iterator[Sample]:
    """Return what the diallers said, cut into messages."""
    said = bytes(talk.said)
    if talk.port in ("broker", "names"):
        yield from _commands(talk.port, said)
        yield from _commands(talk.port, bytes(talk.heard))
    elif talk.port in ("http", "nameshttp"):
        if said.count(b"\r\n\r\n"):
            yield Sample(talk.port, " ".join(said.decode("latin-1").split(" ")[:2]), said)
    elif talk.port == "raft":
        yield from _peer_messages(said)
    elif talk.port == "ha":
        said = said[_proven(said) :]
        for at in range(0, min(len(said), 80), 8):
            yield Sample("ha", f"report {at}", said[at : at + 8])
    elif said:
        yield Sample(talk.port, "opening", said)


def _commands(port: str, said: bytes) -> Iterator[Sample]:
    at = 0
    for codec, header, body in FrameReader(64 << 20).split(said):
        size = 8 + len(header) + len(body)
        with contextlib.suppress(RemotingProtocolError):
            command = decode_command((codec, header, body))
            kind = "answer" if command.is_response else "request"
            yield Sample(port, f"{kind} {command.code} {codec}", said[at : at + size])
        at += size


def _peer_messages(said: bytes) -> Iterator[Sample]:
    """The opening, and each message."""
    at = _proven(said)
    yield Sample("raft", "opening", said[:at])
    result = wire.decode_hello(said[at:])
    if result is None:
        return
    yield Sample("raft", "hello", said[at : at + result[1]])
    at += result[1]
    identity = wire.decode_identity(said[at:])
    at += identity[1] if identity is not None else 0
    while _is_message(said, at):
        length = struct.unpack_from(">i", said, at)[0]
        end = at + 4 + length
        if end <= len(said):
            yield Sample("raft", f"message {said[at + 5]}", said[at:end])
        at = end


def _proven(said: bytes) -> int:
    """Where what follows the dialler's challenge and proof begins."""
    if said[:4] != b"RMQS":
        return 0
    return 41 + sum(said[6:9]) + PROOF_SIZE_BYTES


def _is_message(said: bytes, at: int) -> bool:
    """Whether one begins there, by its head."""
    if len(said) < at + 6 or said[at + 5] not in wire.KINDS or said[at + 4] != 3:
        return False
    return 0 < struct.unpack_from(">i", said, at)[0] < 1 << 24


if __name__ == "__main__":
    asyncio.run(main())
