"""Verification of a complete backup. Blocking."""

from __future__ import annotations

from collections.abc import Iterator

from google_crc32c import extend as crc32c_extend

from .directory import BackupDirectory, segment_name
from .log_verifier import ChainBroken, FrameChain
from .manifest import BackupDamaged, BackupError, Manifest, SegmentCopy, StateFile
from .table_snapshots import decode


def complaints(directory: BackupDirectory, manifest: Manifest) -> Iterator[str]:
    """Yield a text for each damaged file.

    Checked are the checksums of files and frames, and the order of frames up to the manifest's
    last. Raises OSError."""
    for segment in manifest.segments:
        complaint = _of_segment(directory, segment, manifest.segment_size_bytes)
        if complaint:
            yield complaint
    for state in manifest.states:
        complaint = _of_state(directory, state)
        if complaint:
            yield complaint


def _of_segment(directory: BackupDirectory, segment: SegmentCopy, segment_size_bytes: int) -> str:
    name = f"commitlog/{segment_name(segment.start)}"
    chain = FrameChain(segment.before_index, segment.before_term, segment.start, segment_size_bytes)
    broken = ""
    checksum = 0
    try:
        for data in directory.chunks(segment):
            checksum = crc32c_extend(checksum, data)
            if not broken:
                broken = _fed(chain, data, segment.start)
    except BackupDamaged as damage:
        return str(damage)
    if broken:
        return f"{name}: {broken}"
    if checksum != segment.crc32c:
        return f"{name}: its checksum is not the manifest's, although all frames are whole"
    ends = (chain.index, chain.term, chain.next_position)
    if not chain.is_between_frames or ends != (segment.last.index, segment.last.term, segment.end):
        return f"{name}: ends with frame {chain.index}, the manifest says {segment.last.index}"
    return ""


def _fed(chain: FrameChain, data: bytes, start: int) -> str:
    try:
        chain.feed(data)
    except ChainBroken as broken:
        return f"byte {broken.position - start}, frame {broken.index}: {broken.reason}"
    return ""


def _of_state(directory: BackupDirectory, state: StateFile) -> str:
    try:
        decode(state, directory.state(state))
    except BackupError as error:
        return str(error)
    return ""
