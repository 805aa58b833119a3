"""A running replica as a backup's source (broker.backup.service)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from raftmq.dledger.raft.snapshot_install import (
    GroupSnapshot,
    GroupSnapshotDamaged,
    decode_group_snapshot,
)
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fast_json import loads_object

from .manifest import BackupError
from .protocol import (
    BEHIND,
    CHUNK_BYTES,
    GONE,
    OVERTAKEN,
    READ_BYTES_MAX,
    Facts,
    UnitRun,
    decode_facts,
    encode_runs,
)

TIMEOUT_MS = 20_000
LEADER_WAIT_S = 30.0  # for a proven leader, and for a replica to catch up with it
RETRY_S = 0.2
BUSY_WAIT_S, BUSY_RETRY_S = 600.0, 0.5  # for other readers of the session, and its rate


class Overtaken(Exception):
    """The replica cannot continue this backup; a new attempt may succeed."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The log in [snapshot.position, end), and the group snapshot's state. The state is as of the
    log's last frame, or of an earlier frame for a stopped replica. `confirmed` means that a leader
    confirmed that no acknowledged message is missing."""

    snapshot: GroupSnapshot
    facts: Facts
    end: int
    confirmed: bool


class Source(Protocol):
    """The replica to read from."""

    async def start(self, at_least: int) -> Offer:
        """Start a copy as of frame `at_least` or later. Raises BackupError, Overtaken."""
        ...

    async def read(self, position: int, size: int) -> bytes:
        """Return between one and `size` bytes at `position`. Raises BackupError, Overtaken."""
        ...

    async def met_damage(self, position: int) -> None:
        """Report damage, which the replica may repair. Raises BackupError, Overtaken."""
        ...

    async def end(self) -> None: ...


class RemoteSource:
    """A replica at `address`."""

    def __init__(
        self,
        client: RemotingClient,
        address: str,
        *,
        bytes_per_s: int = 0,
        confirm: bool = True,
        wait_s: float = LEADER_WAIT_S,
        shared: str = "",
    ) -> None:
        """`bytes_per_s` is unlimited if 0. Without `confirm` no leader is asked. Sources with the
        same name in `shared` share a session."""
        self.address = address
        self._client = client
        self._confirm = confirm
        self._wait_s = wait_s
        # Small enough to keep the rate also within a second.
        self._read_bytes = min(READ_BYTES_MAX, max(4096, bytes_per_s // 4 or READ_BYTES_MAX))
        self._settings = {"bytesPerS": str(bytes_per_s)} | ({"session": shared} if shared else {})
        self._session = shared

    async def start(self, at_least: int) -> Offer:
        await self.end()
        deadline_s = time.monotonic() + self._wait_s
        if self._confirm:
            at_least = max(at_least, await self._mark(deadline_s))
        answer = await self._start_session(deadline_s, at_least)
        ext = answer.ext or {}
        try:
            facts = decode_facts(answer.body)
            self._session, size, end = ext["session"], int(ext["size"]), int(ext["end"])
            snapshot = decode_group_snapshot(await self._parcel(size))
        except (KeyError, ValueError, msgspec.MsgspecError, GroupSnapshotDamaged) as error:
            raise BackupError(f"{self.address} answered nonsense: {error!r}") from error
        return Offer(snapshot, facts, end, self._confirm)

    async def renew(self, at_least: int) -> None:
        """Begin the shared session again if the replica has forgotten it. Raises BackupError."""
        await self._start_session(time.monotonic() + self._wait_s, at_least)

    async def read(self, position: int, size: int) -> bytes:
        size = min(size, self._read_bytes)
        answer = await self._ask("read", position=str(position), size=str(size))
        if not answer.body:
            raise BackupError(f"{self.address} answered a read at {position} with nothing")
        return bytes(answer.body)

    async def frames(self, position: int, end: int) -> tuple[int, int]:
        """Return the bounds of the frames that start in [position, end) of a segment; twice the
        same position without frames. Raises BackupError, Overtaken."""
        answer = await self._ask("frames", position=str(position), end=str(end))
        try:
            return int((answer.ext or {})["start"]), int((answer.ext or {})["end"])
        except (KeyError, ValueError) as error:
            raise BackupError(f"{self.address} answered nonsense: {error!r}") from error

    async def digest(self, position: int, end: int) -> bytes:
        """Return the SHA-256 of [position, end) of the log. Raises BackupError, Overtaken."""
        return bytes((await self._ask("digest", position=str(position), end=str(end))).body)

    async def units(self, runs: Sequence[UnitRun], *, content: bool) -> bytes:
        """Return these ConsumeQueue entries, with zeros for absent entries, or their SHA-256.
        Raises BackupError, Overtaken."""
        answer = await self._ask("units", encode_runs(runs), content=str(content).lower())
        return bytes(answer.body)

    async def met_damage(self, position: int) -> None:
        await self._ask("damaged", position=str(position))

    async def end(self) -> None:
        """Release this backup at the replica, which would also do so by itself."""
        if self._session:
            session, self._session = self._session, ""
            try:
                await self._invoke(self.address, {"op": "end", "session": session})
            except RemotingError:
                pass  # a silent backup expires there

    async def _mark(self, deadline_s: float) -> int:
        """Return a frame index that covers everything acknowledged before the call."""
        answer = await self._until(deadline_s, self.address, "mark")
        return int(loads_object(answer.body)["index"])

    async def _start_session(self, deadline_s: float, at_least: int) -> RemotingCommand:
        settings = {"atLeast": str(at_least), **self._settings}
        return await self._until(deadline_s, self.address, "begin", **settings)

    async def _until(self, deadline_s: float, address: str, op: str, **ext: str) -> RemotingCommand:
        """Repeat the request until it succeeds; a follower names the leader. Raises BackupError."""
        while True:
            try:
                answer = await self._invoke(address, {"op": op, **ext})
                if answer.code == ResponseCode.SUCCESS:
                    return answer
                complaint = str(answer.remark)
                if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise BackupError(f"{address}: {complaint}")
                leader = (answer.ext or {}).get("leaderAddr")
                address = leader if op == "mark" and leader else self.address
            except RemotingError as error:
                complaint, address = str(error), self.address
            if time.monotonic() >= deadline_s:
                hint = ""
                if op == "mark":
                    hint = "; without a leader, --unconfirmed takes what this replica knows of"
                elif BEHIND in complaint:
                    hint = "; does the directory hold a backup of another log?"
                raise BackupError(f"{self.address}: {op}: {complaint}{hint}")
            await asyncio.sleep(RETRY_S)

    async def _ask(self, op: str, body: bytes = b"", **ext: str) -> RemotingCommand:
        """Send a request of this session, again while the replica is busy. Raises Overtaken,
        BackupError."""
        deadline_s = time.monotonic() + BUSY_WAIT_S
        while True:
            request = {"op": op, "session": self._session, **ext}
            try:
                answer = await self._invoke(self.address, request, body)
            except RemotingError as error:
                if not error.retriable:
                    raise BackupError(f"{self.address}: {error}") from error
                raise Overtaken(f"{self.address}: {error}") from error
            if answer.code == ResponseCode.SUCCESS:
                return answer
            if answer.code != ResponseCode.SYSTEM_BUSY or time.monotonic() >= deadline_s:
                break
            await asyncio.sleep(BUSY_RETRY_S)
        remark = f"{self.address}: {answer.remark}"
        if any(mark in remark for mark in (OVERTAKEN, GONE)):
            raise Overtaken(remark)
        raise BackupError(remark)

    async def _invoke(
        self, address: str, ext: dict[str, str], body: bytes = b""
    ) -> RemotingCommand:
        command = RemotingCommand.request(RequestCode.BACKUP, ext, body)
        return await self._client.invoke(address, command, TIMEOUT_MS)

    async def _parcel(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            answer = await self._ask("state", offset=str(len(data)))
            if not 0 < len(answer.body) <= CHUNK_BYTES:
                raise BackupError(f"{self.address} answered with {len(answer.body)} bytes of state")
            data += answer.body
        return bytes(data)


async def choose(client: RemotingClient, addresses: Sequence[str]) -> str:
    """Return the replica to read from. The choice is a recovered follower with disk and clock in
    order, preferably with the most applied frames; otherwise the leader, or any replica that
    answers. Raises BackupError."""
    candidates: list[tuple[tuple[bool, bool, int], str]] = []
    complaints: list[str] = []
    for address in addresses:
        try:
            info = await _runtime_info(client, address)
        except RemotingError as error:
            complaints.append(f"{address}: {error}")
            continue
        if "raftRole" not in info:
            complaints.append(f"{address}: is no replica of a Raft group")
            continue
        follows = info["raftRole"] == "follower" and bool(info.get("raftLeader"))
        is_well = info.get("raftDiskState") == "ok" and info.get("raftClockWrong") != "true"
        sound = _has_recovered(info) and is_well
        applied = int(info.get("raftAppliedIndex") or 0)
        candidates.append(((follows and sound, sound, applied), address))
    if not candidates:
        raise BackupError("; ".join(complaints) or "no broker is named")
    return max(candidates)[1]


async def _runtime_info(client: RemotingClient, address: str) -> dict[str, Any]:
    command = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
    answer = await client.invoke(address, command, TIMEOUT_MS)
    if answer.code != ResponseCode.SUCCESS:
        raise RemotingError(f"answers {answer.code}: {answer.remark}")
    return loads_object(answer.body).get("table") or {}


async def replicas_of(
    client: RemotingClient, name_servers: Sequence[str], broker_name: str
) -> list[str]:
    """Return a broker group's addresses from a name server. Raises BackupError."""
    complaints: list[str] = []
    for name_server in name_servers:
        try:
            command = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
            answer = await client.invoke(name_server, command, TIMEOUT_MS)
        except RemotingError as error:
            complaints.append(f"{name_server}: {error}")
            continue
        table = loads_object(answer.body).get("brokerAddrTable") or {}
        broker = table.get(broker_name)
        if broker is not None:
            return [str(address) for address in broker["brokerAddrs"].values()]
        known = ", ".join(sorted(table)) or "none"
        complaints.append(f"{name_server}: knows no broker {broker_name!r}; it knows {known}")
    raise BackupError("; ".join(complaints) or "no name server is named")


def _has_recovered(info: Mapping[str, str]) -> bool:
    return info.get("raftRecovered") == "true"
