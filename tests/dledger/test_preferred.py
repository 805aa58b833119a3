"""A group of real members whose leadership goes to the one that is preferred."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from raftmq.dledger.raft.configuration import Change, ChangeKind
from raftmq.dledger.raft.errors import ChangeRefused, PreferredChanged, RaftError
from raftmq.dledger.raft.leader_placement import PreferenceLimits
from tests.dledger.members import Group
from tests.dledger.test_change_members import change

SOON = PreferenceLimits(150, moves_per_minute_max=20, back_off_ms=400, back_off_ms_max=800)
LOOK_S = 0.02


@asynccontextmanager
async def looking(root: Path) -> AsyncIterator[Group]:
    """Every member looks, and does as it is told, as a broker has it."""
    async with Group(root, preference=SOON) as group:  # type: ignore[arg-type]

        async def poll() -> None:
            while True:
                for node in group.nodes:
                    target = node.member.preferred_successor() if node.running else None
                    if target is not None:
                        try:
                            node.member.transfer(target)
                        except RaftError:
                            pass  # it lost leadership just now, or the target did: looked at again
                await asyncio.sleep(LOOK_S)

        task = asyncio.create_task(poll())
        try:
            yield group
        finally:
            task.cancel()
            await asyncio.wait([task])


async def prefer(group: Group, name: str, *instead_of: str | None) -> int:
    """Ask whoever leads until it is done."""
    change = Change(ChangeKind.PREFER, name, instead_of=instead_of or None)
    async with asyncio.timeout(60):
        while True:
            leader = await group.leader()
            try:
                return await leader.member.change_members(change)
            except PreferredChanged:
                raise
            except RaftError:  # it hands over just now
                await asyncio.sleep(LOOK_S)


async def leads(group: Group, name: str) -> None:
    node = next(n for n in group.nodes if n.node_id == name)
    await group.until(lambda: node.running and node.member.core.leader_ready)


async def test_preferred_replica_leads_after_the_change_and_after_a_restart(tmp_path: Path) -> None:
    async with looking(tmp_path) as group:
        first = await group.leader()
        expected = group.others(first)[1]
        name = expected.node_id
        index = await prefer(group, name, None)
        await leads(group, name)
        with pytest.raises(PreferredChanged, match=f"is {name}"):
            await prefer(group, first.node_id, None)
        await expected.kill()
        await group.leader(group.others(expected))
        await expected.start()
        await leads(group, name)
        await group.all_applied()
        for node in group.nodes:
            assert node.member.status()["preferred"] == name
            assert node.member.core.membership.configurations.index == index
        assert expected.member.status()["preferred_reason"] == f"{name} leads"
        # What is said stays said over restarts of all, too.
        for node in group.nodes:
            await node.stop()
        for node in group.nodes:
            await node.start()
        await leads(group, name)


async def test_removal_of_the_preferred_replica_clears_the_preference(tmp_path: Path) -> None:
    async with looking(tmp_path) as group:
        first = await group.leader()
        expected = group.others(first)[0]
        with pytest.raises(ChangeRefused, match="n9 is no member"):
            await first.member.change_members(Change(ChangeKind.PREFER, "n9"))
        await prefer(group, expected.node_id)
        await leads(group, expected.node_id)
        await change(group, ChangeKind.REMOVE, expected.node_id)
        after = await group.leader(group.others(expected))
        assert after.member.core.membership.configurations.current.preferred == ""
        await group.until(
            lambda: after.member.status()["preferred_reason"] == "nobody is preferred"
        )


async def test_preferred_replica_that_cannot_lead_fails_no_send(tmp_path: Path) -> None:
    async with looking(tmp_path) as group:
        leader = await group.leader()
        expected = group.others(leader)[0]
        expected.member.core.disk_fails("a test says so")  # nothing that the leader could see
        await prefer(group, expected.node_id)
        term = leader.member.core.term
        given_up = f"transfer to {expected.node_id} given up"
        tries = lambda: [e for e in leader.app.events if e.reason.startswith(given_up)]  # noqa: E731
        await group.until(lambda: leader.member.core.transfer_target is not None)
        leader.app.send(b"held meanwhile")
        await group.until(lambda: len(tries()) > 0)
        await group.until(lambda: leader.app.fates.get(b"held meanwhile") == "stored")
        assert (leader.member.core.term, leader.member.core.role.value) == (term, "leader")
        expected.member.core.disk_works()
        await leads(group, expected.node_id)
