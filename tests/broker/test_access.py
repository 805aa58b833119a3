"""Brokers with aclEnable: who gets in, what changes at run time, and that a failover keeps it."""

import asyncio
import contextlib
import stat
from typing import Any

import orjson
import pytest

from raftmq.broker.accountbook import AccountBook
from raftmq.broker.admin.acl import split
from raftmq.broker.admission import HELD_BYTES_MAX
from raftmq.broker.broker import open_broker
from raftmq.broker.component import RoleChange
from raftmq.broker.config import build_config
from raftmq.broker.errors import EngineError, StateError
from raftmq.broker.tables.acl import (
    AclTable,
    delete_account,
    put_account,
    put_white_addresses,
    seed,
)
from raftmq.dledger.raft.messages import Role, RoleEvent
from raftmq.ops.options import ConfigError, Setting
from raftmq.remoting.acl import Account, Credentials
from raftmq.remoting.acl.account_file import parse_accounts
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codec import encode_command, join_frame
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import PullHeader, SendHeader
from raftmq.store.disk import OsDisk
from tests.broker.cluster import Group
from tests.broker.replication.ha.pair import Classic
from tests.present import present
from tests.waiting import until

ADMIN = Credentials("administrator", "sesame-open-1")
WRITER = Credentials("only-writes", "sesame-open-2")
READER = Credentials("only-reads", "sesame-open-3")
SECRETS = ("sesame-open-1", "sesame-open-2", "sesame-open-3", "sesame-open-4")
PLAIN_ACL = """
accounts:
  - {accessKey: administrator, secretKey: sesame-open-1, admin: true}
  - {accessKey: only-writes, secretKey: sesame-open-2, topicPerms: [T=PUB]}
  - {accessKey: only-reads, secretKey: sesame-open-3, topicPerms: [T=SUB], groupPerms: [cg=SUB]}
"""
EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
OWN = orjson.dumps({"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key}).decode()


@contextlib.asynccontextmanager
async def guarded(tmp_path, count=1, **settings):
    """A group with access control, which tests ask as they like; its own client is the admin."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(PLAIN_ACL)
    keys = {"aclEnable": "true", "aclFile": path, "innerClientAuthenticationCredentials": OWN}
    async with Group(tmp_path, count, **{**keys, **settings}) as group:
        await group.client.close()
        group.client = RemotingClient(credentials=ADMIN)
        yield group


async def ask(broker, who, code, ext=None, body=b""):
    client = RemotingClient(credentials=who)
    try:
        command = RemotingCommand.request(code, ext, body)
        return await client.invoke(broker.address, command, 60_000)
    finally:
        await client.close()


def send_ext(topic="T"):
    header = SendHeader("pg", topic, "TBW102", 4, 0, 0, 1_700_000_000_000, 0, "")
    return header.to_ext(310)


async def send(broker, who, topic="T"):
    return await ask(broker, who, RequestCode.SEND_MESSAGE_V2, send_ext(topic), b"hello")


async def pull(broker, who, group="cg"):
    header = PullHeader(group, "T", 0, 0, 32, 0x4, 0, 0, "*", 0)
    return await ask(broker, who, RequestCode.PULL_MESSAGE, header.to_ext())


def put(key, **fields):
    return {"accessKey": key, "admin": "false", **fields}


async def test_each_account_may_do_only_what_it_is_permitted(tmp_path):
    async with guarded(tmp_path) as group:
        broker = await group.leading()
        assert (await group.create_topic(broker, "T")).code == 0
        assert (await send(broker, WRITER)).code == 0
        assert (await pull(broker, READER)).remark == "FOUND"
        for who, request, why in (
            (None, send, "No accessKey is configured"),
            (Credentials("nobody-here", "sesame-open-2"), send, "No acl config for nobody-here"),
            (Credentials("only-writes", "wrong-secret"), send,
             "Check signature failed for accessKey=only-writes"),
            (READER, send, "No permission for topic:T"),
            (WRITER, pull, "No default permission for group:cg"),
        ):  # fmt: skip
            answer = await request(broker, who)
            assert (answer.code, answer.remark) == (1, EXCEPTION + why)
        client = RemotingClient(credentials=WRITER)
        try:  # whose account was accepted keeps its connection in a full server
            for sender, has_account in ((client, True), (RemotingClient(), False)):
                before = set(broker.server.connections)
                sent = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_ext(), b"hello")
                await sender.invoke(broker.address, sent, 60_000)
                [new] = set(broker.server.connections) - before
                assert new.has_account is has_account
                await sender.close()
        finally:
            await client.close()
        refused = await ask(broker, WRITER, RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "U"})
        assert "Need admin permission for request code=17" in refused.remark
        assert broker.access.refused_count == 7
        assert (await group.pull(broker, "T", 0)).code == 0
        assert broker.store.queues.end_of("T", 0) == 2


async def test_rejected_one_way_requests_are_dropped_and_counted(tmp_path):
    async with guarded(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        client = RemotingClient(credentials=READER)
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_ext(), b"hello")
        await client.invoke_oneway(broker.address, command)
        await until(lambda: broker.access.dropped_count == 1)
        info = orjson.loads((await group.ask(broker, 28)).body)["table"]
        figures = [info[key] for key in ("aclEnable", "aclRefused", "aclDropped")]
        assert figures == ["true", "0", "1"]
        assert present(client.connection(broker.address)).outstanding == 0
        await client.close()
        assert broker.store.queues.end_of("T", 0) == 0


async def test_ambiguous_request_frame_closes_the_connection(tmp_path):
    """A frame that the gate cannot read ends the connection; the send path would have taken it."""
    async with guarded(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        odd = {"code": 310, "flag": 0, "opaque": 1 << 40, "language": "JAVA", "version": 401}
        frames = [join_frame(orjson.dumps(odd | {"extFields": send_ext()}), b"hello")]
        odd |= {"opaque": 1, "version": "x"}
        frames.append(join_frame(orjson.dumps(odd | {"extFields": send_ext()}), b"hello"))
        for frame in frames:
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(frame + frame)
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
        assert broker.store.queues.end_of("T", 0) == 0


async def test_pipelined_sends_are_authorized_one_by_one(tmp_path):
    async with guarded(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        parts = []
        for number in range(6):
            command = RemotingCommand.request(310, send_ext(), b"hello")
            (WRITER if number % 2 else READER).sign(command)
            command.opaque = number
            parts.append(encode_command(command))
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(b"".join(parts))
        answers: dict[Any, Any] = {}
        while len(answers) < 6:
            size = int.from_bytes(await reader.readexactly(4))
            frame = await reader.readexactly(size)
            header = orjson.loads(frame[4 : 4 + int.from_bytes(frame[1:4])])
            answers[header["opaque"]] = header["code"]
        writer.close()
        await writer.wait_closed()
        assert answers == {0: 1, 1: 0, 2: 1, 3: 0, 4: 1, 5: 0}
        assert broker.store.queues.end_of("T", 0) == 3


async def test_accounts_change_at_run_time(tmp_path):
    async with guarded(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        new = Credentials("somebody-new", "sesame-open-4")
        fields = put("somebody-new", secretKey="sesame-open-4", topicPerms="T=PUB,U=SUB")
        assert (await group.ask(broker, 50, fields)).code == 0
        assert (await send(broker, new)).code == 0
        assert (await group.ask(broker, 50, put("somebody-new", topicPerms="T=SUB"))).code == 0
        assert "No permission for topic:T" in (await send(broker, new)).remark
        for code, ext, answer in (
            (50, put("somebody-old"), 209),
            (50, put("somebody-new", topicPerms="T"), 209),
            (50, put("short", secretKey="sesame-open-4"), 209),
            (53, {"globalWhiteAddrs": "10.300.*.*"}, 211),
        ):
            refused = await group.ask(broker, code, ext)
            assert refused.code == answer and refused.remark.startswith(EXCEPTION), refused
            assert "sesame" not in refused.remark
        assert (await group.ask(broker, 51, {"accessKey": "nobody-here"})).code == 0  # it is so
        shown = orjson.loads((await group.ask(broker, 54)).body)
        assert [one["accessKey"] for one in shown["plainAccessConfigs"]] == [
            "administrator", "only-reads", "only-writes", "somebody-new",
        ]  # fmt: skip
        assert {one["secretKey"] for one in shown["plainAccessConfigs"]} == {"******"}
        versions = await ask(broker, WRITER, 52)
        assert orjson.loads(versions.ext["version"])["counter"] == 2
        assert versions.ext["brokerName"] == "group-a"
        assert (await group.ask(broker, 51, {"accessKey": "somebody-new"})).code == 0
        assert "No acl config" in (await send(broker, new)).remark
        addresses = {"globalWhiteAddrs": "127.0.0.{1,2},10.1.*.*"}
        assert (await group.ask(broker, 53, addresses)).code == 0
        assert (await send(broker, None)).code == 0
        assert broker.state.acl.accounts.white_addresses == ("127.0.0.{1,2}", "10.1.*.*")


async def test_secrets_are_printed_nowhere(tmp_path, caplog):
    caplog.set_level("DEBUG")
    async with guarded(tmp_path) as group:
        broker = await group.leading()
        await group.ask(broker, 50, put("somebody-new", secretKey="sesame-open-4"))
        for code in (26, 28, 54):
            answer = await group.ask(broker, code)
            text = f"{answer.ext} {answer.remark} {answer.body}"
            assert not [secret for secret in SECRETS if secret in text], code
        assert b"innerClientAuthenticationCredentials=******" in (await group.ask(broker, 26)).body
        assert (await group.ask(broker, 25, None, f"aclFile={SECRETS[0]}".encode())).code != 0
        shown = repr(broker.config) + broker.config.properties_text()
    logged = caplog.text + "".join(str(record.args) for record in caplog.records)
    assert not [secret for secret in SECRETS if secret in logged]
    assert SECRETS[0] not in shown


async def test_account_changes_survive_a_failover(tmp_path):
    async with guarded(tmp_path, 3) as group:
        first = await group.leader()
        leader = group.brokers[first]
        assert (await group.create_topic(leader, "T")).code == 0
        new = Credentials("somebody-new", "sesame-open-4")
        fields = put("somebody-new", secretKey="sesame-open-4", topicPerms="T=PUB")
        assert (await group.ask(leader, 50, fields)).code == 0
        assert (await send(leader, new)).code == 0
        assert (await group.ask(leader, 51, {"accessKey": "only-writes"})).code == 0
        await group.kill(first)
        # From the first moment on, and whoever is asked: who was deleted stores nothing.
        rest = list(group.brokers.values())

        async def try_for_ever():
            while True:
                for broker in rest:
                    assert (await send(broker, WRITER)).code != 0
                await asyncio.sleep(0)

        trying = asyncio.ensure_future(try_for_ever())
        leader = await group.leading()
        assert (await send(leader, new)).code == 0
        assert "No acl config for only-writes" in (await send(leader, WRITER)).remark
        trying.cancel()
        await asyncio.gather(trying, return_exceptions=True)
        assert trying.cancelled()
        assert leader.store.queues.end_of("T", 0) == 2
        # The killed one comes back with a file that says otherwise, and follows the group.
        again = await group.start(first)
        end = leader.state.applied_index
        await until(lambda: again.state.applied_index >= end)
        assert again.access.book.current().by_key == leader.access.book.current().by_key
        assert "No acl config" in (await send(again, WRITER)).remark


async def test_accounts_are_in_snapshots_and_the_file_only_seeds_them(tmp_path):
    async with guarded(tmp_path) as group:
        broker = await group.leading()
        await until(lambda: broker.state.acl.accounts is not None)
        await group.ask(broker, 51, {"accessKey": "only-writes"})
        name = await group.leader()
        await group.stop(name)
        saved = orjson.loads((tmp_path / name / "config/plainAcl.json").read_bytes())
        assert [one["accessKey"] for one in saved["accounts"]] == ["administrator", "only-reads"]
        (tmp_path / "plain_acl.yml").unlink()
        broker = await group.start(name)
        await group.leader()
        assert (await group.ask(broker, 28)).code == 0
        assert "No acl config" in (await send(broker, WRITER)).remark
        # Unless it is told to win, once a start.
        await group.stop(name)
        (tmp_path / "plain_acl.yml").write_text(PLAIN_ACL)
        group.settings["aclFileWins"] = "true"
        broker = await group.start(name)
        await until(lambda: len(broker.access.book.current().by_key) == 3)
        await group.ask(broker, 51, {"accessKey": "only-writes"})
        await broker.access.book.seed_if_needed()
        assert "No acl config" in (await send(broker, WRITER)).remark


async def test_account_file_with_priority_is_read_when_its_replica_leads(tmp_path, monkeypatch):
    path = tmp_path / "plain_acl.yml"
    async with guarded(tmp_path) as group:
        broker = await group.leading()
        await until(lambda: broker.state.acl.accounts is not None)
        name = await group.leader()
        await group.stop(name)
        group.settings["aclFileWins"] = "true"
        path.unlink()
        with pytest.raises(EngineError, match="No such file"):
            await group.start(name)
        path.write_text(PLAIN_ACL)
        with monkeypatch.context() as patched:  # the test is the chore
            patched.setattr(AccountBook, "seed_if_needed", lambda _: None)
            broker = await group.start(name)
            await group.leader()
            await until(lambda: not broker.roles.joining)
        book, before = broker.access.book, broker.state.acl.accounts
        for text in ("accounts: [", None):
            path.unlink() if text is None else path.write_text(text)
            await book.seed_if_needed()
            assert broker.state.acl.accounts is before
        path.write_text(PLAIN_ACL.replace("only-writes", "only-sends"))  # edited since the start
        await book.seed_if_needed()
        await until(lambda: "only-sends" in book.current().by_key)
        assert len(book.current().by_key) == 3


def leader_awaited(broker, awaited):
    event = RoleEvent(Role.LEADER, 1, "n0", not awaited, "the test")
    change = RoleChange(
        event, not awaited, began=False, ended=False, goes_on=False, awaited=awaited
    )
    broker.admission.service().role_changed(change)


async def test_requests_wait_only_for_a_new_leaders_first_commit(tmp_path, monkeypatch):
    async with guarded(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        leader_awaited(broker, True)
        waiting = asyncio.ensure_future(send(broker, WRITER))
        await until(lambda: broker.admission.held_count)
        broker.state.acl.accounts = broker.access.book.current().without("only-writes", 1)
        leader_awaited(broker, False)
        assert "No acl config" in (await waiting).remark
        leader_awaited(broker, True)
        answer = await send(broker, READER)  # nothing came of it
        assert (answer.code, answer.remark[:12]) == (14, "[NOT_LEADER]")
        monkeypatch.setattr("raftmq.broker.admission.HELD_BYTES_MAX", 10)
        assert (await send(broker, READER)).code == 14
        assert not broker.admission.held_count and HELD_BYTES_MAX > 10
        leader_awaited(broker, False)


async def test_held_pulls_are_rechecked_once_after_an_account_change(tmp_path):
    async with guarded(tmp_path) as group:
        broker = await group.leading()
        reported = []
        look = broker.access.service(lambda: reported.append(1)).chores[-1].run
        look()
        assert not reported
        broker.state.acl.accounts = broker.access.book.current().without("only-writes", 1)
        look()
        look()
        assert reported == [1]


async def test_requests_without_acl_take_no_extra_step(tmp_path):
    async with Group(tmp_path) as group:
        broker = await group.leading()
        assert broker.server._on_raw == broker.processor.on_raw
        assert not broker.access.service(lambda: None).chores
        for code in range(50, 55):
            off = await group.ask(broker, code)
            assert (off.code, "aclEnable is not set" in off.remark) == (1, True)


async def test_wrong_or_missing_account_file_prevents_the_start(tmp_path):
    keys = {"aclEnable": "true", "aclFile": str(tmp_path / "none.yml"), "listenPort": "0",
            "bindAddress": "127.0.0.1"}  # fmt: skip
    for text, why in ((None, "No such file"), ("accounts: [{secretKey: sesame-open-1}]", "access")):
        if text is not None:
            (tmp_path / "none.yml").write_text(text)
        config = build_config([Setting(k, v, "test") for k, v in keys.items()])
        with pytest.raises(EngineError, match=why) as raised:
            await open_broker(config, OsDisk(str(tmp_path / "store")))
        assert "sesame" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["x", "{}", '{"accessKey":"a"}', '{"accessKey":"a","secretKey":""}']
)
def test_wrong_credentials_of_the_node_are_reported_without_the_secret(text):
    with pytest.raises(ConfigError, match="innerClientAuthenticationCredentials") as raised:
        build_config([Setting("innerClientAuthenticationCredentials", text, "test")])
    assert text not in str(raised.value) or text == "x"


# ---- classic mode


def put_in_place(path, text):
    """All of it at once: half a file is one that says something else."""
    alongside = path.with_suffix(".new")
    alongside.write_text(text)
    alongside.replace(path)


async def test_classic_broker_uses_its_account_file(tmp_path):
    path = tmp_path / "plain_acl.yml"
    async with guarded(tmp_path, enableDLegerCommitLog="false", dLegerPeers="") as group:
        broker = group.brokers["n0"]
        await group.create_topic(broker, "T")
        assert (await send(broker, WRITER)).code == 0
        fields = put("only-writes", topicPerms="T=DENY")
        assert (await group.ask(broker, 50, fields)).code == 0
        assert "No permission" in (await send(broker, WRITER)).remark
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert parse_accounts(path.read_text()) == broker.access.book.current()
        assert parse_accounts(path.read_text()).by_key["only-writes"].secret_key == "sesame-open-2"
        put_in_place(path, PLAIN_ACL)
        await until(lambda: broker.access.book.current().counter == 0)
        assert (await send(broker, WRITER)).code == 0
        put_in_place(path, "accounts: [")  # says nothing
        await group.ask(broker, 28)
        (chore,) = broker.book.chores()
        await present(chore.run())
        assert (await send(broker, WRITER)).code == 0
        assert not (tmp_path / "n0/config/plainAcl.json").exists()
        assert (await group.ask(broker, 51, {"accessKey": "nobody-here"})).code == 210


# ---- the table


def test_acl_table_commands_and_round_trip():
    table = AclTable()
    accounts = parse_accounts(PLAIN_ACL)
    assert orjson.loads(orjson.dumps(table.to_json()))["seeded"] is False
    for payload in (
        seed(accounts),
        seed(parse_accounts("")),
        put_account(Account("somebody-new", "sesame-open-4")),
        delete_account("only-writes"),
        delete_account("only-writes"),
        put_white_addresses(["10.1.1.1"]),
    ):
        table.apply(orjson.loads(payload), 9)
    assert set(present(table.accounts).by_key) == {"administrator", "only-reads", "somebody-new"}
    assert present(table.accounts).white_addresses == ("10.1.1.1",)
    twin = AclTable()
    twin.load(table.to_json(), 17)
    assert (twin.accounts, twin.applied_index) == (table.accounts, 17)
    table.apply(orjson.loads(seed(accounts, force=True)), 10)
    assert table.accounts == accounts
    twin.load({**AclTable().to_json()}, 18)
    assert twin.accounts is None


@pytest.mark.parametrize(
    "command",
    [{"op": "acl_put", "account": {"accessKey": "x", "secretKey": "sesame-open-1"}},
     {"op": "acl_put"}, {"op": "acl_other"}, {"op": "acl_white", "addresses": 7},
     {"op": "acl_seed", "config": {"accounts": ["sesame-open-1"]}, "force": False}],
)  # fmt: skip
def test_malformed_account_command_stops_the_replica_without_secrets(command):
    with pytest.raises(StateError) as raised:
        AclTable().apply(command, 1)
    assert "sesame" not in str(raised.value)
    with pytest.raises(StateError) as raised:
        AclTable().load({"seeded": True, "accounts": ["sesame-open-1"]}, 1)
    assert "sesame" not in str(raised.value)


def test_account_lists_are_split_at_commas_outside_of_braces():
    assert split("a=PUB, b=SUB|PUB,") == ["a=PUB", "b=SUB|PUB"]
    assert split("10.1.1.{1,2},10.2.*.*") == ["10.1.1.{1,2}", "10.2.*.*"]
    assert split("") == [] and split("{a,b") == ["{a", "b"]


async def test_classic_slave_signs_its_requests_to_the_master(tmp_path):
    (tmp_path / "plain_acl.yml").write_text(PLAIN_ACL)
    keys = {"aclEnable": "true", "aclFile": tmp_path / "plain_acl.yml"}
    own = {"innerClientAuthenticationCredentials": OWN}
    async with Classic(tmp_path, names={"master": own, "slave1": own}, **keys) as pair:
        await pair.client.close()
        pair.client = RemotingClient(credentials=ADMIN)
        await pair.followed()
        assert (await pair.create_topic(pair.master, "T")).code == 0
        assert (await send(pair.master, WRITER)).code == 0
        await pair.caught_up()
        await until(lambda: pair.slave.state.topics.get("T") is not None)
        assert pair.master.access.refused_count == 0
        assert (await pull(pair.slave, READER)).remark == "FOUND"
        assert (await pull(pair.slave, WRITER)).remark.startswith(EXCEPTION)
