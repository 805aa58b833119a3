"""The members of a group, their encoding, and changes of members.

A configuration is the payload of a frame of kind CONFIGURATION. A replica uses the newest in its
log from its append on, committed or not, and returns to the previous configuration if that frame is
truncated (thesis 4.1); `Configurations` keeps those to which it may return. Each change concerns at
most a single voter, so majorities of successive configurations overlap. No change gives two members
the same address. membership.py has the other rules for changes.

The founding configuration is broker.conf's, counts as index 0, and is in no frame. The founders'
addresses in a replica's own broker.conf have precedence (each replica may use a different route)
until a change moves them. dledger/node/peer_addresses.py uses broker.conf's addresses for further
dials. A broker id is never reused.

A configuration also names the preferred leader (leader_placement.py), so every replica has it, as
durable as the membership, and it disappears with its member.

    payload  off size field            then, per member        off size field
             0   1    version                                  0   1    1 voter, 2 learner
             1   1    members                                  1   1    flags  1: founder
             2   1    removed ids                              2   4    broker id
             3   4    next broker id                           6   1    length of the id
                                                               7   1    length of the address
    then, per removed id: length (1), id                       8   n    id, address, UTF-8
    version 1: no preferred leader was ever set; version 2: then, of that voter: length (1), id;
    length 0: the preference was explicitly set to nobody
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from .errors import ChangeRefused, PreferredChanged
from .messages import NodeId

SIZE_BYTES_MAX = 1000  # fits a SlotFile with the frame's index before it
MEMBERS_MAX = 9
REMOVED_MAX = 8  # remembered, so that they learn of their removal
NAME_SIZE_BYTES_MAX = 255
_VERSION = 1
_VERSION_PREFERRING = 2  # with the preferred leader at the end
_HEAD = struct.Struct(">BBBI")
_MEMBER = struct.Struct(">BBIBB")
_FOUNDER = 1


class ConfigurationError(Exception):
    """Bytes that are not a configuration."""


class MemberRole(Enum):
    """The role of a member in its group's configuration; values as in the codec."""

    VOTER = 1
    LEARNER = 2  # receives the log; neither votes nor counts


class ChangeKind(Enum):
    """The changes of a configuration; values as in the requests of operators."""

    ADD_LEARNER = "add-learner"
    PROMOTE = "promote"  # learner to voter
    REMOVE = "remove"
    MOVE = "move"  # a member's address
    PREFER = "prefer"  # this voter as leader; "": nobody


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a configuration. `address` (host:port) is for ADD_LEARNER and MOVE. `instead_of`
    is for PREFER, and lists the preferred leaders that may be replaced."""

    kind: ChangeKind
    node_id: NodeId
    address: str = ""
    instead_of: tuple[NodeId | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group. For a `founder`, an address in a replica's own broker.conf has
    precedence over `address`."""

    node_id: NodeId
    address: str
    broker_id: int
    role: MemberRole = MemberRole.VOTER
    founder: bool = False


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration of a group. `members` are in the order of joining, `removed` has the last
    removed members, the latest at the end. `preferred` is the preferred leader, "" for nobody, or
    None if it was never set and broker.conf (preferredLeaderId) applies."""

    members: tuple[GroupMember, ...] = ()
    removed: tuple[NodeId, ...] = ()
    broker_id_next: int = 1
    preferred: NodeId | None = None

    @property
    def voters(self) -> frozenset[NodeId]:
        return frozenset(m.node_id for m in self.members if m.role is MemberRole.VOTER)

    @property
    def ids(self) -> frozenset[NodeId]:
        return frozenset(m.node_id for m in self.members)

    def get(self, node_id: NodeId) -> GroupMember | None:
        """Return the member with that id, or None."""
        return next((m for m in self.members if m.node_id == node_id), None)

    def after(self, change: Change) -> Configuration:
        """Return this configuration with `change` made. Raises ChangeRefused."""
        member = self.get(change.node_id)
        if change.kind is ChangeKind.ADD_LEARNER:
            after = self._with_learner(change, member)
        elif change.kind is ChangeKind.PREFER:
            after = self._preferring(change, member)
        elif member is None:
            raise ChangeRefused(f"{change.node_id} is no member of this group")
        elif change.kind is ChangeKind.PROMOTE:
            if member.role is MemberRole.VOTER:
                raise ChangeRefused(f"{change.node_id} is a voter already")
            after = self._replacing(replace(member, role=MemberRole.VOTER))
        elif change.kind is ChangeKind.MOVE:
            self._check_address_is_free(change)
            after = self._replacing(replace(member, address=change.address, founder=False))
        else:
            after = self._without(member)
        if len(encode_configuration(after)) > SIZE_BYTES_MAX:
            raise ChangeRefused(f"the configuration would exceed {SIZE_BYTES_MAX} bytes")
        return after

    def _with_learner(self, change: Change, member: GroupMember | None) -> Configuration:
        if member is not None:
            raise ChangeRefused(f"{change.node_id} is a {member.role.name.lower()} already")
        if not 0 < len(change.node_id.encode()) <= NAME_SIZE_BYTES_MAX:
            raise ChangeRefused(f"{change.node_id!r} is no id")
        if len(self.members) >= MEMBERS_MAX:
            raise ChangeRefused(f"the group has {MEMBERS_MAX} members, and may not have more")
        self._check_address_is_free(change)
        learner = GroupMember(
            change.node_id, change.address, self.broker_id_next, MemberRole.LEARNER
        )
        return Configuration(
            (*self.members, learner),
            tuple(node_id for node_id in self.removed if node_id != change.node_id),
            self.broker_id_next + 1,
            self.preferred,
        )

    def _check_address_is_free(self, change: Change) -> None:
        _check_address(change.address)
        address = host_and_port(change.address)
        for other in self.members:
            if other.node_id != change.node_id and host_and_port(other.address) == address:
                raise ChangeRefused(
                    f"{other.node_id} has the address {change.address}: move or remove it first"
                )

    def _preferring(self, change: Change, member: GroupMember | None) -> Configuration:
        if change.instead_of is not None and self.preferred not in change.instead_of:
            raise PreferredChanged(self.preferred)
        if change.node_id and member is None:
            raise ChangeRefused(f"{change.node_id} is no member of this group")
        if member is not None and member.role is not MemberRole.VOTER:
            raise ChangeRefused(f"{change.node_id} is no voter")
        return replace(self, preferred=change.node_id)

    def _replacing(self, member: GroupMember) -> Configuration:
        members = tuple(member if m.node_id == member.node_id else m for m in self.members)
        return replace(self, members=members)

    def _without(self, member: GroupMember) -> Configuration:
        if self.voters == {member.node_id}:
            raise ChangeRefused(f"{member.node_id} is the group's only voter")
        members = tuple(m for m in self.members if m.node_id != member.node_id)
        removed = (*self.removed, member.node_id)[-REMOVED_MAX:]
        preferred = "" if self.preferred == member.node_id else self.preferred
        return replace(self, members=members, removed=removed, preferred=preferred)


def founding(peers: Iterable[tuple[NodeId, str]]) -> Configuration:
    """Return the founding configuration from (id, address) of each voter in broker.conf's order."""
    members = tuple(
        GroupMember(node_id, address, 1 + ordinal, founder=True)
        for ordinal, (node_id, address) in enumerate(peers)
    )
    return Configuration(members, (), 1 + len(members))


def host_and_port(address: str) -> tuple[str, str]:
    """Return host and port of an address, normalized for comparison."""
    host, _, port = address.rpartition(":")
    return host.strip("[]").lower(), port.lstrip("0")


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ChangeRefused(f"{address!r} is no address; it must read host:port")
    if len(address.encode()) > NAME_SIZE_BYTES_MAX:
        raise ChangeRefused("the address is too long")


def encode_configuration(configuration: Configuration) -> bytes:
    members, removed = configuration.members, configuration.removed
    version = _VERSION if configuration.preferred is None else _VERSION_PREFERRING
    parts = [_HEAD.pack(version, len(members), len(removed), configuration.broker_id_next)]
    for m in members:
        node_id, address = m.node_id.encode(), m.address.encode()
        flags = _FOUNDER if m.founder else 0
        parts.append(_MEMBER.pack(m.role.value, flags, m.broker_id, len(node_id), len(address)))
        parts += [node_id, address]
    last = () if configuration.preferred is None else (configuration.preferred,)
    for name in (*removed, *last):
        parts.append(bytes([len(name.encode())]) + name.encode())
    return b"".join(parts)


def decode_configuration(payload: bytes | memoryview) -> Configuration:
    """Return the configuration in a CONFIGURATION frame's payload. Raises ConfigurationError."""
    data = bytes(payload)
    try:
        configuration, end = _decode(data)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise ConfigurationError(f"{len(data)} bytes: {error}") from error
    if end != len(data):
        raise ConfigurationError(f"{len(data)} bytes, of which {end} are a configuration")
    if len(configuration.ids) != len(configuration.members):
        raise ConfigurationError("a member stands in it twice")
    if configuration.preferred and configuration.preferred not in configuration.voters:
        raise ConfigurationError(f"{configuration.preferred} should lead and is no voter")
    return configuration


def check_proposed(payload: bytes | memoryview) -> None:
    """Check that a leader's configuration has a voter, fits the configuration file, and has valid
    addresses. Two members may share an address, as in old logs. Raises ConfigurationError."""
    if len(payload) > SIZE_BYTES_MAX:
        raise ConfigurationError(f"{len(payload)} bytes, more than {SIZE_BYTES_MAX}")
    proposed = decode_configuration(payload)
    if not proposed.voters:
        raise ConfigurationError("nobody votes in it")
    for member in proposed.members:
        try:
            if member.address:  # cores that are driven by hand have none
                _check_address(member.address)
        except ChangeRefused as error:
            raise ConfigurationError(str(error)) from error


def _decode(data: bytes) -> tuple[Configuration, int]:
    version, count, removed_count, broker_id_next = _HEAD.unpack_from(data)
    if version not in (_VERSION, _VERSION_PREFERRING):
        raise ValueError(f"version {version}, this program knows {_VERSION_PREFERRING}")
    at = _HEAD.size
    members = []
    for _ in range(count):
        role, flags, broker_id, id_size, address_size = _MEMBER.unpack_from(data, at)
        if flags & ~_FOUNDER:
            raise ValueError(f"flags {flags:#x}")
        at += _MEMBER.size
        node_id, at = _text(data, at, id_size)
        address, at = _text(data, at, address_size)
        founder = bool(flags & _FOUNDER)
        members.append(GroupMember(node_id, address, broker_id, MemberRole(role), founder))
    removed = []
    for _ in range(removed_count):
        node_id, at = _text(data, at + 1, data[at])
        removed.append(node_id)
    preferred = None
    if version == _VERSION_PREFERRING:
        preferred, at = _text(data, at + 1, data[at])
    return Configuration(tuple(members), tuple(removed), broker_id_next, preferred), at


def _text(data: bytes, at: int, size: int) -> tuple[str, int]:
    if at + size > len(data):
        raise ValueError("cut short")
    return data[at : at + size].decode(), at + size


class Configurations:
    """The configurations that may be in force, depending on the log's end, by frame index.

    The first is committed (or founding, index 0) and cannot be truncated; later configurations can.
    """

    __slots__ = ("_entries",)

    def __init__(self, index: int, configuration: Configuration) -> None:
        self._entries = [(index, configuration)]

    def copy(self) -> Configurations:
        other = Configurations(*self._entries[0])
        other._entries = self._entries[:]
        return other

    @property
    def current(self) -> Configuration:
        return self._entries[-1][1]

    @property
    def index(self) -> int:
        """The frame index of the configuration in force; 0: founding."""
        return self._entries[-1][0]

    @property
    def settled(self) -> tuple[int, Configuration]:
        """The newest configuration known to be committed, with its frame index."""
        return self._entries[0]

    @property
    def ids(self) -> frozenset[NodeId]:
        """Members of all configurations that are, or may return, in force."""
        return frozenset().union(*(configuration.ids for _, configuration in self._entries))

    def ever_voter(self, node_id: NodeId) -> bool:
        """Return whether the node votes in any of these configurations."""
        return any(node_id in configuration.voters for _, configuration in self._entries)

    def append(self, index: int, configuration: Configuration) -> bool:
        """Add frame `index`'s configuration. Return False if a newer one is committed."""
        if index <= self._entries[0][0]:
            return False
        assert index > self.index, (index, self.index)
        self._entries.append((index, configuration))
        return True

    def truncate(self, from_index: int) -> bool:
        """Drop the configurations of frames from `from_index` on. Return whether another
        configuration is in force now."""
        kept = [entry for entry in self._entries[1:] if entry[0] < from_index]
        changed = len(kept) < len(self._entries) - 1
        self._entries[1:] = kept
        return changed

    def settle(self, commit_index: int) -> bool:
        """Forget configurations before the newest committed one. Return whether there were any."""
        committed = sum(index <= commit_index for index, _ in self._entries[1:])
        del self._entries[:committed]
        return committed > 0

    def __repr__(self) -> str:
        return f"<Configurations {[(i, sorted(c.voters)) for i, c in self._entries]}>"
