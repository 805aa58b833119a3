"""Reads a replica's file of notes (dledger.node.rollback_detection) without touching it."""

from __future__ import annotations

from raftmq.dledger.storage.two_slot_file import SLOT_SIZE_BYTES, _parse_slot
from raftmq.dledger.transport.peer_info_message import Held, decode_notes


def notes_in(data: bytes) -> dict[str, Held]:
    """Return what a file of these bytes says; nothing if it is empty or damaged."""
    parsed = [_parse_slot(data[at : at + SLOT_SIZE_BYTES]) for at in (0, SLOT_SIZE_BYTES)]
    complete = [slot for slot in parsed if isinstance(slot, tuple)]
    return decode_notes(max(complete)[1]) if complete else {}
