"""Probes of a running cluster from outside, for each replica's view and the name server's.

Sends read-only requests: GET_BROKER_RUNTIME_INFO (28), GET_BROKER_CLUSTER_INFO (106),
QUERY_CONSUMER_OFFSET (14) and GET_MAX_OFFSET (30).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fast_json import loads

from .clusterfile import Node
from .credentials import own_credentials

PROBE_TIMEOUT_MS = 500.0
MASTER, SLAVE = "master", "slave"  # roles of classic brokers


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A broker's view of itself. Indexes are Raft indexes; a classic broker's are byte offsets of
    its CommitLog, and the master counts as the leader of term 0."""

    node: str
    group: str
    role: str
    term: int
    leader: str
    leader_ready: bool
    commit_index: int
    applied_index: int
    last_index: int
    durable_index: int
    follows: bool = True  # of a classic slave, connected to its master
    refuses: str = ""  # reason for which a classic slave stopped following its master
    slaves_in_sync: int = 0  # slaves for which a classic master would wait

    @property
    def leads(self) -> bool:
        return self.role in ("leader", MASTER)


class Probe(Protocol):
    """The questions that cluster commands ask of a cluster."""

    async def replica(self, node: Node) -> ReplicaView | None:
        """Return the broker's view; None if it does not answer, or refuses to."""
        ...

    def refusal(self, node: Node) -> str:
        """Return why the broker refused the last question for its view; "" if it did not."""
        ...

    async def registered_leader(self, namesrv: str, group: str) -> str | None:
        """Return the address of the group's brokerId 0, from the first of these name servers
        (separated by ';') that answers; None without a leader."""
        ...

    async def listens(self, node: Node) -> bool:
        """Return whether the node accepts connections."""
        ...

    async def close(self) -> None: ...


class RemotingProbe:
    """The real probe; it keeps its connections. Use as `async with`."""

    def __init__(self, timeout_ms: float = PROBE_TIMEOUT_MS) -> None:
        self._timeout_ms = timeout_ms
        self._client = RemotingClient(connect_timeout_ms=timeout_ms, credentials=own_credentials())
        self._refusals: dict[str, str] = {}  # address → why it refused the last question

    async def __aenter__(self) -> RemotingProbe:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.close()

    async def replica(self, node: Node) -> ReplicaView | None:
        body = await self._ask(node.address, RequestCode.GET_BROKER_RUNTIME_INFO)
        table = body.get("table") if body else None
        return parse_replica(node, table) if isinstance(table, dict) else None

    def refusal(self, node: Node) -> str:
        return self._refusals.get(node.address, "")

    async def listens(self, node: Node) -> bool:
        return await listens(node, self._timeout_ms)

    async def registered_leader(self, namesrv: str, group: str) -> str | None:
        for address in namesrv.split(";"):
            body = await self._ask(address, RequestCode.GET_BROKER_CLUSTER_INFO)
            if body:
                break
        else:
            return None
        entry = (body.get("brokerAddrTable") or {}).get(group) or {}
        result = (entry.get("brokerAddrs") or {}).get("0")
        return str(result) if result else None

    async def consumer_offset(self, address: str, group: str, topic: str, queue: int) -> int | None:
        """Return the group's offset in a queue (14); None without an answer or offset."""
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
        fields["setZeroIfNotFound"] = "false"  # a 0 that nobody has committed may become none again
        return await self._ask_offset(address, RequestCode.QUERY_CONSUMER_OFFSET, fields)

    async def max_offset(self, address: str, topic: str, queue: int) -> int | None:
        """Return the next queue offset (30); None without an answer."""
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
        self._refusals.pop(address, None)
        try:
            answer = await self._client.invoke(
                address, RemotingCommand.request(code), self._timeout_ms
            )
            if answer.code != ResponseCode.SUCCESS or not answer.body:
                self._refusals[address] = answer.remark or f"code {answer.code}"
                return None
            body = loads(answer.body)
        except RemotingError:
            return None  # no answer is a result here
        return body if isinstance(body, dict) else None


def parse_replica(node: Node, table: dict[str, str]) -> ReplicaView | None:
    """Return the view in a runtime info table; None if required fields are missing."""
    try:
        if "raftRole" not in table:
            return _classic_view(node, table)
        return ReplicaView(
            table["raftSelfId"],
            node.group,
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


def _classic_view(node: Node, table: dict[str, str]) -> ReplicaView:
    end = int(table["commitLogMaxOffset"])
    master = node.broker_id == 0
    leader = node.name if master else ""
    role = MASTER if master else SLAVE
    follows = master or table.get("haConnected") == "true"
    in_sync = int(table.get("haSlavesInSync", "0"))
    return ReplicaView(
        *(node.name, node.group, role, 0, leader, master, end, end, end, end),
        follows=follows,
        refuses=table.get("haRefused", ""),
        slaves_in_sync=in_sync,
    )


async def listens(node: Node, timeout_ms: float) -> bool:
    """Return whether a process accepts connections at the node's address."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, writer = await asyncio.open_connection(node.host, node.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def replicas(probe: Probe, nodes: Sequence[Node]) -> list[ReplicaView | None]:
    """Return all views, asked at once, in the order of the nodes."""
    return list(await asyncio.gather(*(probe.replica(node) for node in nodes)))


def leader_of(views: Sequence[ReplicaView | None], group: str) -> ReplicaView | None:
    """Return the view that leads the group's highest term; a deposed leader loses."""
    leading = [v for v in views if v is not None and v.group == group and v.leads]
    return max(leading, key=lambda view: view.term, default=None)
