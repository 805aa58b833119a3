"""A name server with aclEnable: who registers, who changes, who asks."""

import asyncio
import functools

from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.server import NameServer
from raftmq.remoting.acl import AclError, Credentials
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from tests.namesrv.test_server import Caller
from tests.waiting import until

ADMIN = Credentials("administrator", "sesame-open")
SOMEBODY = Credentials("somebody", "sesame-open")
PLAIN_ACL = """
accounts:
  - {accessKey: administrator, secretKey: sesame-open, admin: true}
  - {accessKey: somebody, secretKey: sesame-open}
"""


def config(tmp_path, **more):
    path = tmp_path / "plain_acl.yml"
    path.write_text(PLAIN_ACL)
    return NameServerConfig(
        bind="127.0.0.1", port=0, http_enable=False, acl_enable=True, acl_file=str(path), **more
    )


class As(Caller):
    """A caller with credentials."""

    def __init__(self, server, who):
        super().__init__(server.address)
        self.remoting = RemotingClient(credentials=who)


async def test_acl_decides_who_registers_and_queries_routes(tmp_path):
    async with NameServer(config(tmp_path)) as server:
        admin, somebody, nobody = (As(server, who) for who in (ADMIN, SOMEBODY, None))
        for caller, why in ((somebody, "Need admin permission"), (nobody, "No accessKey")):
            refused = await caller.register("127.0.0.1:1", 0)
            assert refused.code == 1 and why in (refused.remark or "")
            put = {"namespace": "n", "key": "k", "value": "v"}
            assert why in ((await caller.ask(RequestCode.PUT_KV_CONFIG, put)).remark or "")
        assert (await admin.register("127.0.0.1:1", 0)).code == 0
        assert (await nobody.route("TopicTest"))["brokerDatas"]
        wipe = {"brokerName": "broker-a"}
        assert (await somebody.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, wipe)).code == 1
        assert (await admin.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, wipe)).code == 0
        assert server.access.refused_count == 5
        command = RemotingCommand.request(RequestCode.UNREGISTER_BROKER, {"brokerName": "b"})
        await nobody.remoting.invoke_oneway(server.address, command)
        await until(lambda: server.access.dropped_count == 1)
        for caller in (admin, somebody, nobody):
            await caller.remoting.close()


async def test_routes_may_need_an_account_and_an_edited_file_is_reloaded(tmp_path):
    async with NameServer(config(tmp_path, acl_reads_need_account=True)) as server:
        somebody, nobody = As(server, SOMEBODY), As(server, None)
        ask = (RequestCode.GET_BROKER_CLUSTER_INFO,)
        assert (await somebody.ask(*ask)).code == 0
        assert (await nobody.ask(*ask)).code == 1
        path = tmp_path / "plain_acl.yml"
        await asyncio.to_thread(path.write_text, PLAIN_ACL.replace("somebody", "somebody-else"))
        server.access.check_file()
        assert "No acl config" in ((await somebody.ask(*ask)).remark or "")
        await somebody.remoting.close()
        await nobody.remoting.close()


async def test_signed_or_registered_connection_counts_as_having_an_account(tmp_path):
    """A full name server gives up connections of strangers for new ones."""

    async def kept(server, caller, ask):
        before = set(server.server.connections)
        answer = await ask()
        (own,) = server.server.connections - before
        await caller.remoting.close()
        return answer, own.has_account

    async with NameServer(config(tmp_path)) as server:
        for who, expected in ((SOMEBODY, True), (Credentials("else", "who"), False), (None, False)):
            caller = As(server, who)
            asks = functools.partial(caller.ask, RequestCode.GET_BROKER_CLUSTER_INFO)
            answer, has_account = await kept(server, caller, asks)
            assert (answer.code, has_account) == (0, expected)
    async with NameServer(NameServerConfig("127.0.0.1", 0, http_enable=False)) as server:
        broker = As(server, None)
        _, is_kept = await kept(server, broker, lambda: broker.register("127.0.0.1:1", 0))
        assert is_kept


async def test_unreadable_account_file_prevents_the_start(tmp_path):
    settings = config(tmp_path)
    (tmp_path / "plain_acl.yml").unlink()
    server = NameServer(settings)
    try:
        await server.start()
        raise AssertionError("it started")
    except AclError as error:
        assert "plain_acl.yml" in str(error)
    finally:
        await server.stop()
