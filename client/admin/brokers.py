"""Administration of a broker, its configuration, figures, upkeep and Raft members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raftmq.remoting import fields
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.fast_json import loads_object

from ..instance import successful
from .bodies import (
    BrokerStats,
    ConsumeStats,
    broker_consume_stats,
    broker_stats,
    properties,
)
from .requests import Requests

MEMBERS_TIMEOUT_MS = 15_000  # longer than a broker waits for the commit
UPKEEP_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class DeletedLog:
    """The bytes of CommitLog that a broker deleted, and expired bytes that it kept, with the
    broker's reason."""

    deleted: int
    kept: int
    kept_for: str


class BrokerAdmin:
    """Requests to a broker process by its address."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def runtime_info(self, address: str) -> dict[str, str]:
        """Return a replica's runtime info (28) by name, all text."""
        body = await self._requests.json(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return {str(key): str(value) for key, value in (body.get("table") or {}).items()}

    async def config(self, address: str) -> dict[str, str]:
        """Return the broker's configuration by key (26)."""
        response = await self._requests.ask(address, RequestCode.GET_BROKER_CONFIG)
        return properties(response.body.decode())

    async def update_config(self, address: str, key: str, value: str) -> None:
        """Set a configuration key (25)."""
        body = f"{key}={value}\n".encode()
        await self._requests.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def stats(self, address: str, name: str, key: str) -> BrokerStats | None:
        """Return a statistic of the broker (315); None if it does not exist."""
        ext = {"statsName": name, "statsKey": key}
        response = await self._requests.invoke(address, RequestCode.VIEW_BROKER_STATS_DATA, ext)
        # brokers answer thus for a missing statistic
        if response.code == ResponseCode.SYSTEM_ERROR:
            return None
        return broker_stats(loads_object(successful(response, address).body))

    async def consume_stats(
        self, address: str, *, ordered: bool = False, timeout_ms: int = 50_000
    ) -> dict[str, list[ConsumeStats]]:
        """Return the progress of the broker's groups (317), by group."""
        ext = {"isOrder": fields.from_boolean(ordered)}
        code = RequestCode.GET_BROKER_CONSUME_STATS
        return broker_consume_stats(await self._requests.json(address, code, ext, timeout_ms))

    async def producer_connection(self, address: str, group: str) -> dict[str, Any]:
        """Return Apache's ProducerConnection bean (204)."""
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        return await self._requests.json(address, code, {"producerGroup": group})

    async def clean_expired_queues(self, address: str) -> None:
        """Let the queues drop entries that the log has deleted (306)."""
        code = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE
        await self._requests.ask(address, code, timeout_ms=UPKEEP_TIMEOUT_MS)

    async def delete_expired_log(
        self, address: str, trust_clock: bool = False
    ) -> DeletedLog | None:
        """Let the broker run its retention of `deleteWhen` now (329). `trust_clock` confirms its
        wall clock although its log contradicts it. Returns the result; None from Apache's broker.
        """
        code = RequestCode.DELETE_EXPIRED_COMMITLOG
        ext = {"trustClock": "true"} if trust_clock else {}
        answer = await self._requests.ask(address, code, ext, timeout_ms=UPKEEP_TIMEOUT_MS)
        ext = answer.ext or {}
        if "deletedBytes" not in ext:
            return None
        kept = int(ext.get("keptBytes", "0"))
        return DeletedLog(int(ext["deletedBytes"]), kept, ext.get("keptFor", ""))

    async def transfer_leadership(self, address: str, target: str = "", force: bool = False) -> str:
        """Start a leadership transfer (30001, ours) to `target`; if "", to the most up-to-date
        voter that could lead at once. `force` permits a target that would return the leadership.
        Returns the target."""
        ext = {"target": target} if target else {}
        if force:
            ext["force"] = "true"
        response = await self._requests.ask(address, RequestCode.TRANSFER_LEADERSHIP, ext)
        return (response.ext or {}).get("target", "")

    async def drain(
        self, address: str, op: str, options: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Start or cancel draining of a broker group, remove it, or none of these (`op` status);
        return the remaining content (30010, ours). The `options` of start are moveTimers,
        moveDeadLetters, to and givenUp; remove has lose."""
        ext = {"op": op, **(options or {})}
        return await self._requests.json(address, RequestCode.DRAIN_GROUP, ext, UPKEEP_TIMEOUT_MS)

    async def members(self, address: str) -> list[dict[str, Any]]:
        """Return the members of the broker's Raft group (30002, ours) with node_id, address, role
        (voter, learner), broker_id and preferred; a leader adds match, lag and recovered."""
        body = await self._requests.json(address, RequestCode.CHANGE_MEMBERS, {"op": "list"})
        return list(body.get("members") or ())

    async def change_members(
        self, address: str, op: str, member_id: str, member_address: str = "", force: bool = False
    ) -> list[dict[str, Any]]:
        """Change the Raft group's members (30002) by the leader at `address`. `op` is add-learner,
        promote, remove, move, or prefer (as leader; "" for none). add-learner and move need
        `member_address`, host:port of its Raft listener, which the leader must reach unless
        `force`. Returns the members after the commit."""
        ext = {"op": op, "memberId": member_id}
        if member_address:
            ext["memberAddress"] = member_address
        if force:
            ext["force"] = "true"
        code = RequestCode.CHANGE_MEMBERS
        body = await self._requests.json(address, code, ext, MEMBERS_TIMEOUT_MS)
        return list(body.get("members") or ())
