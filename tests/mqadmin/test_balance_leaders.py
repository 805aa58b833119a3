"""balanceLeaders: leaders move to other zones and machines, and no send fails."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from raftmq.client import BlockingProducer, Message
from raftmq.mqadmin.runner import LATER
from tests.broker.cluster import Group as Brokers
from tests.mqadmin.conftest import NEW, OLD, STOP_S, Small
from tests.waiting import until, wait_until


class Machines(Brokers):
    """Replicas on loopback addresses of their own, as on machines."""

    def config(self, name):
        peers = ";".join(f"{n}-{self.host(n)}:{port}" for n, port in self.ports.items())
        zone = "west" if name == "n2" else "east"
        return replace(super().config(name), dleger_peers=peers, broker_zone=zone)

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
    wait_until(
        lambda: all(row["leader"] for row in cluster.ask("balanceLeaders", "--plan")[1]["groups"])
    )
    yield cluster
    cluster.stop()


def test_balance_leaders_moves_leaders_without_a_failed_send(crowded: Crowded) -> None:
    def by_machine(told: dict) -> dict[str, list[int]]:
        return {row["machine"]: [row["before"], row["after"]] for row in told["machines"]}

    def balance(*arguments: str) -> dict:
        status, reported = crowded.ask("balanceLeaders", *arguments)
        assert status == 0
        return reported

    moved = {"127.0.0.2": [2, 1], "127.0.0.3": [0, 0], "127.0.0.4": [0, 1]}
    plan = balance("--plan")
    assert [row["zone"] for row in plan["machines"]] == ["east", "east", "west"]
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
    assert by_machine(after) == {"127.0.0.2": [1, 1], "127.0.0.3": [0, 0], "127.0.0.4": [1, 1]}
    assert {row["outcome"] for row in after["groups"]} == {"there already"}
    for group in (OLD, NEW):
        listed = json.loads(crowded.run("members", "-b", group, "--json").stdout)
        (target,) = (row["target"] for row in after["groups"] if row["broker"] == group)
        assert [row["node"] for row in listed if row["preferred"]] == [target]


def test_balance_leaders_skips_group_with_a_replica_down(crowded: Crowded) -> None:
    crowded.stop_replica(NEW, "n1")
    wait_until(lambda: crowded.run("clusterList").stdout.count("group-") == 5)
    status, reported = crowded.ask("balanceLeaders")
    (left,) = (row for row in reported["groups"] if row["outcome"] == "left")
    assert (status, left["broker"], left["target"]) == (LATER, NEW, left["leader"])
    assert left["why"] == "n1 does not answer"
