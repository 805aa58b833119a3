"""Determines the members of a Raft group from its logs and stores.

A majority is counted among all voters, because the remaining stores must not become a majority when
a store is missing. The newest configuration counts that is committed by one of these criteria:

- a majority of its own voters hold its frame, intact;
- a store that holds its frame has a commit position behind it;
- a store keeps it in its file raft/configuration, which is written only after the commit. No log
  may have a different frame at this index, or end before it. If no log reaches back to it, no other
  may be kept by more stores.

Before the first change, the voters are the founders in cluster.json (audit.read.cluster_info), or
else the given stores.

A configuration is the payload of a frame of kind CONFIGURATION, big-endian: version (1 or 2),
members, removed ids (1 byte each), next broker id (4). Each member has role (1 voter, 2 learner),
flags (1 byte each), broker id (4), length of the id, length of the address (1 each), id, address.
The rest is not needed here. The file (audit.read.slots) has the frame's index (8) and the payload.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

VERSIONS = (1, 2)
VOTER, LEARNER = 1, 2
_HEAD = struct.Struct(">BBBI")
_MEMBER = struct.Struct(">BBIBB")


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a group, and the `source` of this information."""

    voters: frozenset[str]
    learners: frozenset[str]
    source: str

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1


@dataclass(frozen=True, slots=True)
class ConfigurationFrame:
    """An intact configuration frame, the stores that hold it, and its `end` in the log."""

    index: int
    end: int
    payload: bytes
    holders: frozenset[str]


class BadConfiguration(Exception):
    """Bytes that are not a configuration."""


def decode_members(payload: bytes) -> tuple[frozenset[str], frozenset[str]]:
    """Return the ids of voters and of learners. Raises BadConfiguration."""
    by_role: dict[int, set[str]] = {VOTER: set(), LEARNER: set()}
    try:
        version, count, _, _ = _HEAD.unpack_from(payload)
        if version not in VERSIONS:
            raise BadConfiguration(f"version {version}")
        at = _HEAD.size
        for _ in range(count):
            role, _, _, id_size, address_size = _MEMBER.unpack_from(payload, at)
            at += _MEMBER.size
            name = payload[at : at + id_size]
            at += id_size + address_size
            if at > len(payload):
                raise BadConfiguration("cut short")
            by_role[role].add(name.decode())
    except (struct.error, KeyError, UnicodeDecodeError) as error:
        raise BadConfiguration(str(error)) from error
    return frozenset(by_role[VOTER]), frozenset(by_role[LEARNER])


def members_of(
    frames: Iterable[ConfigurationFrame],
    commits: Mapping[str, int],
    saved: Iterable[tuple[int, bytes]],
    founders: Iterable[str],
    founded_by: str,
) -> Members:
    """Return the members by the newest committed configuration, or the founders without one.

    `commits` has the commit position of each store, `saved` the configurations in the stores'
    files. `founded_by` is the source of the founders.
    """
    known: dict[int, bytes] = {}
    in_logs: dict[int, bytes] = {}
    for frame in frames:
        in_logs[frame.index] = frame.payload
        try:
            voters, _ = decode_members(frame.payload)
        except BadConfiguration:
            continue  # with a right CRC; it is ignored
        by_majority = len(voters & frame.holders) > len(voters) // 2
        if by_majority or any(commits[name] >= frame.end for name in frame.holders):
            known[frame.index] = frame.payload
    for index, payload in saved:
        if in_logs.get(index, payload) == payload:
            known.setdefault(index, payload)
    for index in sorted(known, reverse=True):
        try:
            voters, learners = decode_members(known[index])
        except BadConfiguration:
            continue
        if voters:
            return Members(voters, learners, f"the configuration of frame {index}")
    return Members(frozenset(founders), frozenset(), founded_by)
