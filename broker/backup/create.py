"""Creation of a backup. It reuses the directory's data, copies the rest, and writes the manifest
last.

A part of a segment with a correct checksum is reused if the replica also has the part's last frame
(manifest.LastFrame explains why that suffices). If the replica does not have the last frame of the
existing backup, the directory belongs to a different log and stays untouched. If retention has
removed that frame, the group ids decide. Bytes from the replica are checked frame by frame.

An attempt ends when the replica stops, restarts or is overtaken by retention; the next attempt
continues. A damaged frame is reported to the replica, and read again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from google_crc32c import extend as crc32c_extend

from raftmq import __version__
from raftmq.store.frame import HEADER_SIZE_BYTES, Frame

from ..errors import StateError
from ..tables.snapshot_install import group_id_in
from .directory import BackupDirectory
from .log_verifier import ChainBroken, FrameChain
from .manifest import (
    BackupDamaged,
    BackupError,
    LastFrame,
    Manifest,
    SegmentCopy,
    StateFile,
    iso,
)
from .online_source import Offer, Overtaken, Source

ATTEMPTS_MAX = 8
PAUSE_S = 1.0  # between attempts
STATES_KEPT = 32  # of earlier backups, as starting points of a restore


@dataclass(frozen=True, slots=True)
class Taken:
    """A finished backup. `copied_bytes` came from the replica; `kept_bytes` were reused."""

    manifest: Manifest
    copied_bytes: int
    kept_bytes: int


async def take(
    source: Source,
    directory: BackupDirectory,
    *,
    say: Callable[[str], None] = lambda _: None,
    states_kept: int = STATES_KEPT,
    pause_s: float = PAUSE_S,
) -> Taken:
    """Create or update the backup in `directory`. Raises BackupError, BackupDamaged, OSError."""
    with directory.locked():
        sound: dict[SegmentCopy, bool] = {}
        for attempt in range(1, ATTEMPTS_MAX + 1):
            copying = _Copying(source, directory, say, states_kept, sound)
            try:
                return await copying.run()
            except Overtaken as lost:
                if attempt == ATTEMPTS_MAX:
                    raise BackupError(f"given up after {attempt} attempts: {lost}") from lost
                say(f"begins again, with what is there: {lost}")
                await asyncio.sleep(pause_s)
            finally:
                await source.end()
    raise AssertionError("unreachable")


class _Copying:
    def __init__(
        self,
        source: Source,
        directory: BackupDirectory,
        say: Callable[[str], None],
        states_kept: int,
        sound: dict[SegmentCopy, bool],
    ) -> None:
        """`sound` records for known parts whether the directory has them intact."""
        self._sound = sound
        self._source = source
        self._directory = directory
        self._say = say
        self._states_kept = states_kept
        self._old: Manifest | None = None
        self._known: list[SegmentCopy] = []
        self._copied_bytes = 0
        self._kept_bytes = 0

    async def run(self) -> Taken:
        self._old = old = self._directory.manifest()
        self._known = [*(old.segments if old else ()), *self._directory.progress()]
        self._check_known()
        offer = await self._source.start(old.commit_index if old else 0)
        await self._check_same_log(offer)
        snapshot = offer.snapshot
        size = snapshot.segment_size_bytes
        before = (snapshot.first_index - 1, snapshot.previous_term)
        parts: list[SegmentCopy] = []
        for start in range(snapshot.position, offer.end, size):
            segment = await self._segment(start, min(start + size, offer.end), before, size)
            parts.append(segment)
            before = (segment.last.index, segment.last.term)
            self._sound[segment] = True
            later = [p for p in self._known if p.start > start and self._sound[p]]
            self._directory.save_progress(parts + later)
        manifest = self._manifest(offer, parts)
        if before != (manifest.commit_index, manifest.term):
            raise BackupError(f"the log ends with frame {before}, not {manifest.commit_index}")
        self._directory.save_manifest(manifest)
        return Taken(manifest, self._copied_bytes, self._kept_bytes)

    def _check_known(self) -> None:
        """Check the known parts before the replica has to keep log for this backup."""
        for segment in self._known:
            if segment not in self._sound:
                self._sound[segment] = self._directory.has(segment)
                if not self._sound[segment]:
                    self._say(f"the segment at {segment.start} is damaged here: it is copied again")

    async def _check_same_log(self, offer: Offer) -> None:
        """Raise BackupError if the existing backup is not of this log, or has more of it."""
        old = self._old
        if old is None:
            return
        size = offer.snapshot.segment_size_bytes
        if old.group != offer.facts.group or old.segment_size_bytes != size:
            raise self._another_log(
                f"a backup of group {old.group} with segments of {old.segment_size_bytes} bytes;"
                f" this is group {offer.facts.group} with {size}"
            )
        if not old.segments:
            return
        last = old.segments[-1].last
        if last.position >= offer.snapshot.position:
            header = b""
            if last.position + HEADER_SIZE_BYTES <= offer.end:
                header = await self._source.read(last.position, HEADER_SIZE_BYTES)
            if not last.is_that_of(header):
                raise self._another_log(
                    f"a backup of another log: its frame {last.index} of term {last.term} is not"
                    " the replica's"
                )
        elif self._is_another_groups(old, offer.snapshot.state):
            raise self._another_log(f"a backup of another group with the name {old.group}")

    def _is_another_groups(self, old: Manifest, state: bytes) -> bool:
        if not old.states:
            return False
        try:
            before = group_id_in(self._directory.state(old.states[-1]))
            now = group_id_in(state)
        except (BackupDamaged, StateError):
            return False  # damaged, so not reusable
        return b"" not in (before, now) and before != now

    def _another_log(self, what: str) -> BackupError:
        return BackupError(
            f"{self._directory.path} holds {what}: give another directory, or remove that one"
        )

    async def _segment(
        self, start: int, limit: int, before: tuple[int, int], segment_size_bytes: int
    ) -> SegmentCopy:
        have = await self._usable(start, limit, before)
        if have is not None:
            self._kept_bytes += have.length_bytes
            if have.end == limit:
                return have
        return await self._copy(start, limit, before, segment_size_bytes, have)

    async def _usable(self, start: int, limit: int, before: tuple[int, int]) -> SegmentCopy | None:
        """Return the reusable part of the segment at `start`."""
        there = [p for p in self._known if p.start == start and p.end <= limit and self._sound[p]]
        for have in sorted(there, key=lambda segment: segment.length_bytes, reverse=True):
            if (have.before_index, have.before_term) == before:
                header = await self._source.read(have.last.position, HEADER_SIZE_BYTES)
                if have.last.is_that_of(header):
                    return have
        return None

    async def _copy(
        self,
        start: int,
        limit: int,
        before: tuple[int, int],
        segment_size_bytes: int,
        have: SegmentCopy | None,
    ) -> SegmentCopy:
        """Copy [start, limit), except for existing bytes."""
        if have is None:
            chain = FrameChain(*before, start, segment_size_bytes)
            position, checksum, messages, last = start, 0, 0, None
        else:
            chain = FrameChain(have.last.index, have.last.term, have.end, segment_size_bytes)
            position, checksum, messages = have.end, have.crc32c, have.messages
            last = have.last
        for segment in self._known:
            if segment.start == start and segment.end > position:
                self._sound[segment] = False  # truncated or overwritten from here on
        file = self._directory.segment(start, position - start)
        try:
            while position < limit:
                data = await self._source.read(position, limit - position)
                frames = await self._checked(chain, data)
                file.append(data)
                checksum = crc32c_extend(checksum, data)
                position += len(data)
                messages += sum(frame.record_count for frame in frames)
                if frames:
                    last = LastFrame.of(frames[-1])
                self._copied_bytes += len(data)
            file.sync()
        finally:
            file.close()
        if last is None or not chain.is_between_frames:
            await self._source.met_damage(chain.position)
            raise Overtaken(f"the replica's segment at {start} is cut short at {chain.position}")
        return SegmentCopy(start, position - start, checksum, *before, last, messages)

    async def _checked(self, chain: FrameChain, data: bytes) -> list[Frame]:
        try:
            return chain.feed(data)
        except ChainBroken as broken:
            await self._source.met_damage(broken.position)
            raise Overtaken(f"the replica's log is damaged: {broken}") from broken

    def _manifest(self, offer: Offer, parts: list[SegmentCopy]) -> Manifest:
        facts, snapshot = offer.facts, offer.snapshot
        states = self._states(offer)
        return Manifest(
            group=facts.group,
            broker=facts.broker,
            cluster=facts.cluster,
            node=facts.node,
            role=facts.role,
            members=facts.members,
            program=f"raftmq {__version__}",
            taken_ms=facts.time_ms,
            taken=iso(facts.time_ms),
            confirmed=offer.confirmed,
            commit_index=facts.index,
            term=facts.term,
            current_term=facts.current_term,
            first_index=snapshot.first_index,
            previous_term=snapshot.previous_term,
            start=snapshot.position,
            end=offer.end,
            segment_size_bytes=snapshot.segment_size_bytes,
            settings=facts.settings,
            messages=sum(segment.messages for segment in parts),
            segments=tuple(parts),
            states=states,
        )

    def _states(self, offer: Offer) -> tuple[StateFile, ...]:
        """Return the new state, and the latest earlier states that the log still covers."""
        snapshot = offer.snapshot
        old = self._old.states if self._old else ()
        new = self._directory.save_state(
            snapshot.applied_index, offer.facts.time_ms, snapshot.state
        )
        oldest = snapshot.first_index - 1
        kept = [state for state in old if oldest <= state.index < new.index]
        return (*kept[-(self._states_kept - 1) :], new) if self._states_kept > 1 else (new,)
