"""Asks JetStream servers for their view of the stream, by their monitoring port.

A view is of the Raft group of the one stream there is; of the group of all servers as long as there
is none. Its indexes are the stream's last sequence: what a replica shows, not what Raft counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from ..cluster.clusterfile import Node, load_state
from ..cluster.probe import ReplicaView, listens

ACCOUNT = "$G"  # of clients that give no name
META, OF_STREAMS = "_meta_", "S-"  # Raft groups: of all servers; of streams, by their names' begin
LEADS, HEALTHY = "LEADER", "ok"
TIMEOUT_S = 2.0
NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError)


class NatsProbe:
    """A cluster's probe (chaos.cluster.probe.Probe). Its session is made at the first question."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._session: aiohttp.ClientSession | None = None
        self._has_stream = False
        self._leads: dict[str, tuple[int, str]] = {}  # group → term and name

    async def replica(self, node: Node) -> ReplicaView | None:
        """Return the server's view; None if it does not answer, or has no replica of the stream
        although others have."""
        path = f"/raftz?acc={ACCOUNT}"
        groups, streams = await asyncio.gather(
            self.ask(node, path), self.ask(node, f"/jsz?acc={ACCOUNT}&streams=true")
        )
        found = stream_group(groups)
        if found is None and not self._has_stream:
            found = ((await self.ask(node, "/raftz")).get("$SYS") or {}).get(META)
        elif found is not None:
            self._has_stream = True
        if found is None:
            return None
        view = view_of(node, found, last_sequence(streams))
        if view.leads and view.term >= self._leads.get(view.group, (0, ""))[0]:
            self._leads[view.group] = view.term, view.node
        return view

    async def listens(self, node: Node) -> bool:
        return await listens(node, TIMEOUT_S * 1000)

    async def registered_leader(self, namesrv: str, group: str) -> str | None:
        """Return the address of the last leader seen: clients need no name server."""
        _, name = self._leads.get(group, (0, ""))
        state = load_state(self._directory)
        return state.client_address(state.node(name)) if name else None

    def refusal(self, node: Node) -> str:
        return ""  # these servers answer everybody

    async def health(self, node: Node) -> str:
        """Return what the server says of its own health, "no answer" without one."""
        found = await self.ask(node, "/healthz")
        return str(found.get("error") or found.get("status") or "no answer")

    async def ask(self, node: Node, path: str) -> Mapping[str, Any]:
        """Return the answer; an empty one if there is none."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TIMEOUT_S))
        try:
            async with self._session.get(f"http://{node.http}{path}") as answer:
                found = orjson.loads(await answer.read())
        except NO_ANSWER:
            return {}  # no answer is a result here
        return found if isinstance(found, dict) else {}

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def stream_group(groups: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the stream's Raft group of an answer of /raftz; None without one."""
    of_account: Mapping[str, Any] = groups.get(ACCOUNT) or {}
    return next((of_account[name] for name in of_account if name.startswith(OF_STREAMS)), None)


def last_sequence(streams: Mapping[str, Any]) -> int:
    """Return the last sequence of the one stream in an answer of /jsz; 0 without one."""
    for account in streams.get("account_details") or ():
        for stream in account.get("stream_detail") or ():
            return int(stream["state"]["last_seq"])
    return 0


def view_of(node: Node, group: Mapping[str, Any], last: int) -> ReplicaView:
    """Return the view in one Raft group of an answer of /raftz."""
    leads = group["state"] == LEADS
    role = "leader" if leads else "follower"
    leader = str(group.get("leader", ""))
    term = int(group["term"])
    return ReplicaView(node.name, node.group, role, term, leader, leads, last, last, last, last)
