"""bench.scale: made-up brokers and clients at a real name server, and the command."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from bench.scale import main
from bench.scaleworld import Group, Recorder, Routes
from raftmq.broker.tables.topics import TopicConfig
from raftmq.client import Admin
from raftmq.client.route import TopicRouteData
from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.remoting.memory_limits import BudgetLimits, Budgets
from raftmq.remoting.server import RemotingServer
from tests.waiting import until

TOPICS = {name: TopicConfig(name, 1, 1) for name in ("A", "B")}


async def test_simulated_brokers_register_and_clients_follow_their_leader() -> None:
    config = NameServerConfig("127.0.0.1", 0, http_enable=False)
    leader = RemotingServer()  # knows no request
    await leader.start("127.0.0.1")
    recorder = Recorder("real", f"127.0.0.1:{leader.port}", "")
    async with NameServer(config) as server, Admin(server.address) as admin:
        group = Group("made", TOPICS, recorder, namesrv=server.address, keys=())
        await group.start(Budgets(BudgetLimits()))
        await until(lambda: group.is_listed)
        routes = Routes(server.address, list(TOPICS), count=3, each=2)
        await routes.connect()
        await routes.quiet(0.1)
        assert len(routes.latencies_ns) == 3 * 2
        before = (await admin.cluster.leaders())["made"]
        group.fail_over()
        await until(lambda: routes.pushed >= 3)
        await routes.quiet(0.1)
        data = (await admin.cluster.info()).brokers["made"]
        assert data.leader != before
        assert len(data.addresses) == 3
        group.put(TopicConfig("C", 1, 1))
        assert len((await _routed(admin, "C")).brokers) == 1
        routes.close()
        await group.stop()
        assert server.table.broker_count == 0
    await recorder.close()
    await leader.stop()


async def _routed(admin: Admin, topic: str) -> TopicRouteData:
    while topic not in await admin.cluster.topics():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return await admin.cluster.route(topic)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_scale_command_measures_all_phases(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    arguments = ["--groups", "2", "--topics", "30", "--clients", "4", "--rest", "1"]
    result = CliRunner().invoke(main, [*arguments, "--json", str(path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = orjson.loads(path.read_bytes())
    assert {row["status"] for row in rows if "status" in row} == {0.0, 200}
    assert all(row["cpu_ms"] >= 0 and row["mib"] > 0 for row in rows)
    assert "all return after an outage" in result.output
