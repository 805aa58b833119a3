"""Members of a broker's group change on request (30002): who they are, what name servers show."""

import asyncio
import logging
from contextlib import asynccontextmanager

import orjson
import pytest

from raftmq.broker.config import build_config
from raftmq.broker.health import why_not
from raftmq.client.admin import Admin
from raftmq.client.errors import NameServerUnreachable
from raftmq.dledger.raft.configuration import Change, ChangeKind
from raftmq.dledger.raft.errors import OutcomeUnknown
from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.server import NameServer
from raftmq.ops.options import ConfigError, Setting
from raftmq.remoting.codes import RequestCode, ResponseCode
from tests.broker.cluster import Group
from tests.ports import bound
from tests.waiting import until

PATIENCE_S = 120.0  # only a hang takes so long
GROUP = "group-a"


class Growing(Group):
    """A group that others may join. The founders' dLegerPeers stays what it was."""

    def __init__(self, root, count, **settings):
        super().__init__(root, count, **settings)
        self.founders = self.peers(self.names)
        self.joiners = set()

    def peers(self, names):
        return ";".join(f"{name}-127.0.0.1:{self.ports[name]}" for name in names)

    def config(self, name):
        joins = name in self.joiners
        own = {
            "dLegerPeers": self.peers(self.names) if joins else self.founders,
            "raftJoin": str(joins).lower(),
        }
        self.settings |= own
        return super().config(name)

    async def join(self, name):
        self.sockets[name] = bound()
        self.ports[name] = self.sockets[name].getsockname()[1]
        self.names.append(name)
        self.joiners.add(name)
        return await self.start(name)

    async def change(self, op, member, address="", force=""):
        """Ask whoever leads until it is done."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                expected = fields(op, member, address, force)
                answer = await self.ask(await self.leading(), RequestCode.CHANGE_MEMBERS, expected)
                if answer.code == ResponseCode.SUCCESS:
                    return answer
                assert "OUTCOME_UNKNOWN" not in answer.remark, answer.remark
                await asyncio.sleep(0.02)

    async def info(self, name):
        answer = await self.ask(self.brokers[name], RequestCode.GET_BROKER_RUNTIME_INFO)
        return orjson.loads(answer.body)["table"]


def fields(op, member="", address="", force=""):
    expected = {"op": op, "memberId": member, "memberAddress": address, "force": force}
    return {key: value for key, value in expected.items() if value}


@asynccontextmanager
async def registered(root, count):
    """A group, and what the name server shows of it: brokerId to address."""
    config = NameServerConfig(bind="127.0.0.1", port=0, http_enable=False)
    async with NameServer(config) as names:
        where = f"127.0.0.1:{names.port}"
        async with Admin(where) as admin, Growing(root, count, namesrvAddr=where) as group:

            async def shown():
                try:
                    result = (await admin.cluster.info()).brokers.get(GROUP)
                except NameServerUnreachable:  # not within a second: it is asked again
                    return None
                return dict(result.addresses) if result else {}

            yield group, shown


async def shows(shown, wanted):
    async with asyncio.timeout(PATIENCE_S):
        while await shown() != wanted:  # noqa: ASYNC110 (another process's table)
            await asyncio.sleep(0.02)


async def test_replaced_broker_is_shown_by_the_name_server(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    async with registered(tmp_path, 3) as (group, shown):
        first = await group.leader()
        leader = group.brokers[first]
        dead, kept = (name for name in group.names if name != first)
        ids = {name: 1 + int(name[1:]) for name in ("n0", "n1", "n2")}
        await group.kill(dead)
        new = await group.join("n3")
        assert (await group.info("n3"))["raftMembership"] == "none"
        assert why_not(await group.info("n3")).startswith("is no member of its group")
        here = {0: leader.address, ids[kept]: group.brokers[kept].address}
        await shows(shown, here)
        await group.change("add-learner", "n3", f"127.0.0.1:{group.ports['n3']}")
        await group.change("promote", "n3")
        answer = await group.change("remove", dead)
        members = {row["node_id"]: row for row in orjson.loads(answer.body)["members"]}
        assert set(members) == {first, kept, "n3"} and int(answer.ext["index"]) > 0
        assert (members["n3"]["role"], members["n3"]["broker_id"]) == ("voter", 4)
        await shows(shown, here | {4: new.address})
        assert why_not(await group.info("n3")) == ""

        # The one that was removed comes back, and hears that it is out.
        await group.start(dead)
        await until(lambda: not group.brokers[dead].log.identity.member)
        await shows(shown, here | {4: new.address})
        assert (await group.info(dead))["raftMembership"] == "none"
        await until(lambda: "no_member" in caplog.text)

        # A leader that is removed leaves, and another one leads.
        await group.change("remove", first)
        await until(lambda: not leader.log.identity.member)
        successor = await group.leader()
        other = "n3" if successor == kept else kept
        other_id = 4 if other == "n3" else ids[kept]
        expected = {0: group.brokers[successor].address, other_id: group.brokers[other].address}
        await shows(shown, expected)


REFUSED = (
    (fields("grow"), "expected one of list, add-learner, promote, remove, move"),
    (fields("promote"), "memberId='' is no id"),
    (fields("promote", "n-1"), "memberId='n-1' is no id"),
    (fields("promote", "n9"), "n9 is no member of this group"),
    (fields("promote", "n0"), "n0 is a voter already"),
    (fields("promote", "n0", "h:1"), "promote takes no memberAddress"),
    (fields("add-learner", "n9"), "add-learner needs memberAddress"),
    (fields("add-learner", "n9", "h"), "'h' is no address"),
    (fields("remove", "n0"), "n0 is the group's only voter"),
)


async def test_rejected_member_change_has_its_reason_and_a_member_is_moved(tmp_path):
    async with Growing(tmp_path, 1) as single:
        broker = await single.leading()
        for expected, text in REFUSED:
            answer = await single.ask(broker, RequestCode.CHANGE_MEMBERS, expected)
            assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)
            assert text in answer.remark
            assert [row["node_id"] for row in broker.engine.members] == ["n0"]
        await single.change("add-learner", "n9", "127.0.0.1:1", "true")
        moved = await single.change("move", "n9", "127.0.0.1:2", "true")
        rows = orjson.loads(moved.body)["members"]
        assert [row["address"] for row in rows][1:] == ["127.0.0.1:2"]


async def test_member_moves_only_to_an_address_where_it_answers_unless_forced(tmp_path):
    async with Group(tmp_path, count=3) as group:
        first = await group.leader()
        leader, engine = group.brokers[first], group.brokers[first].engine
        one, two = (name for name in group.names if name != first)
        links, there = engine.links, f"127.0.0.1:{group.ports[one]}"
        await until(lambda: links.is_at(one, there))

        async def move(member, address, force=""):
            expected = fields("move", member, address, force)
            return await group.ask(leader, RequestCode.CHANGE_MEMBERS, expected)

        other = f"localhost:{group.ports[two]}"
        for where, why in (("127.0.0.1:1", "connect"), (other, f"this is {two}, not {one}")):
            answer = await move(one, where)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            said = f"{one} was not found at {where}: "
            assert said in answer.remark and why in answer.remark.lower()
        assert [row["address"] for row in engine.members][int(one[1:])] == there
        assert (await move("n9", there)).remark.startswith("n9 is no member")
        for expected in (
            (one, f"localhost:{group.ports[one]}", ""),
            (first, f"127.0.0.1:{group.ports[first]}", ""),
            (two, "127.0.0.1:1", "true"),
        ):
            async with asyncio.timeout(PATIENCE_S):  # who was moved answers again soon
                while (await move(*expected)).code != ResponseCode.SUCCESS:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)


@pytest.mark.parametrize("secret", [False, True])
async def test_move_to_an_address_without_the_member_is_not_proposed(tmp_path, secret):
    """The leader's own move to a dead address was made, answered OUTCOME_UNKNOWN, and left the
    leader alone."""
    settings = {"peerSecret": "0123456789abcdef"} if secret else {}
    config = NameServerConfig(bind="127.0.0.1", port=0, http_enable=False)
    async with (
        NameServer(config) as names,
        Growing(tmp_path / "a", 3, **settings) as group,
        Group(tmp_path / "b", 1, brokerName="group-b", **settings) as stranger,
    ):
        await stranger.leading()
        first = await group.leader()
        leader, engine = group.brokers[first], group.brokers[first].engine
        follower = next(name for name in group.names if name != first)
        await group.join("n3")
        elsewhere = {
            "dead": "127.0.0.1:1",
            "another group's broker": f"127.0.0.1:{stranger.ports['n0']}",
            "a name server": f"127.0.0.1:{names.port}",
            "another member": f"localhost:{group.ports[follower]}",
        }
        tried = [("add-learner", "n3", ""), ("move", first, ""), ("move", first, "true")]
        for op, member, force in tried:
            for where in elsewhere.values():
                expected = fields(op, member, where, force)
                answer = await group.ask(leader, RequestCode.CHANGE_MEMBERS, expected)
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert f"{member} was not found at {where}" in answer.remark
                assert "OUTCOME_UNKNOWN" not in answer.remark
                assert engine.core.membership.configurations.index == 0, "it was proposed"
        assert "hand leadership over first" in answer.remark
        await group.change("move", first, f"localhost:{group.ports[first]}")
        await group.change("add-learner", "n3", f"127.0.0.1:{group.ports['n3']}")
        assert await group.leader() == first


async def test_follower_lists_members_and_changes_none(tmp_path):
    async with Group(tmp_path, count=3) as group:
        first = await group.leader()
        other = next(name for name in group.names if name != first)
        follower = group.brokers[other]
        await until(lambda: follower.roles.leader_address != "")
        listed = await group.ask(follower, RequestCode.CHANGE_MEMBERS, fields("list"))
        rows = orjson.loads(listed.body)["members"]
        assert [(row["node_id"], row["role"], row["broker_id"]) for row in rows] == [
            ("n0", "voter", 1),
            ("n1", "voter", 2),
            ("n2", "voter", 3),
        ]
        answer = await group.ask(follower, RequestCode.CHANGE_MEMBERS, fields("remove", first))
        assert answer.remark.startswith("[NOT_LEADER]")
        assert answer.ext["leaderAddr"] == group.brokers[first].address


async def test_member_change_of_unknown_outcome_is_reported_as_unknown(tmp_path):
    settings = {"electionTimeoutMinMs": 800, "electionTimeoutMaxMs": 1_200}
    async with Group(tmp_path, 3, {"outcome": 3_000}, **settings) as group:
        first = await group.leader()
        leader = group.brokers[first]
        others = [name for name in group.names if name != first]
        for name in others:  # they have answered just now, and will not again
            group.brokers[name].abandon("killed by the test")
        expected = fields("add-learner", "n9", "127.0.0.1:1", "true")
        change = Change(ChangeKind.ADD_LEARNER, "n9", "127.0.0.1:1")
        made = asyncio.create_task(leader.members.make(change, force=True))
        answer = await group.ask(leader, RequestCode.CHANGE_MEMBERS, expected)
        assert "it was not done, because it could not be recorded" in answer.remark
        with pytest.raises(OutcomeUnknown):
            await made


async def test_members_of_a_classic_broker_cannot_change(tmp_path):
    async with Group(tmp_path, enableDLegerCommitLog="false", dLegerPeers="") as group:
        answer = await group.ask(group.brokers["n0"], RequestCode.CHANGE_MEMBERS, fields("list"))
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"dLegerPeers": "n0-h:1"}, "must name the group's members"),
    ],
)
def test_invalid_join_configuration_is_rejected(more, words):
    values = {
        "enableDLegerCommitLog": "true",
        "dLegerPeers": "n0-h:1;n1-h:2",
        "dLegerSelfId": "n0",
        "raftJoin": "true",
    } | more
    with pytest.raises(ConfigError, match="raftJoin") as refused:
        build_config([Setting(key, value, "test") for key, value in values.items()])
    assert words in str(refused.value)
