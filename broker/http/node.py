"""HTTP operations on this node (view, health, transfer, members, planned stop)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from raftmq import __version__
from raftmq.dledger.raft.configuration import Change, ChangeKind
from raftmq.store.errors import StoreError
from raftmq.web.operation import Call, Operation, Reply, Role
from raftmq.web.problem import conflict, invalid, not_found, unavailable
from raftmq.web.resources.node import (
    DifferenceView,
    DiskView,
    LiveView,
    LogView,
    MemberBody,
    MemberPath,
    MemberProgressView,
    MemberView,
    NodeView,
    PeerView,
    RatesView,
    ReadyView,
    StopBody,
    StopView,
    TransferBody,
    TransferView,
)
from raftmq.web.schema import Listing

from ..admin.parts import Parts
from ..admin.runtime_info import runtime_info
from ..health import warnings_of, why_not
from ..leader_fitness import disk_state
from ..replication.members import Members, change_of

STARTING = "STARTING"

log = logging.getLogger("raftmq.broker.http")


class NodeOperations:
    def __init__(self, parts: Parts, members: Members, leader_http: Callable[[], str]) -> None:
        self._parts = parts
        self._members = members
        self._leader_http = leader_http

    def operations(self) -> list[Operation]:
        return [
            Operation("GET", "/health/live", "getLive", "The process answers.", self.live,
                      role=None, answer=LiveView),
            Operation("GET", "/health/ready", "getReady",
                      "It serves: leads and is ready, or follows; 503 says why not.", self.ready,
                      role=None, answer=ReadyView, problems=(503,)),
            Operation("GET", "/api/v1/node", "getNode", "This replica's own view.", self.node,
                      answer=NodeView),
            Operation("GET", "/api/v1/members", "listMembers",
                      "Who belongs to the Raft group; nobody in classic mode.", self.members,
                      answer=Listing[MemberProgressView]),
            Operation("POST", "/api/v1/members", "addMember",
                      "Add a learner: it gets the log, and does not count yet.", self.add_member,
                      role=Role.ADMIN, body=MemberBody, answer=MemberProgressView, status=201,
                      problems=(409, 503, 504)),
            Operation("POST", "/api/v1/members/{id}/promote", "promoteMember",
                      "Make a learner that has caught up a voter.", self.promote_member,
                      role=Role.ADMIN, parameters=MemberPath, answer=MemberProgressView,
                      problems=(404, 409, 503, 504)),
            Operation("DELETE", "/api/v1/members/{id}", "removeMember",
                      "Take a member out of the group, dead or alive.", self.remove_member,
                      role=Role.ADMIN, parameters=MemberPath, status=204,
                      problems=(404, 409, 503, 504)),
            Operation("POST", "/api/v1/node/transfer", "transferLeadership",
                      "Begin to hand leadership over: to target, or to the best follower.",
                      self.transfer, role=Role.OPERATOR, body=TransferBody, answer=TransferView,
                      status=202, problems=(409, 503)),
            Operation("POST", "/api/v1/node/stop", "stopNode",
                      "Planned stop: leadership is handed over, then the process ends.",
                      self.stop, role=Role.ADMIN, body=StopBody, answer=StopView, status=202,
                      problems=(409,)),
        ]  # fmt: skip

    async def live(self, _: Call) -> LiveView:
        return LiveView()

    async def ready(self, _: Call) -> ReadyView:
        parts = self._parts
        if not parts.context.life.serving or parts.context.life.stopping:
            raise unavailable("the broker is starting or stopping", STARTING)
        info = runtime_info(parts)
        reason = why_not(info)
        if reason:
            raise unavailable(reason, "NOT_READY")
        return ReadyView(role=role_of(parts), warnings=tuple(warnings_of(info)))

    async def node(self, _: Call) -> NodeView:
        return node_view(self._parts, self._members, self._leader_http())

    async def members(self, _: Call) -> Listing[MemberProgressView]:
        return Listing(items=_progress(self._members))

    async def add_member(self, call: Call) -> Reply:
        body: MemberBody = call.body
        change = change_of(ChangeKind.ADD_LEARNER, body.id, body.address)
        await self._change(call, change, force=body.force)
        return Reply(self._progress_of(body.id), status=201)

    async def promote_member(self, call: Call) -> MemberProgressView:
        await self._change(call, change_of(ChangeKind.PROMOTE, self._known(call)))
        return self._progress_of(call.parameters.id)

    async def remove_member(self, call: Call) -> None:
        await self._change(call, change_of(ChangeKind.REMOVE, self._known(call)))

    def _known(self, call: Call) -> str:
        """Return the member's id. Raises ApiProblem (404) on a leader without such a member. A
        follower continues, and its error names the leader."""
        node_id: str = call.parameters.id
        rows = _progress(self._members)
        if self._parts.context.roles.leading and rows and node_id not in {row.id for row in rows}:
            raise not_found(f"{node_id} is no member of this group")
        return node_id

    async def _change(self, call: Call, change: Change, *, force: bool = False) -> None:
        await self._members.make(change, force=force)
        caller, op = call.caller.name, change.kind.value
        log.info("members_changed_by caller=%s op=%s member=%s", caller, op, change.node_id)

    def _progress_of(self, node_id: str) -> MemberProgressView:
        for row in _progress(self._members):
            if row.id == node_id:
                return row
        raise conflict(f"{node_id} was a member for a moment, and was removed again")

    async def transfer(self, call: Call) -> Reply:
        context = self._parts.context
        target = context.log.hand_over(call.body.target or "", force=call.body.force)
        context.events.publish("transfer", {"to": target, "by": call.caller.name})
        return Reply(TransferView(target=target), status=202)

    async def stop(self, call: Call) -> Reply:
        if not call.body.hand_over:
            raise invalid([("handOver", "leadership is handed over in any case")])
        self._parts.context.life.stop_requested.set()
        return Reply(StopView(), status=202)


def role_of(parts: Parts) -> str:
    """Return leader, follower, candidate, …, or master or slave in classic mode."""
    if parts.context.config.is_classic:
        return "slave" if parts.context.config.is_slave else "master"
    return str(parts.context.log.status().get("role"))


def node_view(parts: Parts, members: Members, leader_http: str) -> NodeView:
    """Return this replica's view; an unreadable figure of the disk is -1."""
    config, roles = parts.context.config, parts.context.roles
    status = parts.context.log.status()
    log = parts.context.store.commitlog
    classic = config.is_classic
    membership = parts.context.log.membership
    return NodeView(
        name=config.node_name,
        group=config.group_name,
        cluster=config.broker_cluster_name,
        zone=config.broker_zone,
        broker_id=parts.context.log.identity.broker_id,
        mode="classic" if classic else "raft",
        engine="classic" if classic else "dledger",
        version=__version__,
        address=parts.context.address,
        http_address=parts.context.http_address,
        boot_time_ms=parts.context.life.boot_ms,
        pid=os.getpid(),
        role=role_of(parts),
        membership=None if membership is None else membership.role,
        term=roles.term,
        leader=roles.leader,
        leader_address=roles.leader_address,
        leader_http_address=leader_http,
        leader_ready=roles.leading,
        preferred_leader=members.preferred.name,
        draining_ms=parts.context.state.group.draining_ms,
        group_id=_text(status.get("group_id")),
        foreign=_texts(status.get("foreign")),
        peers_prove_themselves=parts.gates.proof_required,
        voted_for=_text(status.get("voted_for")),
        election_backoff=_number(status.get("election_backoff")),
        election_halved=bool(status.get("election_halved")),
        recovered=bool(status.get("recovered", True)),
        recovering=_text(status.get("recovering")),
        commit_index=_number(status.get("commit_index")),
        applied_index=_number(status.get("applied_index")),
        last_index=_number(status.get("last_index")),
        durable_index=_number(status.get("durable_index")),
        first_index=_number(status.get("first_index")),
        commit_log=LogView(
            min_offset=log.min_offset,
            max_offset=log.max_offset,
            durable_offset=log.durable_offset,
        ),
        disk=_disk(parts, status),
        clock_contradiction=parts.retention.contradiction,
        log_start=_log_start(parts),
        peers=_peers(parts, status),
        rates=RatesView(
            sends_per_s=_rate(parts.throughput.put_text()),
            pulls_per_s=_rate(parts.throughput.get_text()),
        ),
        members=_members(members),
    )


def _disk(parts: Parts, status: dict[str, object]) -> DiskView:
    state, reason = disk_state(status, parts.sends.disk_full)
    total, free, ratio = -1, -1, -1.0
    try:
        usage = parts.context.disk.usage()
        total, free, ratio = usage.size_bytes, usage.available_bytes, round(usage.used_ratio, 4)
    except (OSError, StoreError) as error:
        reason = reason or str(error)
    return DiskView(
        state=state,
        reason=reason,
        total_bytes=total,
        free_bytes=free,
        used_ratio=ratio,
        full_in_ms=parts.reliever.forecast.full_in_ms,
    )


def _peers(parts: Parts, status: dict[str, object]) -> list[PeerView]:
    if parts.context.config.is_classic:
        return _slaves(parts)
    last = _number(status.get("last_index"))
    peers: Any = status.get("peers") or {}
    return [
        PeerView(
            id=peer,
            address=parts.context.state.addresses.get(peer, ""),
            voter=bool(seen.get("voter", True)),
            connected=bool(seen.get("connected")),
            match_index=_number(seen.get("match")),
            lag_frames=_behind(last, _number(seen.get("match"))),
            lag_bytes=_number(seen.get("behind_bytes")),
            frames_in_flight=int(seen.get("inflight") or 0),
            bytes_in_flight=int(seen.get("inflight_bytes") or 0),
            last_contact_ms=_milliseconds(seen.get("contact_ms")),
            state=_text(seen.get("state")),
            error=_text(seen.get("error")),
            clock_ahead_ms=_number(seen.get("ahead_ms")),
            min_offset=_number(seen.get("first_position")),
            settings_differ=[
                DifferenceView(key=key, there=there, here=here)
                for key, (there, here) in sorted(seen.get("settings_differ", {}).items())
            ],
        )
        for peer, seen in sorted(peers.items())
    ]


def _log_start(parts: Parts) -> str:
    if not parts.context.config.is_slave:
        return ""
    return parts.context.log.classic.follower.comparison.log_start


def _slaves(parts: Parts) -> list[PeerView]:
    engine = parts.context.log.classic
    if engine.is_slave:
        return []
    return [
        PeerView(
            id=str(link["addr"]),
            address=str(link["addr"]),
            voter=False,
            connected=True,
            match_index=None,
            lag_frames=None,
            lag_bytes=_number(link["diff"]),
            frames_in_flight=0,
            bytes_in_flight=0,
            last_contact_ms=None,
            state="inSync" if link["inSync"] else "behind",
            error=None,
            clock_ahead_ms=None,
            min_offset=None,
            settings_differ=[],
        )
        for link in engine.master.status()
    ]


def _members(members: Members) -> list[MemberView]:
    return [
        MemberView(id=one.id, address=one.address, role=one.role, broker_id=one.broker_id)
        for one in _progress(members)
    ]


def _progress(members: Members) -> list[MemberProgressView]:
    return [
        MemberProgressView(
            id=row["node_id"],
            address=row["address"],
            role=row["role"],
            broker_id=row["broker_id"],
            match_index=row["match"],
            lag_frames=row["lag"],
            recovered=row["recovered"],
        )
        for row in members.rows()
    ]


def _behind(last: int | None, match: int | None) -> int | None:
    return None if last is None or match is None else max(0, last - match)


def _rate(text: str) -> float:
    return float(text.split()[0])


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _milliseconds(value: object) -> int | None:
    return round(value) if isinstance(value, int | float) else None


def _texts(value: object) -> list[str]:
    return list(map(str, value)) if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return None if value in (None, "") else str(value)
