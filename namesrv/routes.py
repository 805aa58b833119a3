"""The route table of broker groups, their addresses and their topics.

Callers pass the time (`now_ms` of any monotonic clock); channels are opaque tokens.

Rules of registration (103):
- Id 0 is the master or leader, the only address to which clients write. A broker that registers as
  0 replaces the address at 0. An address is listed under a single id, so a node that changes its id
  is not listed twice. The replaced node stays unlisted until it registers again, as the answer to
  322 demands.
- Masters have no term, so a second master of a name is rejected while the first is connected;
  otherwise sends would alternate between both. A broker that is listed under a different id takes
  over, as in Apache's DLedger groups. A moved master registers after its old channel has closed or
  its timeout has passed. A higher `stateVersion`, the epoch of Apache's controller, replaces the
  master at once.
- Raft groups send their `term`. The table keeps the highest term that claimed id 0. It rejects
  (`RegistrationRefused`) claims with a lower term, claims with the same term from a second address
  while the first is listed, and registrations older than the node's last. The term is dropped with
  the group's last address, and CLAIM_MS after the loss of its claimant.
- A replica without a leader, or with a lower term, does not get the id of a connected address. Two
  processes then share a dLegerSelfId, and no leader reaches this replica. A leader also reserves
  its follower id (`own_id`). A moved replica registers when it follows its leader, or when its old
  connection has closed.
- Raft groups also send their group id. The first id reserves the name while a broker of that name
  is connected. Brokers with a different id are rejected, whatever their term, and their earlier
  registration under the same address is dropped. Brokers without an id are rejected unless they
  change no address, or their engine has no ids (`any_group`). A signed claim to lead gets the name
  from unsigned brokers. An id is no secret. It separates groups that share a name by mistake, and
  only signatures, which cover it, protect against forgery.
- The last id of a name outlives its brokers. A registration with a new id is accepted and reported
  (`Registered.group_id_before`), because the group may have been created again with empty stores.
- A leader reports the ids of groups that were removed from the cluster. Their listed brokers are
  dropped, and their registrations rejected. An unsigned report has no effect on signed brokers.
- A claim may be `signed` (remoting.registration_proof). The first signed claim to id 0 reserves the
  name for signed registrations and signed change requests, and drops unsigned registrations,
  whatever their term. The reservation lasts while its claim lasts or a signed broker of the name is
  connected. No second broker can get a signed broker's address. With `signed_only` the table
  rejects all unsigned registrations.
- Topics are stored per group. The broker that registers as 0 replaces them. A follower's topics are
  accepted only while the group has neither topics nor a leader, as after a name server's restart
  during an election.
- A leader may send a delta. It names the DataVersion that it is based on (`base`), and the body has
  the version after it. The delta is merged if the group has version `base`; a topic without queues
  is removed. It is ignored as a repetition if the group already has the new version. Otherwise only
  liveness and ids are recorded, and the answer requests the full table (`need_full`). Full tables
  are always allowed.
- An Apache broker of version 5 sends its full table and, after the creation of a topic, that topic
  alone, without a distinction. So its topics are added and changed, never dropped, as at Apache's
  name server, and no version is stored, so that the full table is requested every time.

`expire` drops a broker after its timeout (120 s by default). A broker is dropped at once when the
channel of its last registration closes; older channels are irrelevant.

A repeated registration of an unchanged table does not touch topics. `wants_topics` is asked before
the body is read, and a table without a version is compared by the body's digest. `RouteLimits`
limits all sizes. Addresses and leadership change at once. Large changes of topics are made in steps
(`run_with`), in order per group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from sys import intern
from typing import NamedTuple

from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fair_scheduling import Steps, finish
from raftmq.remoting.registration import DataVersion, TopicConfig

LEADER_ID = 0
EXPIRY_MS = 120_000  # Apache's; four registrations of 30 s
CLAIM_MS = 30_000  # how long a claim to lead outlives its claimant, a registration period
BROKERS_PER_GROUP_MAX = 128  # listed ones; each event and route of a group names them all
BROKERS_PER_CHANNEL_MAX = 64  # one process is one broker; a container of Apache's has some
REMOVED_GROUPS_MAX = 1_000
GROUP_IDS_MAX = 10_000  # remembered, of names that may be gone
PERM_WRITE = 2
TOPICS_PER_STEP = 64  # changed in a step; some .2 ms
NAMES_PER_STEP = 4_096  # looked at in a step
STEPS_AT_ONCE = 6  # smaller changes are made before their registration returns
EXPIRED_MAX = 200  # dropped per call of `expire`
NO_VERSION = DataVersion()
THIS_MACHINE = "localhost"  # the peer of a broker on the name server's own machine


class QueueData(NamedTuple):
    """A topic's queues on a group. Permission bits are 4 (read), 2 (write) and 1 (inherit).
    `message_type` is "" if the group sent none."""

    read_queue_count: int
    write_queue_count: int
    perm: int
    sys_flag: int
    message_type: str = ""


@dataclass(frozen=True, slots=True)
class RouteLimits:
    """Limits of the table; a registration above a limit is rejected."""

    brokers_max: int = 10_000  # addresses
    topics_max: int = 1_000_000  # names, over all groups
    topic_entries_max: int = 5_000_000  # pairs of topic and group


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker's registration. `topics` is None if `wants_topics` returned False."""

    cluster: str
    broker_name: str
    address: str
    broker_id: int
    ha_address: str = ""
    version: DataVersion = NO_VERSION
    topics: Iterable[TopicConfig] | None = None
    delta_base: DataVersion | None = None  # the topics are a delta on this version
    complete: bool = True  # False if there may be further topics, without a delta
    term: int = 0  # 0 without Raft
    group_id: str = ""  # of its Raft group, in hex; "" if missing
    # Without group ids, so it may belong to the group that reserves the name
    any_group: bool = False
    follows: bool = True  # False for a replica without a leader
    own_id: int = 0  # of a Raft leader, its id as a follower; 0 if missing
    removed: tuple[str, ...] = ()  # ids of groups that were removed from the cluster
    timeout_ms: int = EXPIRY_MS
    channel: Hashable = None
    http_address: str = ""  # of the broker's node API
    peer: str = ""  # the sender's host, or THIS_MACHINE
    digest: bytes = b""  # of the body with the topics
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Registered:
    """The result of a registration. Leader fields are "" if no leader is listed."""

    leader_address: str
    leader_ha_address: str
    need_full: bool  # request the full topic table
    changed: bool  # the route has changed, or will with the topics
    group_id_before: str = ""  # of the name, if this registration brought a new id
    topics: TopicChange | None = None  # in progress, or None


class RegistrationRefused(RemotingError):
    """The registration contradicts the table, which is unchanged."""

    def __init__(self, message: str, code: int, leader_address: str = "", term: int = 0) -> None:
        super().__init__(message, code=code)
        self.leader_address = leader_address
        self.term = term


@dataclass(slots=True)
class LiveBroker:
    """An address and the time of its last registration or heartbeat."""

    address: str
    broker_name: str
    broker_id: int = LEADER_ID
    ha_address: str = ""
    term: int = 0
    own_id: int = 0
    version: DataVersion = NO_VERSION
    timeout_ms: int = EXPIRY_MS
    last_seen_ms: int = 0
    channel: Hashable = None
    http_address: str = ""
    peer: str = ""
    signed: bool = False


@dataclass(slots=True)
class TopicChange:
    """A change of a group's topics in steps."""

    steps: Steps[bool]
    changed: bool = False
    done: bool = False
    whenever_done: list[Callable[[], None]] = field(default_factory=list)

    def end(self, *, changed: bool) -> None:
        self.steps.close()
        self.changed, self.done = changed, True
        for callback in self.whenever_done:
            callback()


@dataclass(slots=True, eq=False)
class BrokerGroup:
    """A broker name with its addresses by id and its topics. It ends with its last broker; the next
    broker of that name creates a new group."""

    name: str
    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    group_id: str = ""  # of the Raft group that reserves the name, or ""
    term: int = 0  # the highest term that claimed LEADER_ID
    claimant: str = ""  # the address of that claim
    claim_ends_ms: int | None = None  # None while its claimant is connected
    signed: bool = False  # the claim, or an earlier claim, was signed
    version: DataVersion | None = None  # of the topics; None without a table
    version_author: str = ""  # the address that sent the version
    digest: bytes = b""  # of the last full body; b"" after a change
    topics: dict[str, QueueData] = field(default_factory=dict)  # in a repeatable order
    raft: bool = False  # its brokers send terms, so any of them may become leader
    live: dict[str, LiveBroker] = field(default_factory=dict)  # including unlisted brokers
    gone: bool = False  # its topics are removed from the routes
    changes: deque[TopicChange] = field(default_factory=deque)  # pending, of its topics
    encoded: tuple[bytes, bytes] | None = None  # by views; None after a change


Groups = tuple[BrokerGroup, ...]


class RouteTable:
    """The route table; the module's docstring has its rules. Not thread-safe."""

    def __init__(self, limits: RouteLimits | None = None, *, signed_only: bool = False) -> None:
        self._limits = limits or RouteLimits()
        self._signed_only = signed_only
        self._live: dict[str, LiveBroker] = {}
        self._groups: dict[str, BrokerGroup] = {}
        # Topic → its groups, including removed groups. Topics of the same groups share a tuple,
        # because in a large cluster most topics are in all groups.
        self._groups_of: dict[str, Groups] = {}
        self._topic_entry_count = 0
        self._changing: deque[BrokerGroup] = deque()  # groups with pending changes
        self._run: Callable[[Steps[None]], None] | None = None
        self._is_running = False
        self._signed_count = 0  # of live brokers
        self._channels: dict[Hashable, set[str]] = {}
        self._watchers: list[Callable[[BrokerGroup], None]] = []
        self._topic_watchers: list[Callable[[str], None]] = []
        self._group_ids: dict[str, str] = {}  # broker name → last group id
        # Ids of removed groups → whether a signed registration named them
        self._removed: dict[str, bool] = {}
        self.registered_count = 0  # accepted registrations
        self.new_group_id_count = 0  # registrations with a new group id
        self.topics_version = 0  # increases with each added or removed topic, for caches
        self.groups_version = 0  # increases with each change of a group's brokers

    def run_with(self, run: Callable[[Steps[None]], None]) -> None:
        """Run large changes of topics by `run(steps)`, which returns at once, if given."""
        self._run = run

    # --- from brokers

    def wants_topics(
        self,
        broker_name: str,
        address: str,
        broker_id: int,
        version: DataVersion | None,
        signed: bool = False,
        digest: bytes = b"",
    ) -> bool:
        """Return whether the topics of a registration with this version or digest are needed."""
        group = self._groups.get(broker_name)
        if group is None or (signed and not group.signed):
            return True
        if digest and group.digest == digest:
            return False  # the same bytes, from whichever replica
        if broker_id != LEADER_ID:
            return LEADER_ID not in group.addresses and group.version is None
        return version is None or (group.version, group.version_author) != (version, address)

    def check(self, claim: Registration, now_ms: int) -> None:
        """Raise RegistrationRefused if `register` would, as far as known without the topics."""
        group = self._groups.get(claim.broker_name)
        if group is not None:
            self._forget_claim(group, now_ms)
        self._check_signed(claim, group)
        self._check_removed(claim, now_ms)
        self._check_brokers(claim)

    def register(self, claim: Registration, now_ms: int) -> Registered:
        """Apply a registration. Raises RegistrationRefused without a change, except that an earlier
        registration of the address under a different group is dropped."""
        if claim.broker_id < 0:
            text = f"brokerId {claim.broker_id} is negative"
            raise RegistrationRefused(text, ResponseCode.INVALID_PARAMETER)
        group = self._groups.get(claim.broker_name)
        if group is not None:
            self._forget_claim(group, now_ms)
        self._check_signed(claim, group)
        self._check_removed(claim, now_ms)
        group = self._check_group(claim, group, now_ms)
        self._check_term(claim, group)
        self._check_master(claim, group, now_ms)
        self._check_replica(claim, group, now_ms)
        self._check_brokers(claim)
        topics = self._check_topics(claim)
        changed = self._list_address(claim, now_ms)
        group = self._groups[claim.broker_name]
        need_full, change = False, None
        if claim.signed and claim.broker_id == LEADER_ID and not group.signed:
            changed |= self._hold(group, now_ms)
            group.group_id = claim.group_id
            if topics is None:
                change = self._change(group, self._replacing(group, []))
        if topics is not None and (claim.broker_id == LEADER_ID or group.version is None):
            base = claim.delta_base
            if base is None or (base == group.version and not group.changes):
                change = self._change(group, self._registering(group, claim, topics))
            else:
                need_full = bool(group.changes) or group.version != claim.version
        leader_address = group.addresses.get(LEADER_ID, "")
        leader = self._live.get(leader_address)
        before = self._remember(claim)
        self._note_removed(claim, now_ms)
        self.registered_count += 1
        ha_address = leader.ha_address if leader else ""
        if change is None or change.done:
            changed |= change is not None and change.changed
            return Registered(leader_address, ha_address, need_full, changed, before)
        return Registered(leader_address, ha_address, need_full, True, before, change)

    def refresh(
        self, address: str, broker_name: str, channel: Hashable, now_ms: int,
        timeout_ms: int | None = None, signed: bool = False,
    ) -> bool:  # fmt: skip
        """Record a heartbeat (322, 904). Return False if the broker must register because it is
        unknown, or because it is signed and this request is not."""
        live = self._live.get(address)
        if live is None or live.broker_name != broker_name or (live.signed and not signed):
            return False
        live.last_seen_ms = now_ms
        if timeout_ms:
            live.timeout_ms = timeout_ms
        self._use_channel(live, channel)
        return True

    def version_known(self, address: str, broker_name: str, broker_id: int) -> DataVersion | None:
        """Return the stored version of the broker's topics; None if the broker must register."""
        live, group = self._live.get(address), self._groups.get(broker_name)
        if live is None or group is None or group.addresses.get(broker_id) != address:
            return None
        return group.version if broker_id == LEADER_ID else live.version

    def unregister(self, address: str, broker_name: str, now_ms: int, signed: bool = False) -> bool:
        """Remove a broker (104). Raises RegistrationRefused if it is signed and this is not."""
        live = self._live.get(address)
        if live is None or live.broker_name != broker_name:
            return False
        if live.signed and not signed:
            raise _unsigned(f"{address} of {broker_name} registered signed")
        self._remove(live, now_ms)
        return True

    def channel_closed(self, channel: Hashable, now_ms: int) -> list[LiveBroker]:
        removed = [self._live[address] for address in self._channels.get(channel, ())]
        for live in removed:
            self._remove(live, now_ms)
        return removed

    def expire(self, now_ms: int) -> list[LiveBroker]:
        """Drop and return silent brokers, at most EXPIRED_MAX."""
        silent = (b for b in self._live.values() if now_ms - b.last_seen_ms > b.timeout_ms)
        removed = list(islice(silent, EXPIRED_MAX))
        for live in removed:
            self._remove(live, now_ms)
        for group in self._groups.values():
            self._forget_claim(group, now_ms)
        return removed

    # --- from administrators

    def delete_topic(self, topic: str, cluster: str = "", signed: bool = False) -> int:
        """Delete a topic on a cluster or everywhere; return the number of its groups.

        Signed groups keep the topic unless this is `signed`, because they register their topics
        themselves. The topic returns with a full registration or with a changed topic in a delta.
        """
        groups = [
            group
            for group in self._groups_of.get(topic, ())
            if not group.gone
            and (not cluster or group.cluster == cluster)
            and (signed or not group.signed)
        ]
        for group in groups:
            group.digest = b""
            self._drop_topic(group, topic, {})
        return len(groups)

    def put_queues(self, broker_name: str, config: TopicConfig, signed: bool = False) -> None:
        """Set a topic's queues on a known group, until its next full registration. Raises
        RegistrationRefused at the limit of topics, and for a signed group unless this is
        `signed`."""
        group = self._groups.get(broker_name)
        if group is None:
            return
        self._check_change(group, signed)
        limits = self._limits
        if config.topic not in self._groups_of and len(self._groups_of) >= limits.topics_max:
            raise _full(limits.topics_max, "topics")
        if config.topic not in group.topics and self.topic_entry_count >= limits.topic_entries_max:
            raise _full(limits.topic_entries_max, "topics of groups")
        group.digest = b""
        finish(self._putting(group, [config]))

    def set_writable(self, broker_name: str, writable: bool, signed: bool = False) -> int:
        """Set the write permission of all topics of a group; return their number.

        Lasts until the next full registration, or for a single topic until its next change. Raises
        RegistrationRefused for a signed group unless this is `signed`.
        """
        group = self._groups.get(broker_name)
        if group is None:
            return 0
        self._check_change(group, signed)
        group.digest = b""
        self._change(group, self._setting_writable(group, writable))
        return len(group.topics)

    def under_way(self, broker_name: str) -> TopicChange | None:
        """Return the last pending change of a group's topics, or None."""
        group = self._groups.get(broker_name)
        return group.changes[-1] if group is not None and group.changes else None

    # --- queries

    def queues(self, topic: str) -> dict[str, QueueData] | None:
        """Return queues by broker name; None for an unknown topic."""
        return {group.name: data for group, data in self.topic_entries(topic)} or None

    def topic_entries(self, topic: str) -> Iterator[tuple[BrokerGroup, QueueData]]:
        groups = self._groups_of.get(topic, ())
        return ((group, group.topics[topic]) for group in groups if not group.gone)

    def group(self, broker_name: str) -> BrokerGroup | None:
        """Return the group, which must not be changed, or None."""
        return self._groups.get(broker_name)

    def was_removed(self, broker_name: str) -> bool:
        """Return whether the last group of that name was removed from the cluster."""
        return self._group_ids.get(broker_name) in self._removed

    def groups(self) -> Iterator[BrokerGroup]:
        return iter(self._groups.values())

    def brokers(self, broker_name: str) -> Iterator[LiveBroker]:
        """Yield all addresses of a group, including unlisted brokers."""
        group = self._groups.get(broker_name)
        return iter(group.live.values() if group is not None else ())

    def is_signed_http(self, http_address: str) -> bool:
        """Return whether a signed broker has registered this node API."""
        return any(o.signed and o.http_address == http_address for o in self._live.values())

    def watch(self, watcher: Callable[[BrokerGroup], None]) -> None:
        """Call `watcher(group)` after each change of a group's addresses."""
        self._watchers.append(watcher)

    def watch_topics(self, watcher: Callable[[str], None]) -> None:
        """Call `watcher(topic)` after each added, removed or changed topic."""
        self._topic_watchers.append(watcher)

    def topics(self) -> Iterator[str]:
        return filter(self.has_topic, self.names())

    def names(self) -> list[str]:
        """Return all topics, and some that were just removed (`has_topic`)."""
        return list(self._groups_of)

    def has_topic(self, topic: str) -> bool:
        return not all(group.gone for group in self._groups_of.get(topic, ()))

    @property
    def topic_count(self) -> int:
        return len(self._groups_of)

    @property
    def topic_entry_count(self) -> int:
        """Return the number of pairs of topic and group."""
        return self._topic_entry_count

    @property
    def broker_count(self) -> int:
        return len(self._live)

    @property
    def signed_broker_count(self) -> int:
        return self._signed_count

    # --- internal

    def _remember(self, claim: Registration) -> str:
        """Store the group id of the name; return the previous id if it differs."""
        if not claim.group_id:
            return ""
        before = self._group_ids.pop(claim.broker_name, "")
        if len(self._group_ids) >= GROUP_IDS_MAX:
            del self._group_ids[next(iter(self._group_ids))]  # the name with the oldest id
        self._group_ids[claim.broker_name] = claim.group_id
        if before in ("", claim.group_id):
            return ""
        self.new_group_id_count += 1
        return before

    def _check_signed(self, claim: Registration, group: BrokerGroup | None) -> None:
        if claim.signed:
            return
        if self._signed_only:
            raise _unsigned("only signed registrations are taken (registrationsMustBeSigned)")
        if group is not None and group.signed:
            raise _unsigned(f"the name {group.name} is held by signed brokers")
        live = self._live.get(claim.address)
        if live is not None and live.signed:
            raise _unsigned(f"{claim.address} of {live.broker_name} registered signed")

    def _check_removed(self, claim: Registration, now_ms: int) -> None:
        """Reject a group that was removed, and drop a broker of it that registered without an id.
        An unsigned report has no effect on a signed claim."""
        signed = self._removed.get(claim.group_id)
        if signed is None or (claim.signed and not signed):
            return
        live = self._live.get(claim.address)
        if live is not None and live.broker_name == claim.broker_name:
            self._remove(live, now_ms)
        text = f"[REMOVED] group id {claim.group_id} of {claim.broker_name} left the cluster"
        raise RegistrationRefused(text, ResponseCode.ILLEGAL_OPERATION)

    def _note_removed(self, claim: Registration, now_ms: int) -> None:
        """Store the ids of removed groups that a leader reports, and drop their listed brokers;
        above REMOVED_GROUPS_MAX the oldest id is dropped."""
        if claim.broker_id != LEADER_ID:
            return
        for group_id in claim.removed:
            before = self._removed.pop(group_id, None)
            self._removed[group_id] = signed = bool(before) or claim.signed
            if len(self._removed) > REMOVED_GROUPS_MAX:
                del self._removed[next(iter(self._removed))]
            if before == signed:
                continue
            groups = [group for group in self._groups.values() if group.group_id == group_id]
            for live in [live for group in groups for live in group.live.values()]:
                if live.signed <= signed:
                    self._remove(live, now_ms)

    def _check_group(
        self, claim: Registration, group: BrokerGroup | None, now_ms: int
    ) -> BrokerGroup | None:
        """Reject a broker without the reserved group id. Return the name's group; None if
        the claim's address was the last of it, under a different id."""
        if group is None or group.group_id in ("", claim.group_id) or claim.any_group:
            return group
        live = self._live.get(claim.address)
        if claim.group_id and live is not None and live.broker_name == group.name:
            self._remove(live, now_ms - CLAIM_MS)  # its claim to lead ends at once
            if group.name not in self._groups:
                return None
        takes = claim.signed and not group.signed and claim.broker_id == LEADER_ID
        known = not claim.group_id and group.addresses.get(claim.broker_id) == claim.address
        if takes or known:
            return group
        leader = group.addresses.get(LEADER_ID, "")
        reported = f"is of group id {claim.group_id}" if claim.group_id else "knows no group id"
        text = (
            f"[OTHER_GROUP] {claim.address} {reported}; "
            f"{leader or next(self.brokers(group.name)).address} holds the name {group.name} for "
            f"group id {group.group_id}: two groups must not share a brokerName, give one of them "
            "another"
        )
        raise RegistrationRefused(text, ResponseCode.ILLEGAL_OPERATION, leader, group.term)

    def _check_change(self, group: BrokerGroup, signed: bool) -> None:
        if group.signed and not signed:
            raise _unsigned(f"the name {group.name} is held by signed brokers")

    def _forget_claim(self, group: BrokerGroup, now_ms: int) -> None:
        """Drop the group's term CLAIM_MS after the loss of its claimant, and the reservation of the
        name without a signed broker."""
        if group.claim_ends_ms is None or now_ms < group.claim_ends_ms:
            return
        group.term, group.claimant, group.claim_ends_ms = 0, "", None
        group.signed = any(live.signed for live in group.live.values())

    def _hold(self, group: BrokerGroup, now_ms: int) -> bool:
        """Reserve the name at its first signed claim, drop unsigned brokers; True if changed."""
        group.signed = True
        strangers = [live for live in group.live.values() if not live.signed]
        for live in strangers:
            self._remove(live, now_ms)
        group.version, group.digest = None, b""
        return bool(strangers)

    def _check_term(self, claim: Registration, group: BrokerGroup | None) -> None:
        live = self._live.get(claim.address)
        if (
            live is not None
            and live.broker_name == claim.broker_name
            and claim.term < live.term
            and claim.signed <= live.signed
        ):
            text = f"[STALE_TERM] {claim.address} has registered with term {live.term} already"
            raise RegistrationRefused(text, ResponseCode.ILLEGAL_OPERATION, "", live.term)
        if group is None or claim.broker_id != LEADER_ID or (claim.signed and not group.signed):
            return
        leader = group.addresses.get(LEADER_ID, "")
        rival = claim.term == group.term > 0 and leader not in ("", claim.address)
        if claim.term < group.term or rival:
            text = (
                f"[STALE_TERM] {claim.address} claims to lead {group.name} in term {claim.term}; "
                f"term {group.term} is known, its leader is {leader or 'gone'}"
            )
            raise RegistrationRefused(text, ResponseCode.ILLEGAL_OPERATION, leader, group.term)

    def _check_master(self, claim: Registration, group: BrokerGroup | None, now_ms: int) -> None:
        """Reject a master while a second master of the name is connected."""
        if group is None or claim.broker_id != LEADER_ID or claim.term or group.term:
            return
        master = self._live.get(group.addresses.get(LEADER_ID, claim.address))
        if master is None or master.address == claim.address or claim.signed > master.signed:
            return
        if claim.address in group.addresses.values():
            return  # a slave, or a member of Apache's DLedger group, takes over
        silent = now_ms - master.last_seen_ms > master.timeout_ms
        if silent or claim.version.state_version > master.version.state_version:
            return
        text = (
            f"[OTHER_MASTER] {claim.address} registers as brokerId 0 of {group.name}, as"
            f" {master.address} does, which is there: give each master a brokerName of its own, a"
            " slave brokerRole=SLAVE, a Raft group's replicas enableDLegerCommitLog=true"
        )
        raise RegistrationRefused(text, ResponseCode.ILLEGAL_OPERATION, master.address)

    def _check_replica(self, claim: Registration, group: BrokerGroup | None, now_ms: int) -> None:
        """Reject a replica without a current leader if its id belongs to a connected replica."""
        if group is None or claim.broker_id == LEADER_ID:
            return
        leader = group.addresses.get(LEADER_ID, "")
        other = self._live.get(leader)
        if other is None or other.own_id != claim.broker_id:
            other = self._live.get(group.addresses.get(claim.broker_id, ""))
        if other is None or other.address == claim.address or claim.signed > other.signed:
            return
        reached = claim.follows and claim.term >= other.term
        if reached or now_ms - other.last_seen_ms > other.timeout_ms:
            return
        text = (
            f"[OTHER_REPLICA] {claim.address} registers as brokerId {claim.broker_id} of"
            f" {group.name} in term {claim.term}{'' if claim.follows else ' without a leader'},"
            f" as {other.address} does, which is there in term {other.term}: each replica has a"
            " dLegerSelfId of its own"
        )
        raise RegistrationRefused(text, ResponseCode.ILLEGAL_OPERATION, leader, group.term)

    def _check_brokers(self, claim: Registration) -> None:
        """Check the limits of brokers. Unsigned claims do not count against signed claims."""
        limits = self._limits
        count = len(self._live) if not claim.signed else self.signed_broker_count
        if claim.address not in self._live and count >= limits.brokers_max:
            text = f"[TABLE_FULL] {limits.brokers_max} brokers are registered"
            raise RegistrationRefused(text, ResponseCode.SYSTEM_BUSY)
        over_channel = self._channels.get(claim.channel, ())
        if claim.address not in over_channel and len(over_channel) >= BROKERS_PER_CHANNEL_MAX:
            text = f"[TABLE_FULL] {BROKERS_PER_CHANNEL_MAX} brokers came over this connection"
            raise RegistrationRefused(text, ResponseCode.SYSTEM_BUSY)
        group = self._groups.get(claim.broker_name)
        listed = group.addresses if group is not None else {}
        known = claim.broker_id in listed or claim.address in listed.values()
        lives = group.live if group is not None else {}
        many = len(listed) >= BROKERS_PER_GROUP_MAX and not known
        if many or (claim.address not in lives and len(lives) >= 2 * BROKERS_PER_GROUP_MAX):
            text = f"[TABLE_FULL] {claim.broker_name} has {BROKERS_PER_GROUP_MAX} brokers"
            raise RegistrationRefused(text, ResponseCode.SYSTEM_BUSY)

    def _check_topics(self, claim: Registration) -> list[TopicConfig] | None:
        """Check the limits of topics, return them. Unsigned claims do not count against signed."""
        if claim.topics is None:
            return None
        limits, group = self._limits, self._groups.get(claim.broker_name)
        topics = list(claim.topics)
        own = group.topics if group is not None else {}
        for names, used, count_max, subject in (
            (self._groups_of, len(self._groups_of), limits.topics_max, "topics"),
            (own, self.topic_entry_count, limits.topic_entries_max, "topics of groups"),
        ):
            room = count_max - used
            if claim.signed and len(topics) > room:
                held = sum(len(group.topics) for group in self._groups.values() if group.signed)
                room = count_max - held
            if len(topics) > room and sum(t.topic not in names for t in topics) > room:
                raise _full(count_max, subject)
        return topics

    def _list_address(self, claim: Registration, now_ms: int) -> bool:
        """List the address under its id only. Return True if the list changed."""
        live = self._live.get(claim.address)
        if live is not None and live.broker_name != claim.broker_name:
            self._remove(live, now_ms)  # the node moved to a different group
            live = None
        if live is None:
            live = self._live[claim.address] = LiveBroker(claim.address, claim.broker_name)
            self.groups_version += 1
        reached_before = live.http_address, live.peer, live.signed
        live.broker_id = claim.broker_id
        live.ha_address = claim.ha_address
        live.term = claim.term
        live.own_id = claim.own_id if claim.broker_id == LEADER_ID else 0
        live.version = claim.version
        live.timeout_ms = claim.timeout_ms
        live.last_seen_ms = now_ms
        live.http_address = claim.http_address
        live.peer = claim.peer
        self._signed_count += claim.signed - live.signed
        live.signed = claim.signed
        if reached_before != (live.http_address, live.peer, live.signed):
            self.groups_version += 1
        self._use_channel(live, claim.channel)

        group = self._groups.get(claim.broker_name)
        if group is None:
            group = BrokerGroup(claim.broker_name, claim.cluster)
            self._groups[claim.broker_name] = group
        group.live[claim.address] = live
        described = group.cluster, group.raft
        group.cluster = claim.cluster
        group.group_id = claim.group_id or group.group_id
        group.raft = claim.term > 0 or (group.raft and claim.broker_id != LEADER_ID)
        if claim.broker_id == LEADER_ID:
            group.term = claim.term
            group.claimant, group.claim_ends_ms = claim.address, None
        before = dict(group.addresses)
        addresses = {i: a for i, a in before.items() if a != claim.address}
        if live.own_id:
            addresses.pop(live.own_id, None)  # of its duplicate
        addresses[claim.broker_id] = claim.address
        if addresses != before or described != (group.cluster, group.raft):
            group.addresses = addresses
            self._forget_encoded(group)
        if addresses != before:
            self._tell(group)
        return addresses != before

    def _use_channel(self, live: LiveBroker, channel: Hashable) -> None:
        if live.channel == channel:
            return
        self._leave_channel(live)
        live.channel = channel
        if channel is not None:
            self._channels.setdefault(channel, set()).add(live.address)

    def _leave_channel(self, live: LiveBroker) -> None:
        members = self._channels.get(live.channel)
        if members is not None:
            members.discard(live.address)
            if not members:
                del self._channels[live.channel]

    def _remove(self, live: LiveBroker, now_ms: int) -> None:
        del self._live[live.address]
        self._signed_count -= live.signed
        self._leave_channel(live)
        group = self._groups[live.broker_name]
        del group.live[live.address]
        if group.claimant == live.address:
            group.claim_ends_ms = now_ms + CLAIM_MS
        addresses = {i: a for i, a in group.addresses.items() if a != live.address}
        group.addresses = addresses
        self._forget_encoded(group)
        if not addresses and not group.live:
            self._end(group)
        self._tell(group)

    def _end(self, group: BrokerGroup) -> None:
        """Remove a group without brokers from the routes, and its topics in steps."""
        del self._groups[group.name]
        group.gone = True
        self.topics_version += 1
        for change in group.changes:
            change.end(changed=False)
        group.changes.clear()
        self._change(group, self._dropping_all(group))

    def _forget_encoded(self, group: BrokerGroup) -> None:
        group.encoded = None
        self.groups_version += 1

    def _tell(self, group: BrokerGroup) -> None:
        for watcher in self._watchers:
            watcher(group)

    def topic_changed(self, topic: str) -> None:
        """Notify the watchers of a change of the topic's order configuration."""
        for watcher in self._topic_watchers:
            watcher(topic)

    # --- topics, in steps

    def _change(self, group: BrokerGroup, steps: Steps[bool]) -> TopicChange:
        """Queue a change behind the group's pending changes; apply a small change at once."""
        change = TopicChange(steps)
        if not group.changes and _advance(change, STEPS_AT_ONCE):
            return change
        group.changes.append(change)
        if len(group.changes) == 1:
            self._changing.append(group)
        if self._run is None:
            finish(self._making_changes())
        elif not self._is_running:
            self._is_running = True
            self._run(self._making_changes())
        return change

    def _making_changes(self) -> Steps[None]:
        """Apply all pending changes, a step per group in turn."""
        try:
            while self._changing:
                group = self._changing.popleft()
                if group.changes and _advance(group.changes[0], 1):
                    group.changes.popleft()
                if group.changes:
                    self._changing.append(group)
                yield
        finally:
            self._is_running = False

    def _registering(
        self, group: BrokerGroup, claim: Registration, topics: Sequence[TopicConfig]
    ) -> Steps[bool]:
        group.digest = b""
        if not claim.complete:
            changed = yield from self._putting(group, topics)
        elif claim.delta_base is None:
            changed = yield from self._replacing(group, topics)
            group.version = claim.version
        else:
            changed = yield from self._merging(group, topics)
            group.version = claim.version
        group.version_author = claim.address
        if claim.delta_base is None:
            group.digest = claim.digest
        return changed

    def _replacing(self, group: BrokerGroup, topics: Sequence[TopicConfig]) -> Steps[bool]:
        changed = yield from self._putting(group, topics)
        retained: set[str] = set()
        for start in range(0, len(topics), NAMES_PER_STEP):
            retained.update(config.topic for config in topics[start : start + NAMES_PER_STEP])
            yield
        if len(retained) == len(group.topics):
            return changed
        names, removed = list(group.topics), list[str]()
        for start in range(0, len(names), NAMES_PER_STEP):
            removed += [
                topic for topic in names[start : start + NAMES_PER_STEP] if topic not in retained
            ]
            yield
        yield from self._dropping(group, removed)
        return changed or bool(removed)

    def _merging(self, group: BrokerGroup, topics: Sequence[TopicConfig]) -> Steps[bool]:
        dead = [t.topic for t in topics if not t.read_queue_count and not t.write_queue_count]
        names = set(dead)
        changed = yield from self._putting(group, [t for t in topics if t.topic not in names])
        had = [topic for topic in dead if topic in group.topics]
        yield from self._dropping(group, had)
        return changed or bool(had)

    def _putting(self, group: BrokerGroup, topics: Sequence[TopicConfig]) -> Steps[bool]:
        changed = False
        # Shares equal objects, because most topics are alike
        shared: dict[QueueData, QueueData] = {}
        sets: SetChanges = {}
        for number, config in enumerate(topics, 1):
            data = QueueData(
                config.read_queue_count,
                config.write_queue_count,
                config.perm,
                config.sys_flag,
                config.message_type,
            )
            before = group.topics.get(config.topic)
            if before is None:
                topic = intern(config.topic)  # a copy for all groups
                groups = self._groups_of.get(topic, ())
                if all(other.gone for other in groups):
                    self.topics_version += 1
                self._groups_of[topic] = _with(groups, group, sets)
                self._topic_entry_count += 1
                group.topics[topic] = shared.setdefault(data, data)
            elif before != data:
                group.topics[config.topic] = shared.setdefault(data, data)
            if before != data:
                changed = True
                self.topic_changed(config.topic)
            if number % TOPICS_PER_STEP == 0:
                yield
        return changed

    def _setting_writable(self, group: BrokerGroup, writable: bool) -> Steps[bool]:
        shared: dict[QueueData, QueueData] = {}
        for number, topic in enumerate(list(group.topics), 1):
            old = group.topics.get(topic)
            if old is not None:
                perm = old.perm | PERM_WRITE if writable else old.perm & ~PERM_WRITE
                new = old._replace(perm=perm)
                group.topics[topic] = shared.setdefault(new, new)
                self.topic_changed(topic)
            if number % TOPICS_PER_STEP == 0:
                yield
        return True

    def _dropping_all(self, group: BrokerGroup) -> Steps[bool]:
        yield from self._dropping(group, list(group.topics))
        return True

    def _dropping(self, group: BrokerGroup, topics: Sequence[str]) -> Steps[None]:
        sets: SetChanges = {}
        for number, topic in enumerate(topics, 1):
            if topic in group.topics:
                self._drop_topic(group, topic, sets)
            if number % TOPICS_PER_STEP == 0:
                yield

    def _drop_topic(self, group: BrokerGroup, topic: str, sets: SetChanges) -> None:
        del group.topics[topic]
        self._topic_entry_count -= 1
        left = _without(self._groups_of[topic], group, sets)
        if left:
            self._groups_of[topic] = left
        else:
            del self._groups_of[topic]
        if not group.gone and all(other.gone for other in left):
            self.topics_version += 1
        self.topic_changed(topic)


# The changes of shared tuples by a group: id → the tuple, which thus lives, and its successor
SetChanges = dict[int, tuple[Groups, Groups]]


def _with(groups: Groups, group: BrokerGroup, sets: SetChanges) -> Groups:
    if id(groups) not in sets:
        sets[id(groups)] = groups, (*groups, group)
    return sets[id(groups)][1]


def _without(groups: Groups, group: BrokerGroup, sets: SetChanges) -> Groups:
    if id(groups) not in sets:
        sets[id(groups)] = groups, tuple(other for other in groups if other is not group)
    return sets[id(groups)][1]


def _advance(change: TopicChange, steps: int) -> bool:
    """Run some steps of a change; return whether it is complete."""
    for _ in range(steps):
        try:
            next(change.steps)
        except StopIteration as end:
            change.end(changed=end.value)
            return True
    return False


def _full(count_max: int, subject: str) -> RegistrationRefused:
    text = f"[TABLE_FULL] the limit of {count_max} {subject} would be passed"
    return RegistrationRefused(text, ResponseCode.SYSTEM_BUSY)


def _unsigned(why: str) -> RegistrationRefused:
    return RegistrationRefused(f"[SIGNED] {why}", ResponseCode.NO_PERMISSION)
