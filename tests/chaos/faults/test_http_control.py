"""Faults through the HTTP API of a broker over the fault layer."""

import asyncio
from pathlib import Path

import pytest

from raftmq.chaos.faults.fault_control import SLOTS_MAX, Control, Rule, Steering
from raftmq.chaos.faults.faulty_broker import HttpDoor, steerable_machine
from tests.broker.cluster import Group
from tests.broker.http.client import Client

FAULT = {
    "kind": "slow", "calls": ["write"], "pattern": "commitlog/*", "skip": 0, "times": 0,
    "delay_ms": 5, "offset_ms": 0,
}  # fmt: skip


def test_http_faults_and_harness_faults_are_kept_apart(tmp_path: Path) -> None:
    door, control, harness = HttpDoor(tmp_path), Control(tmp_path), Steering(tmp_path)
    harness.put("theirs", [Rule("error", ("read",))])
    assert (door.add(FAULT), door.add(FAULT)) == ("http-0", "http-1")
    assert door.add(FAULT | {"kind": "clock", "offset_ms": 3_600_000}) == "clock"
    own = {one["id"]: one["own"] for one in door.listed()}
    assert own == {"http-0": True, "http-1": True, "theirs": False, "clock": True}
    assert len(control.rules()) == 3
    assert door.heal() == 3
    assert [one["id"] for one in door.listed()] == ["theirs"]
    assert door.heal() == 0
    control.close()


def test_http_faults_are_limited_to_their_slots(tmp_path: Path) -> None:
    door = HttpDoor(tmp_path)
    for _ in range(SLOTS_MAX):
        door.add(FAULT)
    with pytest.raises(ValueError, match="rules at most"):
        door.add(FAULT)


async def test_broker_fails_under_an_http_fault_and_is_healed(tmp_path: Path) -> None:
    machine = steerable_machine(str(tmp_path / "n0" / "store"))
    group = Group(tmp_path)
    group.disk, group.faults = lambda _: machine.disk, machine.faults
    async with group:
        broker = await group.leading()
        async with Client(broker.http.address) as client:
            assert (await client.get("/api/v1/faults")).json["items"] == []
            wrong = await client.post("/api/v1/faults", {"kind": "explode"})
            assert wrong.status == 422
            made = await client.put("/api/v1/topics/T", {}, If_None_Match="*")
            assert made.status == 200
            fault = {"kind": "stall", "calls": ["sync"], "pattern": "raft/*"}
            injected = await client.post("/api/v1/faults", fault)
            assert (injected.status, injected.json) == (201, {"id": "http-0"})
            [listed] = (await client.get("/api/v1/faults")).json["items"]
            assert (listed["kind"], listed["pattern"]) == ("stall", "raft/*")
            healed = await client.delete("/api/v1/faults")
            assert healed.json == {"healed": 1}
            async with asyncio.timeout(60):
                while (await client.get("/health/ready")).status != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
