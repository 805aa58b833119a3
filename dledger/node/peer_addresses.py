"""Addresses of the group's members, and the saving of their configuration.

The core decides which configuration is in force. The roster applies it. Links dial its members, the
repairer asks them, the newest committed configuration is saved in the configuration file (by a
recovered replica only, see dledger/raft/recovery.py), and retention keeps its frame until that is
durable.

A replica that was away may meet an unknown leader, because it missed the frame by which that leader
joined. It can get that frame only if it answers the leader on a link that it dials. So every
dialler reports its address (dledger/transport/peer_info_message.py), and is dialled back.

An address in the log may be wrong, and only a leader can correct it. So a replica without a leader
also dials unreachable members at the addresses of its own broker.conf. They do not decide
membership or votes; a replica is identified by its id. Open links stay, so that a leader that is
elected over them can correct the addresses. With a leader these addresses are not used, because an
old store may still be at a moved member's address.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from raftmq.store.disk import Disk
from raftmq.store.transient_errors import passes

from ..raft.configuration import Configuration, Configurations, GroupMember, founding
from ..raft.core import RaftCore
from ..raft.messages import NodeId
from ..repair.repairer import Healer
from ..settings import MemberConfig
from ..storage.configuration_file import (
    ConfigurationFile,
    MembersDiffer,
    starting_configurations,
)
from ..storage.log_storage import RaftLog
from ..transport.transport import PeerAddress, PeerLinks

log = logging.getLogger("raftmq.dledger.node.peer_addresses")

INTRODUCED_MAX = 32  # twice as many as a group has members


class Roster:
    """Applies a member's configurations to its links, repairer and file. Runs on the loop, except
    `load`, `starting` and the saving."""

    def __init__(
        self, config: MemberConfig, disk: Disk, on_failed: Callable[[str, BaseException], None]
    ) -> None:
        self._config = config
        self._file = ConfigurationFile(disk, config.directory)
        self._on_failed = on_failed
        self._saved: tuple[int, Configuration] | None = None
        self._addresses = dict(config.peers)  # of all members ever known
        self._introduced: dict[NodeId, PeerAddress] = {}
        self._saving: asyncio.Future[None] | None = None

    def load(self) -> None:
        """Read the configuration file, before anything else. Blocking. Raises OSError."""
        self._saved = self._file.load()

    @property
    def founding(self) -> Configuration:
        """The founding configuration of broker.conf; empty for a replica that joins a group."""
        peers = () if self._config.join else self._config.peers.values()
        return founding((peer.node_id, f"{peer.host}:{peer.port}") for peer in peers)

    def starting(self, raft_log: RaftLog) -> Configurations:
        """Return the configurations of an open log. Blocking. Raises ConfigurationLost,
        MembersDiffer, OSError, FrameDamaged."""
        founding = self._checked_founding(raft_log)
        return starting_configurations(self._saved, self._file.damaged, founding, raft_log)

    def _checked_founding(self, raft_log: RaftLog) -> Configuration:
        """Return the founding configuration of broker.conf, or that of the first start if a change
        of members is in the log and not in the file. Saves it at the first start. Raises
        MembersDiffer, OSError."""
        index, noted = self._saved or (0, Configuration())
        founding = self.founding
        if index or self._file.damaged or not founding.members or noted.ids == founding.ids:
            return founding
        if noted.members and any(i <= raft_log.last_index for i in raft_log.configuration_indexes):
            return noted
        if noted.members and raft_log.last_index:
            were, are = (", ".join(sorted(each.ids)) for each in (noted, founding))
            raise MembersDiffer(
                f"dLegerPeers names {are}, and this group was founded by {were}: correct it, and"
                " change members with `mqadmin members`"
            )
        try:
            self._file.save(0, founding)
        except OSError as error:
            if not passes(error):
                raise
            log.warning("configuration_not_saved: %s", error)  # the next start tries again
        self._saved = 0, founding
        return founding

    def before_the_core(self, links: PeerLinks, healer: Healer) -> None:
        """Dial and ask all members of the file and of broker.conf while the log recovers."""
        known = self._saved[1] if self._saved is not None else Configuration()
        for member in known.members:
            self._addresses[member.node_id] = self._address(member)
        links.set_peers(self._addresses)
        links.set_spares(self._config.peers)
        healer.set_members(frozenset(self._addresses))

    def follow(self, core: RaftCore, links: PeerLinks, healer: Healer) -> None:
        """Update links and repairer to the configuration in force."""
        current = core.membership.configurations.current
        for member in filter(lambda one: one.address, current.members):
            self._addresses[member.node_id] = self._address(member)
        # A replica that is to join, without a configuration, dials its configured peers.
        ids = core.membership.peers if current.members else tuple(self._addresses)
        removed = set(core.membership.configurations.settled[1].removed)
        strangers = {
            peer: address
            for peer, address in self._introduced.items()
            if peer not in ids and peer not in removed and current.members
        }
        links.set_peers(
            strangers | {peer: self._addresses[peer] for peer in ids if peer in self._addresses},
            # A leader still accepts the removed replicas that it sends to, so that they can
            # acknowledge their own removal.
            removed.difference(core.membership.peers),
        )
        healer.set_members(frozenset(ids) | {core.node_id})

    def poll(self, core: RaftCore, links: PeerLinks) -> None:
        """Update the further addresses to dial. Called periodically."""
        links.set_spares(self._config.peers if core.leader is None else {})

    def introduced(self, peer: NodeId, host: str, port: int) -> bool:
        """Note the address of a peer that dialled this replica, in case it is an unknown member.
        Return whether the address is new."""
        address = PeerAddress(peer, host, port)
        introduced = self._introduced
        if introduced.get(peer) == address:
            return False
        introduced.pop(peer, None)
        introduced[peer] = address
        if len(introduced) > INTRODUCED_MAX:
            del introduced[next(iter(introduced))]  # the oldest entry
        return True

    def _address(self, member: GroupMember) -> PeerAddress:
        own = self._config.peers.get(member.node_id)
        if own is not None and (member.founder or member.node_id == self._config.node_id):
            return own
        host, _, port = member.address.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        return PeerAddress(member.node_id, host, int(port))

    def save(self, core: RaftCore, pool: Executor) -> None:
        """Save the newest committed configuration if it is not saved yet. Called periodically."""
        index, configuration = core.membership.configurations.settled
        if self._saving is not None or index <= self._file.saved_index or not core.recovered:
            return
        loop = asyncio.get_running_loop()
        self._saving = loop.run_in_executor(pool, self._file.save, index, configuration)
        self._saving.add_done_callback(self._saved_it)

    def _saved_it(self, done: asyncio.Future[None]) -> None:
        self._saving = None
        error = done.exception()
        if passes(error):
            log.warning("configuration_not_saved: %s", error)  # the next call tries again
        elif error is not None:
            self._on_failed("saving the configuration failed", error)

    def may_go(self, core: RaftCore, index: int) -> int:
        """Return the last frame, at most `index`, up to which retention may delete the log."""
        settled, _ = core.membership.configurations.settled
        return index if settled <= self._file.saved_index else min(index, settled - 1)

    async def stop(self) -> None:
        if self._saving is not None:
            await asyncio.wait([self._saving])
        self._file.close()


def members_of(core: RaftCore) -> list[dict[str, object]]:
    """Return every member as data. `match` (last frame), `lag` (missing frames) and `recovered` of
    other members are None on replicas that do not lead, and until a member has answered the leader.
    `preferred` marks the preferred leader."""
    rows: list[dict[str, object]] = []
    for member in core.membership.configurations.current.members:
        node_id: NodeId = member.node_id
        progress = core.progress.get(node_id)
        match = core.durable_index if node_id == core.node_id else None
        recovered: bool | None = core.recovered if node_id == core.node_id else None
        if progress is not None:
            match = progress.known_match
            recovered = progress.known_recovered
        rows.append(
            {
                "node_id": node_id,
                "address": member.address,
                "role": member.role.name.lower(),
                "broker_id": member.broker_id,
                "match": match,
                "lag": None if match is None else core.last_index - match,
                "recovered": recovered,
                "preferred": core.membership.configurations.current.preferred == node_id,
            }
        )
    return rows


def membership_of(core: RaftCore) -> str:
    """Return `voter`, `learner`, or `none` for a replica that was removed or is not added yet."""
    member = core.membership.configurations.current.get(core.node_id)
    return "none" if member is None else member.role.name.lower()
