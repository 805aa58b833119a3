"""mqadmin's credentials, and its commands for accounts, against brokers with access control."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from click.testing import CliRunner

from raftmq.broker.access import Access
from raftmq.broker.admin import acl
from raftmq.mqadmin.cli import main
from raftmq.mqadmin.runner import CredentialFlags, find_credentials
from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.remoting.acl.signature import Credentials, credentials_of_environment
from raftmq.remoting.codes import LanguageCode, RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fast_json import dumps
from raftmq.remoting.server import RemotingServer
from tests.broker.test_access import ADMIN, EXCEPTION, PLAIN_ACL, WRITER, ask, guarded, send
from tests.waiting import until


def test_credentials_come_from_flags_then_files_of_directory_and_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_credentials(CredentialFlags(), {}) is None
    home = tmp_path / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf/tools.yml").write_text("accessKey: of-home\nsecretKey: 12345678\n")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/tools.yml").write_text("accessKey: of-here\nsecretKey: 12345678\n")
    there = {"ROCKETMQ_HOME": str(home)}
    of_here, of_home = Credentials("of-here", "12345678"), Credentials("of-home", "12345678")
    assert find_credentials(CredentialFlags(), {}) == of_here
    assert find_credentials(CredentialFlags(), there) == of_home
    variables = there | {"RAFTMQ_ACCESS_KEY": "of-env", "RAFTMQ_SECRET_KEY": "s"}
    assert find_credentials(CredentialFlags(), variables) == Credentials("of-env", "s")
    flags = CredentialFlags(tools_file=str(home / "conf/tools.yml"))
    assert find_credentials(flags, variables) == of_home
    flags = CredentialFlags("of-flags", "s", "t")
    assert find_credentials(flags, variables) == Credentials("of-flags", "s", "t")
    for name in ("RAFTMQ_ACCESS_KEY", "RAFTMQ_SECRET_KEY"):
        with pytest.raises(ValueError, match=r"SECRET_KEY: .*need an access key and a secret key"):
            credentials_of_environment({name: "alone"})
    (home / "conf/tools.yml").write_text("secretKey: [12345678")
    with pytest.raises(ValueError, match="not YAML") as raised:
        find_credentials(CredentialFlags(), there)
    assert "12345678" not in str(raised.value)


async def mqadmin(*arguments, who=ADMIN):
    """Exit status, and all it printed."""
    env = {"RAFTMQ_ACCESS_KEY": "", "RAFTMQ_SECRET_KEY": "", "NAMESRV_ADDR": "127.0.0.1:1"}
    if who is not None:
        env |= {"RAFTMQ_ACCESS_KEY": who.access_key, "RAFTMQ_SECRET_KEY": who.secret_key}
    result = await asyncio.to_thread(CliRunner().invoke, main, arguments, env=env)
    return result.exit_code, result.stdout + result.stderr


async def test_account_is_listed_by_any_replica_and_updated_at_all_groups(tmp_path):
    boss = Credentials("another-boss", "sesame-open-5")
    names = tmp_path / "names_acl.yml"
    names.write_text(f"{PLAIN_ACL}  - {{accessKey: another-boss, secretKey: sesame-open-5}}\n")
    config = NameServerConfig(
        bind="127.0.0.1", port=0, http_enable=False, acl_enable=True,
        acl_file=str(names), acl_reads_need_account=True,
    )  # fmt: skip
    async with guarded(tmp_path, 3) as group:
        server = NameServer(config)  # its port is known only now: the brokers are started anew
        await server.start()
        try:
            group.settings["namesrvAddr"] = server.address
            for name in group.names:
                await group.stop(name)
            await asyncio.gather(*(group.start(name) for name in group.names))
            leader = await group.leading()
            await until(lambda: all(b.registrar.registered for b in group.brokers.values()))
            assert (await group.create_topic(leader, "T")).code == 0
            where = ("-n", server.address)
            assert (await mqadmin("clusterList", *where))[0] == 0
            assert (await mqadmin("clusterList", *where, who=None))[0] != 0
            every = ("-c", "TestCluster", *where)
            new = Credentials("somebody-new", "sesame-open-4")
            made = await mqadmin(
                "updateAclConfig", "-a", new.access_key, "-s", new.secret_key, "-t", "T=PUB", *every
            )
            assert made == (0, "the account somebody-new is as you said\n")
            assert (await send(leader, new)).code == 0
            follower = next(b for b in group.brokers.values() if b is not leader)
            one = ("-b", follower.address, *where)
            changed = await mqadmin("updateAclConfig", "-a", "only-writes", "-t", "U=PUB", *one)
            assert changed[0] == 0
            why = "No default permission for topic:T"
            assert (await send(leader, WRITER)).remark == EXCEPTION + why
            shown = await mqadmin("getAclConfig", "-b", leader.address, *where, "--json")
            assert "somebody-new" in shown[1] and "sesame" not in shown[1]
            refused = await mqadmin("deleteAclConfig", "-a", "administrator", *one, who=new)
            assert refused[0] == 1 and "Need admin permission" in refused[1]
            assert (await mqadmin("deleteAclConfig", "-a", "somebody-new", *every))[0] == 0
            assert "No acl config" in (await send(leader, new)).remark
            last = await mqadmin("deleteAclConfig", "-a", "administrator", *every)
            why = f"administrator is the last administrator at {leader.address}: "
            assert last[0] == 1 and why in last[1]
            demoted = await mqadmin("updateAclConfig", "-a", "administrator", "-m", "false", *one)
            why = f"administrator is the last administrator at {follower.address}: "
            assert demoted[0] == 1 and why in demoted[1]
            for code, ext in (
                (RequestCode.DELETE_ACL_CONFIG, {}),
                (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, {"admin": "false"}),
            ):  # the broker's own check, as for tools that do not look
                answer = await ask(follower, ADMIN, code, {"accessKey": ADMIN.access_key} | ext)
                assert "administrator is the last administrator: " in answer.remark
            made = ("-a", boss.access_key, "-s", boss.secret_key, "-m", "true")
            assert (await mqadmin("updateAclConfig", *made, *every))[0] == 0
            # Who signs is gone with the first change.
            own = await mqadmin("deleteAclConfig", "-a", boss.access_key, *every, who=boss)
            assert own == (0, "there is no account another-boss any more\n")
            white = await mqadmin("updateGlobalWhiteAddr", "-g", "127.0.0.*", *every)
            assert white[0] == 0 and (await send(leader, None)).code == 0
            versions = await mqadmin("clusterAclConfigVersion", *every, "--json")
            assert versions[0] == 0 and versions[1].count('"group-a"') == 3
            assert isinstance(leader.access, Access) and leader.access.refused_count
            forced = await mqadmin("deleteAclConfig", "-a", "administrator", "--force", *every)
            assert forced == (0, "there is no account administrator any more\n")
        finally:
            await server.stop()


@asynccontextmanager
async def two_groups(tmp_path):
    """Yield a name server's address and the leaders of two groups of one. The second has one
    administrator; the first another, too, and an account that the second does not know."""
    more = """
  - {accessKey: another-boss, secretKey: sesame-open-5, admin: true}
  - {accessKey: of-first, secretKey: sesame-open-6}
"""
    async with AsyncExitStack() as stack:
        config = NameServerConfig(bind="127.0.0.1", port=0, http_enable=False)
        server = await stack.enter_async_context(NameServer(config))
        leaders = []
        for name, accounts in (("group-a", PLAIN_ACL + more), ("group-b", PLAIN_ACL)):
            path = tmp_path / f"{name}.yml"
            path.write_text(accounts)
            settings = {"aclFile": path, "namesrvAddr": server.address, "brokerName": name}
            settings["joinCluster"] = "false"  # their accounts differ
            own = tmp_path / name
            own.mkdir()
            group = await stack.enter_async_context(guarded(own, **settings))
            leaders.append(await group.leading())
        await until(lambda: all(broker.registrar.registered for broker in leaders))
        yield server.address, leaders


UNMADE = [("deleteAclConfig",), ("updateAclConfig", "-m", "false")]


@pytest.mark.parametrize("command", UNMADE)
async def test_account_update_keeps_last_administrator_at_brokers_without_check(
    tmp_path, monkeypatch, command
):
    """Older ones, and Apache's: nothing is changed anywhere if one of them shows no other."""
    monkeypatch.setattr(acl, "_check_not_last", lambda accounts, key: None)
    async with two_groups(tmp_path) as (server, (first, second)):
        requested = (*command, "-a", "administrator", "-n", server)
        why = f"mqadmin: administrator is the last administrator at {second.address}: "
        for where in (("-b", second.address), ("-c", "TestCluster")):
            status, said = await mqadmin(*requested, *where)
            assert status == 1 and said.startswith(why) and "--force" in said
        for broker in (first, second):
            assert (await ask(broker, ADMIN, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)).code == 0
        assert (await mqadmin(*requested, "-c", "TestCluster", "--force"))[0] == 0


async def test_account_change_that_a_later_broker_rejects_lists_changed_brokers(tmp_path):
    async with two_groups(tmp_path) as (server, (first, second)):
        every = ("-c", "TestCluster", "-n", server)
        status, said = await mqadmin("updateAclConfig", "-a", "of-first", "-t", "T=PUB", *every)
        assert status == 1 and said.startswith(f"mqadmin: {second.address} answered: ")
        assert said.endswith(f"; already changed: {first.address}\n")
        alone = ("-b", second.address, "-n", server)
        status, said = await mqadmin("updateAclConfig", "-a", "of-first", "-t", "T=PUB", *alone)
        assert status == 1 and "already changed" not in said


class ApachesAccounts:
    """A broker that keeps accounts as Apache's 4.9 does: `admin` is false where an update has no
    such field, all other fields stay. Where it does not `list` them it refuses 54."""

    def __init__(self, *administrators, lists=True, language=LanguageCode.JAVA):
        self.admin = dict.fromkeys(administrators, True) | {"orders": False}
        self.updates = []
        self._lists, self._language = lists, language
        self._server = RemotingServer(
            {
                RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self._update,
                RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: self._list,
            }
        )

    async def __aenter__(self):
        await self._server.start("127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.port}"
        return self

    async def __aexit__(self, *_):
        await self._server.stop()

    async def update(self, key, *fields):
        """Have mqadmin change an account; return its exit status."""
        where = ("-b", self.address, "-n", "127.0.0.1:1")
        return (await mqadmin("updateAclConfig", "-a", key, *fields, *where))[0]

    def _answer(self, request, *rest):
        response = RemotingCommand.response_to(request, *rest)
        response.language = self._language
        return response

    def _update(self, _, request):
        key = request.ext["accessKey"]
        self.updates.append({name: request.ext.get(name) for name in ("secretKey", "admin")})
        self.admin[key] = request.ext.get("admin") == "true"
        return self._answer(request)

    def _list(self, _, request):
        if not self._lists:
            return self._answer(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        listed = [{"accessKey": key, "admin": admin} for key, admin in self.admin.items()]
        body = dumps({"globalWhiteAddrs": [], "plainAccessConfigs": listed})
        return self._answer(request, ResponseCode.SUCCESS, None, None, body)


SECRET = ("-s", "rotated-secret")


async def test_account_update_sends_admin_flag_where_brokers_reset_omissions():
    async with ApachesAccounts("administrator", "boss") as broker:
        for key in ("administrator", "orders", "new-one"):
            assert await broker.update(key, *SECRET) == 0
        kept = [{"secretKey": SECRET[1], "admin": admin} for admin in ("true", None, None)]
        assert broker.updates == kept
        assert await broker.update("boss", "-m", "false") == 0
        assert await broker.update("orders", "-m", "true") == 0
        administrators = {"administrator": True, "orders": True}
        assert broker.admin == {"boss": False, "new-one": False} | administrators
    async with ApachesAccounts("administrator") as broker:
        assert await broker.update("administrator", "-t", "T=PUB", "--force") == 0
        assert broker.admin["administrator"]


@pytest.mark.parametrize("kind", [{"lists": False}, {"language": LanguageCode.PYTHON}])
async def test_account_update_omits_admin_flag_that_is_unknown_or_kept_by_broker(kind):
    """Ours keeps it; and one that does not lead may list what was so a while ago."""
    async with ApachesAccounts("administrator", **kind) as broker:
        assert await broker.update("administrator", *SECRET) == 0
        assert broker.updates == [{"secretKey": SECRET[1], "admin": None}]
