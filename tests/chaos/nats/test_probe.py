"""Views are read from what a server's monitoring port answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from raftmq.chaos.cluster.clusterfile import Node, save_state
from raftmq.chaos.cluster.topology import Shape, plan, ports_needed
from raftmq.chaos.nats.probe import NatsProbe, last_sequence, stream_group, view_of

GROUP = {"state": "LEADER", "term": 7, "leader": "x", "committed": 90}
NODE = Node("n0", "broker", "127.0.0.1", 1, 2, "broker-a")
STREAMS = {"account_details": [{"stream_detail": [{"name": "Chaos", "state": {"last_seq": 55}}]}]}


def test_the_stream_is_found_among_the_groups() -> None:
    assert stream_group({"$G": {"C-R1F-a": {}, "S-R5F-b": GROUP}}) == GROUP
    assert stream_group({}) is None
    assert stream_group({"$G": {}}) is None
    assert stream_group({"$SYS": {"_meta_": GROUP}}) is None


def test_indexes_are_what_the_replica_shows() -> None:
    view = view_of(NODE, GROUP, last_sequence(STREAMS))
    assert (view.role, view.term, view.leader_ready) == ("leader", 7, True)
    assert (view.commit_index, view.applied_index) == (55, 55)
    assert view_of(NODE, GROUP | {"state": "CANDIDATE"}, 0).role == "follower"
    assert last_sequence({}) == 0
    assert last_sequence({"account_details": [{}]}) == 0
    assert last_sequence({"account_details": [{"stream_detail": []}]}) == 0


@asynccontextmanager
async def server(answers: Mapping[str, Any]) -> AsyncIterator[int]:
    """Serve `answers` by path and query; everything else is not found. Yield the port."""

    async def handle(request: web.Request) -> web.Response:
        found = answers.get(request.path_qs)
        return web.Response(status=404) if found is None else web.json_response(found)

    runner = web.AppRunner(app := web.Application())
    app.router.add_get("/{path:.*}", handle)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def test_before_there_is_a_stream_the_group_of_all_servers_is_asked(tmp_path: Path) -> None:
    shape = Shape(replicas=3, namesrv="none")
    state = plan(shape, {}, "127.0.0.1", range(20_000, 20_000 + ports_needed(shape)))
    save_state(tmp_path, state)
    answers: dict[str, Any] = {"/raftz": {"$SYS": {"_meta_": GROUP | {"term": 3}}}}
    probe = NatsProbe(tmp_path)
    try:
        async with asyncio.timeout(60), server(answers) as port:
            node = Node("n0", "broker", "127.0.0.1", 1, 2, "broker-a", http_port=port)
            view = await probe.replica(node)
            assert view is not None
            assert view.term == 3
            assert await probe.registered_leader("none", "broker-a") == state.node("n0").address
            assert await probe.health(node) == "no answer"
            answers |= {
                "/raftz?acc=$G": {"$G": {"S-R3F-x": GROUP}},
                "/jsz?acc=$G&streams=true": STREAMS,
                "/healthz": {"status": "ok"},
            }
            view = await probe.replica(node)
            assert view is not None
            assert (view.term, view.applied_index) == (7, 55)
            assert await probe.health(node) == "ok"
            del answers["/raftz?acc=$G"]  # it has forgotten its stream, and others have not
            assert await probe.replica(node) is None
        assert await probe.replica(node) is None
    finally:
        await probe.close()
