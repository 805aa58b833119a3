"""GET_BROKER_RUNTIME_INFO (28): figures for tools and the dashboard, all as strings.

The leader must stay visible even with a bad disk. An unreadable figure is -1, and `diskState`,
otherwise "ok", names it with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from raftmq.dledger.node.peer_info import CLOCKS_APART_MS
from raftmq.remoting.codes import MQ_VERSION
from raftmq.store.errors import StoreError
from raftmq.store.frame import FrameError

from ..consume.long_polling import HELD_PULLS_MAX
from ..replication.engine import FRAMES_IN_FLIGHT_MAX
from .parts import Parts

RAFT_STATUS_KEYS = {
    "node_id": "raftSelfId",
    "role": "raftRole",
    "term": "raftTerm",
    "leader": "raftLeader",
    "leader_ready": "raftLeaderReady",
    "commit_index": "raftCommitIndex",
    "applied_index": "raftAppliedIndex",
    "first_index": "raftFirstIndex",
    "last_index": "raftLastIndex",
    "durable_index": "raftDurableIndex",
    "voted_for": "raftVotedFor",
    "group_id": "raftGroupId",
    "recovered": "raftRecovered",
    "recovering": "raftRecovering",
    "disk_state": "raftDiskState",
    "disk_reason": "raftDiskReason",
    "behind_bytes": "raftBehindBytes",
    "takes_no_frames": "raftTakesNoFrames",
    "standstill": "raftStandstill",
}


def runtime_info(parts: Parts) -> dict[str, str]:
    """Return the applicable keys of Apache's, and this replica's view of Raft."""
    config, store = parts.context.config, parts.context.store
    log = store.commitlog
    info = {
        "brokerVersionDesc": "V4_9_8",
        "brokerVersion": str(MQ_VERSION),
        "brokerActive": "true",
        "brokerRole": _role(parts),
        "flushDiskType": config.flush_disk_type,
        "bootTimestamp": str(parts.context.life.boot_ms),
        "runtime": _duration(parts.context.wall_ms() - parts.context.life.boot_ms),
        "msgPutTotalTodayNow": str(parts.sends.put_count),
        "msgGetTotalTodayNow": str(parts.pulls.get_count),
        "msgPutTotalTodayMorning": str(parts.throughput.put.at_midnight),
        "msgPutTotalYesterdayMorning": str(parts.throughput.put.at_midnight_before),
        "msgGetTotalTodayMorning": str(parts.throughput.get.at_midnight),
        "msgGetTotalYesterdayMorning": str(parts.throughput.get.at_midnight_before),
        "putTps": parts.throughput.put_text(),
        "getTransferedTps": parts.throughput.get_text(),
        "getTransferredTps": parts.throughput.get_text(),  # since 5.0
        "commitLogMinOffset": str(log.min_offset),
        "commitLogMaxOffset": str(log.max_offset),
        **_from_disk(parts),
        **parts.retention.info(),
        "diskForecast": parts.reliever.forecast.warning,
        **_delayed(parts),
        **_timers(parts),
        "remainHowManyDataToFlush": f"{log.max_offset - log.durable_offset} B",
        "dispatchBehindBytes": str(max(0, log.max_offset - store.derived.dispatched_offset)),
        "pageCacheLockTimeMills": "0",
        "sendThreadPoolQueueSize": str(parts.sends.pending_count),
        "sendThreadPoolQueueCapacity": str(FRAMES_IN_FLIGHT_MAX),
        "sendThreadPoolQueueHeadWaitTimeMills": "0",
        "sendWaitingBytes": str(parts.sends.held_bytes),
        "sendWaitingBytesMax": str(config.waiting_bytes_max),
        "pullThreadPoolQueueSize": str(parts.pulls.holds.count),
        "pullThreadPoolQueueCapacity": str(HELD_PULLS_MAX),
        "pullThreadPoolQueueHeadWaitTimeMills": "0",
        "clientCount": str(parts.clients.count),
        "httpAddress": parts.context.http_address,
        "brokerZone": config.broker_zone,
        "aclEnable": str(parts.access.enabled).lower(),
        "aclRefused": str(parts.access.refused_count),
        "aclDropped": str(parts.access.dropped_count),
        "tlsFilesRefused": parts.context.tls.error,
        "tlsCertificatesExpire": parts.context.tls.expiring,
        "registrationRefused": parts.registrar.refused,
        "inNoRoute": parts.registrar.unlisted,
    }
    return info | (_classic(parts) if config.is_classic else _raft(parts))


def _raft(parts: Parts) -> dict[str, str]:
    log = parts.context.log
    status = log.status()
    info = {key: _text(status.get(name)) for name, key in RAFT_STATUS_KEYS.items()}
    info["raftMembership"] = log.membership.role if log.membership is not None else ""
    foreign = status.get("foreign")
    info["raftForeign"] = "; ".join(foreign) if isinstance(foreign, list) else ""
    peers = status.get("peers")
    info["raftUnreachable"] = _unreachable(peers) if isinstance(peers, dict) else ""
    info["raftDiffers"] = _differences(peers) if isinstance(peers, dict) else ""
    info["raftClockWrong"] = _text(log.raft.clock_is_wrong)
    info["raftInstalling"] = _installing(status.get("installing"))
    return info


def _unreachable(peers: Mapping[str, Mapping[str, object]]) -> str:
    """Return the peers without a connection, each with the last reason."""
    reasons = {peer: view["error"] for peer, view in peers.items() if not view["connected"]}
    return "; ".join(f"{peer}: {error}" for peer, error in sorted(reasons.items()) if error)


def _differences(peers: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the differing clocks and settings of peers (dledger.node.peer_info), as `n1: clock
    +86400 s, maxMessageSize; n2: …`, or "". GET /api/v1/node has the values."""
    texts = []
    for peer, view in sorted(peers.items()):
        ahead_ms = view.get("ahead_ms") or 0
        clock = [f"clock {ahead_ms // 1000:+d} s"] if abs(ahead_ms) > CLOCKS_APART_MS else []
        different = clock + sorted(view.get("settings_differ", ()))
        if different:
            texts.append(f"{peer}: {', '.join(different)}")
    return "; ".join(texts)


def _installing(state: object) -> str:
    """Return a snapshot install's progress (dledger.raft.snapshot_install), or ""."""
    if not isinstance(state, dict):
        return ""
    if state["noted"]:
        return f"noted, from {state['from']}"
    return f"{state['received_bytes']} of {state['size_bytes']} bytes from {state['from']}"


def _from_disk(parts: Parts) -> dict[str, str]:
    bad: list[str] = []

    def read(what: str, figure: Callable[[], str]) -> str:
        try:
            return figure()
        except (OSError, StoreError, FrameError) as error:
            bad.append(f"{what}: {error}")
            return "-1"

    used = read("usage", lambda: f"{parts.context.disk.usage().used_ratio:.4f}")
    earliest = read(
        "earliestMessageTimeStamp", lambda: str(parts.context.store.expiry.log_start_time())
    )
    return {
        "commitLogDiskRatio": used,
        "consumeQueueDiskRatio": used,
        "earliestMessageTimeStamp": earliest,
        "diskState": "; ".join(bad) or "ok",
    }


def _delayed(parts: Parts) -> dict[str, str]:
    """Return `scheduleMessageOffset_LEVEL`: the next offset to deliver, the queue's end."""
    try:
        levels = parts.delays.view()
    except (OSError, StoreError):
        return {}  # `diskState` has the reason
    return {f"scheduleMessageOffset_{v.level}": f"{v.offset},{v.max_offset}" for v in levels}


def _timers(parts: Parts) -> dict[str, str]:
    """Return our own keys: the number of waiting timer messages and the delay of the next."""
    try:
        view = parts.timers.view()
    except (OSError, StoreError):
        return {}
    return {"timerWaiting": str(view.waiting), "timerLateMs": str(view.late_ms)}


def _role(parts: Parts) -> str:
    if parts.context.config.is_classic:
        return parts.context.config.broker_role
    return "SYNC_MASTER" if parts.context.roles.leading else "SLAVE"


def _classic(parts: Parts) -> dict[str, str]:
    """Return the distance between master and slaves, from the view of this side.

    slaveAckOffset is the highest offset that a slave reported, on a slave its own report.
    masterFromOffset is the offset from which this process stored the log; Apache's key means
    nothing. lastMetadataSyncMs is the slave's last copy of topics, groups and offsets by the wall
    clock, or 0."""
    engine = parts.context.log.classic
    end, durable = (
        parts.context.store.commitlog.max_offset,
        parts.context.store.commitlog.durable_offset,
    )
    if not engine.is_slave:
        links = list(engine.master.links)
        behind = max((end - link.acknowledged for link in links), default=0)
        return {
            "haListenAddress": engine.master.address,
            "haSlaveCount": str(len(links)),
            "haSlavesInSync": str(engine.master.in_sync),
            "slaveAckOffset": str(engine.master.acknowledged),
            "masterFlushOffset": str(durable),
            "masterFromOffset": str(engine.own_from),
            "slaveFallBehindBytes": str(behind),
            "sendsWaitingForAck": str(len(engine.acks)),
        }
    follower = engine.follower
    master_end = follower.comparison.master_end
    return {
        "masterAddr": parts.context.roles.leader_address,
        "masterHaAddr": engine.slave.master,
        "haConnected": _text(engine.slave.connected),
        "haRefused": engine.slave.refused,
        "logStart": follower.comparison.log_start,
        "slaveAckOffset": str(engine.reported()),
        "masterFlushOffset": str(master_end),
        "slaveFallBehindBytes": str(max(0, master_end - end)),
        "lastMetadataSyncMs": str(follower.metadata.last_sync_ms),
        "metadataSyncRounds": str(follower.metadata.rounds),
    }


def _text(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _duration(milliseconds: int) -> str:
    seconds = max(0, milliseconds) // 1000
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
