"""The client of a cluster's link proxies, which sets rules and removes them.

It uses a single control connection and sends requests in turn. When the connection ends, also by
the harness's death, the proxy removes all its rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from ..cluster.cluster import Cluster
from ..cluster.clusterfile import ClusterError
from ..cluster.launch import control_path
from ..cluster.linkmap import CLIENT, NAMES, Link, links_of
from .listening import connect_to
from .rules import Rule, to_json

ANSWER_TIMEOUT_S = 60.0
ANSWER_BYTES_MAX = 16 << 20


class Links:
    """The links of a cluster. Use as `async with`; methods raise ClusterError."""

    def __init__(self, links: Sequence[Link], control: Path) -> None:
        self.all = tuple(links)
        self._control = control
        self._lock = asyncio.Lock()
        self._request_id = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @classmethod
    def of(cls, cluster: Cluster) -> Links:
        """Return the links of a cluster. Raises ClusterError if it was made without."""
        state = cluster.state()
        if not state.links:
            raise ClusterError("this cluster's traffic takes no proxies: make one with links")
        return cls(links_of(state), control_path(cluster.directory))

    async def __aenter__(self) -> Links:
        try:
            sock = connect_to(self._control)
        except OSError as error:
            raise ClusterError(f"the proxy at {self._control} does not answer: {error}") from error
        self._streams = await asyncio.open_unix_connection(sock=sock, limit=ANSWER_BYTES_MAX)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._streams is not None
        writer = self._streams[1]
        self._streams = None
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass  # the proxy ended first

    async def impose(self, owner: str, rules: Sequence[Rule]) -> None:
        """Replace the owner's rules by these; return once they are in force."""
        await self._ask({"do": "set", "owner": owner, "rules": [to_json(rule) for rule in rules]})

    async def lift(self, owner: str) -> None:
        await self._ask({"do": "clear", "owner": owner})

    async def reset(self, links: Collection[Link]) -> int:
        """Reset the links' connections now; return how many there were."""
        answer = await self._ask({"do": "reset", "links": [link.name for link in links]})
        return int(answer["connections"])

    async def state(self) -> Mapping[str, Mapping[str, Any]]:
        """Return link name → connections, taken, bytes_forward, bytes_back, held_bytes,
        listens, rules."""
        answer = await self._ask({"do": "state"})
        result: Mapping[str, Mapping[str, Any]] = answer["links"]
        return result

    def touching(self, node: str) -> list[Link]:
        return [link for link in self.all if link.touches(node)]

    def between(self, some: Collection[str], others: Collection[str]) -> list[Link]:
        """Return the links between replicas of the two sides, in both directions."""
        return [
            link
            for link in self.replication()
            if (link.source in some and link.target in others)
            or (link.source in others and link.target in some)
        ]

    def replication(self) -> list[Link]:
        return [link for link in self.all if link.kind not in (CLIENT, NAMES)]

    def to_clients(self, nodes: Collection[str]) -> list[Link]:
        return [link for link in self.all if link.kind == CLIENT and link.target in nodes]

    async def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._streams is not None, "use as `async with`"
        reader, writer = self._streams
        async with self._lock:
            self._request_id += 1
            writer.write(orjson.dumps({**request, "id": self._request_id}) + b"\n")
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    await writer.drain()
                    answer = await _answer(reader, self._request_id)
            except (OSError, TimeoutError) as error:
                raise ClusterError(f"the proxy does not answer: {error!r}") from error
        if not answer["ok"]:
            raise ClusterError(f"the proxy refuses: {answer['error']}")
        return answer


async def _answer(reader: asyncio.StreamReader, number: int) -> dict[str, Any]:
    """Return this request's response, skipping responses to requests that timed out."""
    while line := await reader.readline():
        answer: dict[str, Any] = orjson.loads(line)
        if answer["id"] == number:
            return answer
    raise ClusterError("the proxy closed the control connection")
