"""Looks at a running cluster from outside: each replica's own view, the name server's view.

Only requests that change nothing: GET_BROKER_RUNTIME_INFO (28), GET_BROKER_CLUSTER_INFO (106),
QUERY_CONSUMER_OFFSET (14) and GET_MAX_OFFSET (30).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from remoting.client import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from remoting.fastjson import loads

PROBE_TIMEOUT_MS = 500.0


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """What one replica says about itself. Indexes are Raft indexes."""

    node: str
    role: str
    term: int
    leader: str
    leader_ready: bool
    commit_index: int
    applied_index: int
    last_index: int
    durable_index: int

    @property
    def leads(self) -> bool:
        return self.role == "leader"


class Probe(Protocol):
    """What the cluster commands need to see."""

    async def replica(self, address: str) -> ReplicaView | None:
        """The replica's view; None if it does not answer."""
        ...

    async def registered_leader(self, namesrv: str, group: str) -> str | None:
        """Address of the group's brokerId 0 at the name server; None if it knows none."""
        ...

    async def close(self) -> None: ...


class RemotingProbe:
    """The real probe, over connections that it keeps. Use as `async with`."""

    def __init__(self, timeout_ms: float = PROBE_TIMEOUT_MS) -> None:
        self._timeout_ms = timeout_ms
        self._client = RemotingClient(connect_timeout_ms=timeout_ms)

    async def __aenter__(self) -> RemotingProbe:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.close()

    async def replica(self, address: str) -> ReplicaView | None:
        body = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        table = body.get("table") if body else None
        return parse_replica(table) if isinstance(table, dict) else None

    async def registered_leader(self, namesrv: str, group: str) -> str | None:
        body = await self._ask(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO)
        if not body:
            return None
        entry = (body.get("brokerAddrTable") or {}).get(group) or {}
        found = (entry.get("brokerAddrs") or {}).get("0")
        return str(found) if found else None

    async def consumer_offset(self, address: str, group: str, topic: str, queue: int) -> int | None:
        """The offset the broker holds for a group's queue (14); None: no answer, or none yet."""
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
        return await self._ask_offset(address, RequestCode.QUERY_CONSUMER_OFFSET, fields)

    async def max_offset(self, address: str, topic: str, queue: int) -> int | None:
        """The next queue offset to be given out (30); None: no answer."""
        fields = {"topic": topic, "queueId": str(queue)}
        return await self._ask_offset(address, RequestCode.GET_MAX_OFFSET, fields)

    async def _ask_offset(self, address: str, code: int, fields: dict[str, str]) -> int | None:
        command = RemotingCommand.request(code, fields)
        try:
            answer = await self._client.invoke(address, command, self._timeout_ms)
        except RemotingError:
            return None
        if answer.code != ResponseCode.SUCCESS or answer.ext is None:
            return None
        return int(answer.ext["offset"])

    async def _ask(self, address: str, code: int) -> dict[str, Any] | None:
        try:
            answer = await self._client.invoke(
                address, RemotingCommand.request(code), self._timeout_ms
            )
            if answer.code != ResponseCode.SUCCESS or not answer.body:
                return None
            body = loads(answer.body)
        except RemotingError:
            return None  # not answering is an answer here
        return body if isinstance(body, dict) else None


def parse_replica(table: dict[str, str]) -> ReplicaView | None:
    """The raft* keys of a runtime info table; None if it is not a Raft replica's."""
    try:
        return ReplicaView(
            table["raftSelfId"],
            table["raftRole"],
            int(table["raftTerm"]),
            table.get("raftLeader", ""),
            table.get("raftLeaderReady", "false").lower() == "true",
            int(table["raftCommitIndex"]),
            int(table["raftAppliedIndex"]),
            int(table["raftLastIndex"]),
            int(table.get("raftDurableIndex", "0")),
        )
    except (KeyError, ValueError):
        return None


async def replicas(probe: Probe, addresses: Sequence[str]) -> list[ReplicaView | None]:
    """All views at once, in the order asked."""
    return list(await asyncio.gather(*(probe.replica(address) for address in addresses)))


def leader_of(views: Sequence[ReplicaView | None]) -> ReplicaView | None:
    """The view that leads the highest term: a deposed leader that has not noticed loses."""
    leading = [view for view in views if view is not None and view.leads]
    return max(leading, key=lambda view: view.term, default=None)
