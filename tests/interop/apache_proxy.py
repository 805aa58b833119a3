"""Apache's own gRPC proxy 5.3.3 before Apache's name server and broker, each in a JVM of its own:
`async with ApacheWorld(tmp_path) as world:` is to RocketMQ 5's clients what tests.proxy.world is.

What takes long there by default is made short: its clients' orphaned transactions are asked about,
and its brokers told of producers, within a second or so.
"""

import asyncio
import json
import random
from pathlib import Path
from types import SimpleNamespace

from raftmq.chaos.cluster.ports import HeldPorts
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fast_json import dumps
from tests.interop.apache import ApacheBroker, ApacheNameServer
from tests.interop.jvm import Jvm, fetch
from tests.proxy.world import Caller, pb
from tests.waiting import until

IVY_FILE = Path(__file__).with_name("ivy-proxy.xml")
JARS = "rocketmq-proxy-5.3.3"
BROKER = {
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    # With 300 ms, as tests of ours have it, what is ended at once is asked about, too.
    "transactionTimeOut": "5000",
    "transactionCheckInterval": "2000",
}
PROXY = {
    "rocketMQClusterName": "InteropCluster",
    "proxyMode": "CLUSTER",
    "transactionHeartbeatPeriodSecond": 1,
    "grpcClientConsumerMinLongPollingTimeoutMillis": 0,
}
PATIENCE_S = 120.0  # a bound against hanging


class ApacheProxy:
    """One proxy below `directory`; it starts when it is made."""

    def __init__(self, directory, namesrv, heap="384m"):
        self._held = HeldPorts("127.0.0.1")
        self.port, remoting = self._held.choose(2, random.Random())
        directory.mkdir(parents=True)
        conf = directory / "rmq-proxy.json"
        ports = {"grpcServerPort": self.port, "remotingListenPort": remoting}
        conf.write_text(json.dumps({**PROXY, **ports, "namesrvAddr": namesrv}))
        home = str(directory)
        properties = {"user.home": home, "rocketmq.home.dir": home}
        self._jvm = Jvm(properties, fetch(IVY_FILE, JARS), heap=heap)
        arguments = ["-n", namesrv, "-pm", "cluster", "-pc", str(conf)]
        array = self._jvm.gateway.new_array(self._jvm.gateway.jvm.java.lang.String, len(arguments))
        for number, argument in enumerate(arguments):
            array[number] = argument
        self._held.close()
        try:
            self._jvm.rocketmq.proxy.ProxyStartup.main(array)
        except Exception:
            self._jvm.close()
            raise

    @property
    def pid(self):
        return self._jvm.process.pid

    def kill(self):
        self._jvm.close()


class ApacheWorld:
    """A name server, a broker and a proxy of Apache's."""

    def __init__(self, root, **settings):
        """`settings` are the broker's."""
        self._root = root
        self._settings = BROKER | settings
        self._stops = []
        self._client = RemotingClient(connect_timeout_ms=60_000)
        self._broker = None
        self.namesrv = ""
        self.proxies = []

    async def __aenter__(self):
        try:
            await asyncio.to_thread(self._start_broker)
            await until(self._is_registered, patience_s=PATIENCE_S)
            await asyncio.to_thread(self._start_proxy)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_):
        await self._client.close()
        for stop in reversed(self._stops):
            await asyncio.to_thread(stop)

    async def _is_registered(self):
        """Whether the name server knows the cluster: a proxy ends at its start, else."""
        ask = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = await self._client.invoke(self.namesrv, ask, 60_000)
        return str(PROXY["rocketMQClusterName"]).encode() in answer.body

    def _start_broker(self):
        names = ApacheNameServer(self._root / "names", "5.3")
        self._stops.append(names.kill)
        self.namesrv = names.address
        self._broker = ApacheBroker(self._root / "broker", names.address, **self._settings)
        self._stops.append(self._broker.kill)
        self._broker.start()

    def _start_proxy(self):
        proxy = ApacheProxy(self._root / "proxy", self.namesrv)
        self._stops.append(proxy.kill)
        self.proxies.append(SimpleNamespace(port=proxy.port))

    async def _ask(self, code, fields, body=b""):
        command = RemotingCommand.request(code, fields, body)
        assert self._broker is not None
        answer = await self._client.invoke(self._broker.address, command, 60_000)
        assert answer.code == 0, answer

    async def topic(self, name, queues=4, kind=""):
        """Create a topic, and wait until the proxy has its route."""
        attributes = f"+message.type={kind}" if kind else ""
        header = TopicHeader(name, queues, queues, 6, attributes=attributes)
        await self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
        async with Caller(*self.proxies) as caller:

            async def known():
                ask = {"topic": pb.Resource(name=name), "endpoints": caller.endpoints}
                return (await caller.call("QueryRoute", **ask)).status.code == pb.Code.OK

            await until(known, patience_s=PATIENCE_S)

    async def consumer_group(self, name, **bean):
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._ask(code, {}, dumps({"groupName": name, **bean}))
