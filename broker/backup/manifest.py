"""The manifest of a backup. Pure.

manifest.json is one JSON object; `checksum` is the CRC-32C of the rest, as JSON with sorted keys.
It names the group, a commit index X with the term and end of its frame, the parts of the segments
with the frames up to X, and the states (tables and queue starts) as of X or earlier. Only the part
of a segment's file counts, so a later backup appends to the same files while the earlier manifest
stays valid.

progress.json lists the finished parts of a backup in progress, without a guarantee.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import orjson
from google_crc32c import value as crc32c

from raftmq.dledger.raft.messages import TERM_MAX
from raftmq.store.frame import HEADER_SIZE_BYTES, Frame, FrameError, parse_header

FORMAT = "raftmq-backup"
VERSION = 1
CHECKSUM_KEY = "checksum"


class BackupError(Exception):
    """A backup cannot be created, read or restored; `damaged` if its content is why."""

    damaged = False


class BackupDamaged(BackupError):
    """A file in the directory differs from the backup; the text names it."""

    damaged = True


class LastFrame(msgspec.Struct, frozen=True, rename="camel"):
    """A frame's identity, which distinguishes the frames of different logs.

    By log matching (Raft 5.3) two replicas of a group with a common frame also have everything
    before it in common. In the log of a different or recreated group, the frame of that index and
    term differs, because its header has the leader's clock and the payload's checksum, and
    `header_crc` covers them."""

    index: int
    term: int
    position: int
    header_crc: int

    @classmethod
    def of(cls, frame: Frame) -> LastFrame:
        return cls(frame.index, frame.term, frame.position, parse_header(frame.data)[-1])

    def is_that_of(self, header: bytes) -> bool:
        """Return whether `header`, read at `position` of some log, is this frame's."""
        try:
            fields = parse_header(header[:HEADER_SIZE_BYTES])
        except FrameError:
            return False
        there = (fields[2], fields[3], fields[4], fields[-1])
        return there == (self.index, self.term, self.position, self.header_crc)


class SegmentCopy(msgspec.Struct, frozen=True, rename="camel"):
    """The first `length_bytes` of the segment at `start`, up to frame `last` and, for a complete
    segment, its blank record. `before_…` are of the frame before its first."""

    start: int
    length_bytes: int
    crc32c: int
    before_index: int
    before_term: int
    last: LastFrame
    messages: int

    @property
    def end(self) -> int:
        return self.start + self.length_bytes


class StateFile(msgspec.Struct, frozen=True, rename="camel"):
    """A file below states/ with the tables as of frame `index`.

    Its name contains the checksum, since two states of a frame can differ when retention moves the
    queue starts. So a backup in progress never replaces a file that the manifest names."""

    index: int
    size_bytes: int
    crc32c: int
    time_ms: int

    @property
    def name(self) -> str:
        return f"{self.index:020d}-{self.crc32c:08x}.json"


class Manifest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The manifest's content. Positions are CommitLog bytes; times are ms since 1970."""

    format: str = FORMAT
    version: int = VERSION
    group: str
    broker: str
    cluster: str
    node: str
    role: str
    members: tuple[str, ...]
    program: str
    taken_ms: int
    taken: str
    confirmed: bool
    commit_index: int
    term: int
    current_term: int
    first_index: int
    previous_term: int
    start: int = msgspec.field(name="begin")
    end: int
    segment_size_bytes: int
    settings: dict[str, str]
    messages: int
    segments: tuple[SegmentCopy, ...]
    states: tuple[StateFile, ...]


def iso(time_ms: int) -> str:
    """Return a time in ms since 1970 as ISO 8601, in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def encode(manifest: Manifest) -> bytes:
    value = msgspec.to_builtins(manifest)
    return orjson.dumps({**value, CHECKSUM_KEY: _checksum(value)}, option=orjson.OPT_INDENT_2)


def decode(data: bytes) -> Manifest:
    """Read a manifest. Raises BackupDamaged, and BackupError for a different version's."""
    try:
        value = orjson.loads(data)
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise BackupDamaged("manifest.json is no manifest of a backup")
        if value.get("version") != VERSION:
            raise BackupError(
                f"manifest.json has version {value.get('version')}, this program knows {VERSION}"
            )
        if value.pop(CHECKSUM_KEY, None) != _checksum(value):
            raise BackupDamaged("manifest.json: its checksum does not match")
        manifest = msgspec.convert(value, Manifest)
    except (orjson.JSONDecodeError, msgspec.ValidationError) as error:
        raise BackupDamaged(f"manifest.json cannot be read: {error}") from error
    # A restored group starts one term above the backup's.
    if not 0 <= manifest.term <= manifest.current_term < TERM_MAX:
        raise BackupDamaged(f"manifest.json: term {manifest.current_term} is out of range")
    complaint = _contradiction(manifest)
    if complaint:
        raise BackupDamaged(f"manifest.json contradicts itself: {complaint}")
    return manifest


def encode_progress(parts: list[SegmentCopy]) -> bytes:
    return orjson.dumps(parts, msgspec.to_builtins)


def decode_progress(data: bytes) -> list[SegmentCopy]:
    """Read progress.json; a torn file yields no parts, which are then copied again."""
    try:
        return msgspec.convert(orjson.loads(data), list[SegmentCopy])
    except (orjson.JSONDecodeError, msgspec.ValidationError):
        return []


def _contradiction(manifest: Manifest) -> str:
    """Return why the parts do not cover `start` to `end` in order, or ""."""
    position, before = manifest.start, (manifest.first_index - 1, manifest.previous_term)
    size = manifest.segment_size_bytes
    if size <= 0 or position % size:
        return f"it begins at {position}"
    for segment in manifest.segments:
        if segment.start != position or (segment.before_index, segment.before_term) != before:
            return f"the segment at {segment.start} does not follow what is before it"
        if not 0 < segment.length_bytes <= size:
            return f"the segment at {segment.start} has {segment.length_bytes} bytes"
        is_full = segment.length_bytes == size
        if not is_full and segment is not manifest.segments[-1]:
            return f"the segment at {segment.start} is not whole"
        position, before = segment.end, (segment.last.index, segment.last.term)
    if (position, *before) != (manifest.end, manifest.commit_index, manifest.term):
        return f"the segments end at {position} with frame {before[0]}"
    if not manifest.states:
        return "there is no state"
    if any(not 0 <= state.index <= manifest.commit_index for state in manifest.states):
        return "a state is of no frame here"
    return ""


def _checksum(value: dict[str, Any]) -> int:
    return int(crc32c(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)))
