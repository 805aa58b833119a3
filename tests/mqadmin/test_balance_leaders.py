"""balanceLeaders: machines lead as many groups as they should, after few hand-overs."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from raftmq.client import BlockingProducer, Message
from raftmq.mqadmin.balance_leaders import Group, balanced
from raftmq.mqadmin.runner import LATER
from tests.broker.cluster import Group as Brokers
from tests.mqadmin.conftest import NEW, OLD, STOP_S, Small
from tests.waiting import until, wait_until


def drawn(seed: int) -> list[Group]:
    rng = random.Random(seed)
    machines = [f"m{number}" for number in range(rng.randint(1, 4))]
    groups = []
    for number in range(rng.randint(1, 5)):
        voters = {f"n{i}": rng.choice(machines) for i in range(rng.randint(1, 3))}
        leader, preferred = rng.choice([*voters]), rng.choice(["", *voters])
        problem = rng.choice(["", "", "", "n1 is recovering"])
        groups.append(Group(f"g{number}", leader, voters, preferred, problem))
    return groups


def costs(groups: list[Group], machines: tuple[str, ...]) -> tuple[int, int, int]:
    squares = sum(count**2 for count in Counter(machines).values())
    pairs = list(zip(groups, machines, strict=True))
    moves = sum(machine != group.machine for group, machine in pairs)
    return squares, moves, sum(g.machines.get(g.preferred) != machine for g, machine in pairs)


@pytest.mark.parametrize("seed", range(100))
def test_no_other_placement_is_more_even_or_has_fewer_moves(seed: int) -> None:
    groups = drawn(seed)
    result = balanced(groups)
    assert all(result[group.name] in group.choices for group in groups)
    machines = tuple(result[group.name] for group in groups)
    every = itertools.product(*(group.choices for group in groups))
    assert costs(groups, machines) == min(costs(groups, one) for one in every)
    assert balanced(groups) == result


def test_a_hundred_groups_on_seven_machines_differ_by_one_at_most() -> None:
    rng = random.Random(7)
    machines = [f"m{number}" for number in range(7)]
    groups = [
        Group(f"g{n}", "n0", dict(zip(("n0", "n1", "n2"), rng.sample(machines, 3), strict=True)))
        for n in range(100)
    ]
    counts = Counter(balanced(groups).values())
    assert sorted(counts.values()) == [14, 14, 14, 14, 14, 15, 15]


def test_the_leader_stays_where_its_machine_has_several_replicas() -> None:
    group = Group("g", "n1", {"n0": "a", "n1": "a", "n2": "b"}, "n0")
    assert (group.node("a"), group.node("b")) == ("n1", "n2")
    assert Group("g", "n2", {"n0": "a", "n1": "a", "n2": "b"}, "n1").node("a") == "n1"


class Machines(Brokers):
    """Replicas on loopback addresses of their own, as on machines."""

    def config(self, name):
        peers = ";".join(f"{n}-{self.host(n)}:{port}" for n, port in self.ports.items())
        return replace(super().config(name), dleger_peers=peers)

    def listener(self, name):
        super().listener(name).close()  # which holds the port
        result = socket.socket()
        result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        result.bind((self.host(name), self.ports[name]))
        return result

    @staticmethod
    def host(name):
        return f"127.0.0.{2 + int(name[1:])}"


def leads(broker: Any) -> bool:
    return bool(broker.roles.leading)


class Crowded(Small):
    """Two groups of three, led from one machine."""

    async def _run(self, up: threading.Event) -> None:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(self._server)
            self.namesrv = server.address
            self.groups = {}
            for name in (OLD, NEW):
                group = Machines(self._root / name, 3, namesrvAddr=server.address, brokerName=name)
                self.groups[name] = await stack.enter_async_context(group)
                leader = await group.leading()
                await group.create_topic(leader, "orders")
                if await group.leader() != "n0":
                    await group.transfer(leader, "n0")
                    await until(partial(leads, group.brokers["n0"]))
            up.set()
            await self._stop.wait()

    def ask(self, *arguments: str) -> tuple[int, dict]:
        done = self.run(*arguments, "--json")
        assert done.exit_code in (0, LATER), done.stderr
        return done.exit_code, json.loads(done.stdout)

    def stop_replica(self, group: str, name: str) -> None:
        stopping = self.groups[group].stop(name)
        asyncio.run_coroutine_threadsafe(stopping, self._loop).result(STOP_S)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowded]:
    cluster = Crowded(tmp_path_factory.mktemp("crowded"))
    cluster.start()
    wait_until(lambda: cluster.run("clusterList").stdout.count("group-") == 6)
    yield cluster
    cluster.stop()


def test_leaders_move_to_other_machines_and_no_send_fails(crowded: Crowded) -> None:
    def by_machine(told: dict) -> dict[str, list[int]]:
        return {row["machine"]: [row["before"], row["after"]] for row in told["machines"]}

    def balance(*arguments: str) -> dict:
        status, reported = crowded.ask("balanceLeaders", *arguments)
        assert status == 0
        return reported

    moved = {"127.0.0.2": [2, 1], "127.0.0.3": [0, 1], "127.0.0.4": [0, 0]}
    plan = balance("--plan")
    assert by_machine(plan) == moved
    assert by_machine(balance("--dryRun")) == moved  # nothing was done before
    with BlockingProducer("shop", crowded.namesrv) as producer:
        stop = threading.Event()

        def send() -> int:
            sent = 0
            while not stop.is_set():
                producer.send(Message("orders", b"order"), 30_000)
                sent += 1
            return sent

        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(send)
            try:
                assert balance() == plan
            finally:
                stop.set()
            assert sending.result() > 0
    after = balance()
    assert by_machine(after) == {"127.0.0.2": [1, 1], "127.0.0.3": [1, 1], "127.0.0.4": [0, 0]}
    assert {row["outcome"] for row in after["groups"]} == {"there already"}
    for group in (OLD, NEW):
        listed = json.loads(crowded.run("members", "-b", group, "--json").stdout)
        (target,) = (row["target"] for row in after["groups"] if row["broker"] == group)
        assert [row["node"] for row in listed if row["preferred"]] == [target]


def test_a_group_with_a_replica_that_is_down_is_left(crowded: Crowded) -> None:
    crowded.stop_replica(NEW, "n2")
    wait_until(lambda: crowded.run("clusterList").stdout.count("group-") == 5)
    status, reported = crowded.ask("balanceLeaders")
    (left,) = (row for row in reported["groups"] if row["outcome"] == "left")
    assert (status, left["broker"], left["target"]) == (LATER, NEW, left["leader"])
    assert left["why"] == "n2 does not answer, or is recovering"
