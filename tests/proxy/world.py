"""A name server, a broker group and a proxy on this loop, and a gRPC client made of nothing but the
messages: it sends what an SDK sends, and shows what it is answered."""

import asyncio
import signal
import sys
import uuid
from asyncio.subprocess import PIPE
from typing import Any

import grpc
import grpc.aio

from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.server import NameServer
from raftmq.proxy.config import ProxyConfig
from raftmq.proxy.protocol import messaging_pb2 as pb
from raftmq.proxy.receive_message import Waits
from raftmq.proxy.server import ProxyServer
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fast_json import dumps
from tests.broker.cluster import Group
from tests.waiting import until

PREFIX = "/apache.rocketmq.v2.MessagingService/"
UNARY = {
    name: getattr(pb, f"{name}Response")
    for name in (
        "QueryRoute QueryAssignment Heartbeat NotifyClientTermination SendMessage RecallMessage "
        "EndTransaction AckMessage ChangeInvisibleDuration ForwardMessageToDeadLetterQueue"
    ).split()
}
# Short times, and no port that somebody else has.
PROXY: dict[str, Any] = {
    "bind": "127.0.0.1",
    "port": 0,
    "http_enable": False,
}
WAITS = Waits(poll_ms_min=0, invisible_ms_min=0)


class World:
    """`count` replicas; `async with World(tmp_path) as world:`."""

    def __init__(self, root, count=1, proxy=None, credentials=None, waits=WAITS, **settings):
        """`credentials` sign what the test itself asks brokers."""
        self._credentials = credentials
        self.names = NameServer(NameServerConfig("127.0.0.1", 0, http_enable=False))
        self._root, self._count, self._settings = root, count, settings
        self._proxy_settings = proxy or {}
        self._waits = waits
        self.group: Any = None
        self.proxies = []

    async def __aenter__(self):
        await self.names.start()
        self.group = Group(
            self._root,
            self._count,
            namesrvAddr=self.names.address,
            registerNameServerPeriod=1000,
            **self._settings,
        )
        credentials = self._credentials
        self.group.asking = lambda: RemotingClient(
            connect_timeout_ms=60_000, credentials=credentials
        )
        await self.group.__aenter__()
        await self.add_proxy()
        return self

    async def __aexit__(self, *_):
        for proxy in self.proxies:
            await proxy.stop()
        await self.group.__aexit__()
        await self.names.stop()

    @property
    def namesrv(self):
        return self.names.address

    async def add_proxy(self, waits=None, **settings):
        config = ProxyConfig(
            **(PROXY | {"namesrv": self.namesrv} | self._proxy_settings | settings)
        )
        proxy = ProxyServer(config, waits or self._waits)
        await proxy.start()
        self.proxies.append(proxy)
        return proxy

    async def topic(self, name, queues=4, kind=""):
        """Create a topic, and wait until it has a route."""
        attributes = f"+message.type={kind}" if kind else ""
        header = TopicHeader(name, queues, queues, 6, attributes=attributes)
        broker = await self.group.leading()
        answer = await self.group.ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
        assert answer.code == 0, answer
        ask = {"topic": name}

        async def known():
            code = RequestCode.GET_ROUTEINFO_BY_TOPIC
            command = RemotingCommand.request(code, dict(ask))
            return (await self.group.client.invoke(self.namesrv, command, 5000)).code == 0

        await until(known)

    async def consumer_group(self, name, **bean):
        broker = await self.group.leading()
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        answer = await self.group.ask(broker, code, {}, dumps({"groupName": name, **bean}))
        assert answer.code == 0, answer


class ProxyProcess:
    """`mqproxy` as a process of its own, to be killed: `async with ProxyProcess(namesrv) as one:`,
    which has a port as a proxy has, one that is given or any."""

    def __init__(self, namesrv, port=0, *settings):
        """`settings` are KEY=VALUE."""
        self._namesrv = namesrv
        self._wanted = str(port)
        self._settings = settings
        self._process: Any = None
        self.port = 0

    async def __aenter__(self):
        settings = ["httpEnable=false", *self._settings]
        command = ["-m", "tests.proxy.node", "-n", self._namesrv]
        command += ["-p", self._wanted, "--log-level", "ERROR"]
        command += [word for setting in settings for word in ("--set", setting)]
        self._process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE)
        line = await asyncio.wait_for(self._process.stdout.readline(), 60)
        self.port = int(line.decode().rpartition(":")[2])
        return self

    async def __aexit__(self, *_):
        await self.end(signal.SIGKILL)
        self._process._transport.close()

    async def end(self, how):
        """Send it a signal, unless it has ended; return its exit status."""
        if self._process.returncode is None:
            self._process.send_signal(how)
        return await asyncio.wait_for(self._process.wait(), 30)


class Caller:
    """One gRPC client of a proxy. Answers are as they come; `ok` wants a status OK."""

    def __init__(self, *proxies, client_id="c1", metadata=(), channel=None):
        target = "ipv4:" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        self.channel = channel or grpc.aio.insecure_channel(target)
        self.metadata = (("x-mq-client-id", client_id), ("x-mq-language", "PYTHON"), *metadata)
        self.endpoints = pb.Endpoints(
            scheme=pb.AddressScheme.IPv4,
            addresses=[pb.Address(host="127.0.0.1", port=proxy.port) for proxy in proxies],
        )
        self.streams = []

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for stream in self.streams:
            stream.cancel()
        await self.channel.close()

    async def call(self, name, timeout_s=60.0, **fields):
        request = getattr(pb, f"{name}Request")
        method = self.channel.unary_unary(
            PREFIX + name, request.SerializeToString, UNARY[name].FromString
        )
        return await method(request(**fields), metadata=self.metadata, timeout=timeout_s)

    async def ok(self, name, **fields):
        answer = await self.call(name, **fields)
        assert answer.status.code == pb.Code.OK, answer
        return answer

    async def send(self, topic, body=b"hello", **system):
        """Send one message; return its entry."""
        answer = await self.call("SendMessage", messages=[message(topic, body, **system)])
        return answer.entries[0] if answer.entries else answer

    async def receive(self, topic, group="cg", count=32, **fields):
        """Return the messages, or the status if there is none."""
        timeout_s = fields.pop("timeout_s", 60.0)
        poll_ms = fields.pop("poll_ms", 0)
        request = pb.ReceiveMessageRequest(
            group=pb.Resource(name=group),
            message_queue=fields.pop("queue", None)
            or pb.MessageQueue(topic=pb.Resource(name=topic)),
            batch_size=count,
            **fields,
        )
        if not request.HasField("invisible_duration") and not request.auto_renew:
            request.invisible_duration.FromSeconds(30)
        if poll_ms is not None:
            request.long_polling_timeout.FromMilliseconds(poll_ms)
        method = self.channel.unary_stream(
            PREFIX + "ReceiveMessage",
            pb.ReceiveMessageRequest.SerializeToString,
            pb.ReceiveMessageResponse.FromString,
        )
        result = [one async for one in method(request, metadata=self.metadata, timeout=timeout_s)]
        assert result[0].HasField("status") and result[-1].HasField("delivery_timestamp")
        if result[0].status.code != pb.Code.OK:
            assert len(result) == 2
            return result[0].status
        return [one.message for one in result[1:-1]]

    async def received(self, topic, group="cg", count=1, **fields):
        """Receive until there are so many."""
        result: list[Any] = []
        async with asyncio.timeout(120):
            while len(result) < count:
                more = await self.receive(topic, group, poll_ms=1000, **fields)
                result += [] if isinstance(more, pb.Status) else more
        return result

    async def ack(self, one, group="cg"):
        entry = pb.AckMessageEntry(
            message_id=one.system_properties.message_id,
            receipt_handle=one.system_properties.receipt_handle,
        )
        answer = await self.call(
            "AckMessage", group=pb.Resource(name=group), topic=one.topic, entries=[entry]
        )
        return answer.status.code

    async def telemetry(self, settings):
        """Open a stream; return it with the answer to the settings."""
        method = self.channel.stream_stream(
            PREFIX + "Telemetry",
            pb.TelemetryCommand.SerializeToString,
            pb.TelemetryCommand.FromString,
        )
        stream = method(metadata=self.metadata)
        self.streams.append(stream)
        if settings is not None:
            await stream.write(pb.TelemetryCommand(settings=settings))
        return stream, await stream.read()


def message(topic, body=b"hello", message_id=None, properties=(), **system):
    result = pb.Message(topic=pb.Resource(name=topic), body=body, user_properties=dict(properties))
    result.system_properties.message_id = message_id or uuid.uuid4().hex
    result.system_properties.body_encoding = pb.Encoding.IDENTITY
    deliver_ms = system.pop("deliver_ms", None)
    if deliver_ms is not None:
        result.system_properties.delivery_timestamp.FromMilliseconds(deliver_ms)
    result.system_properties.born_timestamp.GetCurrentTime()
    for name, value in system.items():
        if isinstance(value, list):
            getattr(result.system_properties, name).extend(value)
        else:
            setattr(result.system_properties, name, value)
    return result


def consumer(group, *topics, kind=pb.ClientType.PUSH_CONSUMER, expression="*"):
    subscription = pb.Subscription(group=pb.Resource(name=group))
    for topic in topics:
        entry = subscription.subscriptions.add()
        entry.topic.name = topic
        entry.expression.type = pb.FilterType.TAG
        entry.expression.expression = expression
    return pb.Settings(client_type=kind, subscription=subscription)


def producer(*topics):
    publishing = pb.Publishing(topics=[pb.Resource(name=topic) for topic in topics])
    return pb.Settings(client_type=pb.ClientType.PRODUCER, publishing=publishing)
