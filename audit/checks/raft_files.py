"""Checks a store's raft/ directory against the log (term and vote, configuration, group id).

    raft/hardstate      version 3 (1 byte), flags (1), term (8), length of the vote (2; 0xFFFF:
                        none), group id (16), length of the owner (1), owner, vote; version 2 has
                        neither group id nor owner
    raft/configuration  index of its frame (8), the frame's payload
    raft/group          the group's id (16 bytes)

Each file has two copies (audit.read.slots). A replica whose vote is lost, or whose term is below
its frames', could vote twice in a term. Replicas of other engines have none of these files.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..read.slots import SLOT_SIZE_BYTES, Slots, parse_slots
from ..read.store_files import Store
from ..report.report import CheckResult, Offender

DIRECTORY = "raft"
HARD_STATE, CONFIGURATION, GROUP = "hardstate", "configuration", "group"
BOOT = "boot"  # its content is void after a restart of the machine
EXPECTING = (HARD_STATE, GROUP, BOOT)  # a hard state must exist beside any of these
MISSING = Slots(None, ((0, "is not there: term and vote are lost"),))
NOBODY = 0xFFFF
_HEAD = struct.Struct(">BBqH")
GROUP_ID_SIZE_BYTES = 16
_INDEX = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Facts of the group's log. `terms` has each store's highest term below its limit,
    `configurations` the payloads of configuration frames by index. `first_index` is the first index
    that the group still has. `group_id` is in hex, or "" if unknown."""

    terms: Mapping[str, int]
    configurations: Mapping[int, bytes]
    first_index: int
    group_id: str


class BadHardState(Exception):
    """Bytes that are no term and vote."""


def raft_files_check(stores: Mapping[str, Store], facts: LogFacts) -> tuple[CheckResult, bool]:
    """Check the files of every store; also return whether there were any. Raises OSError."""
    files = {name: _files(store) for name, store in stores.items()}
    expected = any(name in names for names in files.values() for name in EXPECTING)
    offenders: list[Offender] = []
    for name, names in files.items():
        if expected and HARD_STATE not in names:
            names[HARD_STATE] = MISSING
        for file, what in _faults(names, facts.terms.get(name, 0), facts, stores[name].closed):
            offenders.append({"store": name, "file": f"{DIRECTORY}/{file}", "what": what})
    title = "files under raft/ that are damaged, or say something else than the log"
    return CheckResult.of_faults("raft_files", title, offenders), any(files.values())


def decode_term(content: bytes) -> int:
    """Return the term of a hard state. Raises BadHardState."""
    at = _HEAD.size
    version = content[0] if len(content) >= at else 0
    if version == 3 and len(content) > at + GROUP_ID_SIZE_BYTES:
        at += GROUP_ID_SIZE_BYTES + 1 + content[at + GROUP_ID_SIZE_BYTES]
    elif version != 2:
        raise BadHardState(f"{len(content)} bytes are no term and vote")
    _, _, term, length = _HEAD.unpack_from(content)
    rest = len(content) - at
    if term < 0 or rest != (0 if length == NOBODY else length):
        raise BadHardState(f"term {term}, vote of {rest} bytes")
    return int(term)


def _files(store: Store) -> dict[str, Slots]:
    return {
        name: parse_slots(content)
        for name in (HARD_STATE, CONFIGURATION, GROUP, BOOT)
        if (content := store.content(f"{DIRECTORY}/{name}")) is not None
    }


def _faults(
    files: Mapping[str, Slots], term_held: int, facts: LogFacts, closed: bool
) -> Iterator[tuple[str, str]]:
    for name, slots in files.items():
        content = slots.content
        if content is None:
            yield name, "; ".join(what for _, what in slots.bad)
            continue
        if closed:
            for number, what in slots.bad:
                yield f"{name}:{number * SLOT_SIZE_BYTES}", f"one of two copies: {what}"
        if name == HARD_STATE:
            yield from _hard_state_faults(content, term_held)
        elif name == CONFIGURATION:
            yield from _configuration_faults(content, facts)
        elif name == GROUP and content and facts.group_id not in ("", content.hex()):
            yield name, f"is of group {content.hex()}, the log of {facts.group_id}"


def _hard_state_faults(content: bytes, term_held: int) -> Iterator[tuple[str, str]]:
    try:
        term = decode_term(content)
    except BadHardState as error:
        yield HARD_STATE, str(error)
        return
    if term < term_held:
        yield HARD_STATE, f"has term {term}, and the store holds a frame of term {term_held}"


def _configuration_faults(content: bytes, facts: LogFacts) -> Iterator[tuple[str, str]]:
    if len(content) < _INDEX.size:
        yield CONFIGURATION, f"{len(content)} bytes are no configuration"
        return
    index, payload = _INDEX.unpack_from(content)[0], content[_INDEX.size :]
    if index < facts.first_index:
        return  # retention removed its frame
    if index not in facts.configurations:
        yield CONFIGURATION, f"is of frame {index}, which has no configuration in the log"
    elif facts.configurations[index] != payload:
        yield CONFIGURATION, f"has not the members of frame {index}"
