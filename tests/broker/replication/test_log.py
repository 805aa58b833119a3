"""The replicated log as services see it, over an engine that is made up."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.broker.config import BrokerConfig, build_config
from raftmq.broker.error_isolation import Contained
from raftmq.broker.errors import Refused
from raftmq.broker.replication.log import ReplicatedLog
from raftmq.broker.replication.roles import RoleView
from raftmq.broker.tables.state import BrokerState
from raftmq.dledger.raft.errors import Busy
from raftmq.dledger.raft.messages import Role, RoleEvent
from raftmq.ops.options import Setting

LEADS = RoleEvent(Role.LEADER, 1, "n0", True, "the test")
FOLLOWS = RoleEvent(Role.FOLLOWER, 1, "n1", False, "the test")


class Engine:
    has_core = False
    identity = SimpleNamespace(group_id=b"")

    def __init__(self) -> None:
        self.proposed: list[asyncio.Future[int]] = []
        self.targets: list[str] = []
        self.able: str | None = "n1"
        self.busy = False

    def propose_command(self, payload: bytes) -> asyncio.Future[int]:
        if self.busy:
            raise Busy("full")
        self.proposed.append(asyncio.get_running_loop().create_future())
        return self.proposed[-1]

    def successor(self) -> str | None:
        return self.able

    def transfer_blocker(self, target: str, *, force: bool) -> str:
        return ""

    def transfer(self, target: str) -> None:
        self.targets.append(target)


class World:
    def __init__(self, **settings: str) -> None:
        config: BrokerConfig = build_config([Setting(k, v, "test") for k, v in settings.items()])
        self.engine = cast(Any, Engine())
        self.roles = RoleView(config, BrokerState())
        self.contained = Contained()
        self.log = ReplicatedLog(config, self.roles, self.contained)
        self.log.attach(self.engine)


@pytest.fixture
def world() -> World:
    return World(
        enableDLegerCommitLog="true", dLegerSelfId="n0", dLegerPeers="n0-h:1;n1-h:2;n2-h:3"
    )


async def test_only_a_ready_leader_proposes(world: World) -> None:
    with pytest.raises(Refused, match="NOT_LEADER"):
        await world.log.propose(b"command")
    world.roles.change(LEADS)
    waiting = asyncio.ensure_future(world.log.propose(b"command"))
    await asyncio.sleep(0)
    world.engine.proposed[0].set_result(7)
    assert await waiting == 7


async def test_proposal_callback_runs_only_after_propose_returns(world: World) -> None:
    reported: list[Exception | None] = []
    world.engine.busy = True
    world.log.propose_then(b"command", reported.append)
    assert not reported
    await asyncio.sleep(0)
    assert [type(one) for one in reported] == [Busy]
    world.engine.busy = False
    world.log.propose_then(b"command", reported.append)
    world.engine.proposed[0].set_result(8)
    await asyncio.sleep(0)
    assert reported[1:] == [None]


async def test_failing_proposal_callback_is_contained(world: World) -> None:
    def done(error: Exception | None) -> None:
        raise ValueError(error)

    world.log.propose_then(b"command", done)
    world.engine.proposed[0].set_result(8)
    await asyncio.sleep(0)
    assert world.contained.counts["told_of_command"] == 1


def test_leadership_transfer_picks_an_able_successor(world: World) -> None:
    with pytest.raises(Refused, match="NOT_LEADER"):
        world.log.hand_over("")
    world.roles.change(LEADS)
    assert world.log.hand_over("") == "n1"
    assert world.log.hand_over("n2") == "n2"
    world.engine.able = None
    with pytest.raises(Refused, match="no follower is within reach that could lead at once"):
        world.log.hand_over("")
    assert world.engine.targets == ["n1", "n2"]


def test_leader_is_awaited_while_not_ready_and_after_a_transfer(world: World) -> None:
    nobody = RoleEvent(Role.FOLLOWER, 1, None, False, "the test")
    unready = RoleEvent(Role.LEADER, 1, "n0", False, "the test")
    assert not world.log.leader_is_awaited(nobody), "nobody was handed anything"
    assert world.log.leader_is_awaited(unready)
    assert not world.log.leader_is_awaited(LEADS)
    world.roles.change(LEADS)
    world.log.hand_over("n1")
    assert world.log.leader_is_awaited(nobody)
    assert not world.log.leader_is_awaited(FOLLOWS)
    assert not world.log.leader_is_awaited(nobody), "it was known since who leads"


def test_only_a_ready_leader_registers_as_broker_0(world: World) -> None:
    before = world.log.identity
    assert (before.broker_id, before.role, before.own_id) == (1, "none", 0)
    world.roles.change(FOLLOWS)
    assert (world.log.identity.broker_id, world.log.identity.role) == (1, "follower")
    world.roles.change(LEADS)
    led = world.log.identity
    assert (led.broker_id, led.role, led.own_id) == (0, "leader", 1)
