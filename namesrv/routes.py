"""The route table: which broker groups have which topics, and at which addresses. Pure.

Time is handed in (`now_ms`, any clock that does not go back); channels are opaque tokens.

Rules of registration (103):
- Id 0 is the master or leader, the only address clients write to. A broker that registers as 0
  replaces the address that was 0; an address is listed under one id only, so a node that changes
  its id is not listed twice. The replaced node stays unlisted until it registers again (the answer
  to 322 tells it to).
- Masters say no term, so a second one of a name is refused while the first is there: sends would go
  to both in turns, and each would have a part of the messages. One that is listed under another id
  takes over, as in Apache's DLedger groups. One that moves gets in when the first's channel is
  closed, or it was silent for its time-out. A higher `stateVersion` replaces at once: that is the
  epoch of a master that Apache's controller has chosen.
- Raft groups say their `term`. The highest term that claimed id 0 is kept; a claim with a lower
  term, or with the same term from another address while the first is listed, is refused
  (`RegistrationRefused`), and so is any registration older than what the same node said before. The
  term is forgotten with the group, when its last address goes, and CLAIM_MS after its claimant is
  gone: a claim outlives its connection by no more than that.
- A replica takes no id from another address that is there while it knows no leader, or said a lower
  term: two processes have one dLegerSelfId, and the one that no leader reaches is the stray. A
  leader says which id it has otherwise (`own_id`); that one is not free, either. A replica that
  moved gets in as soon as it follows its leader, or when its old connection is closed.
- Raft groups say their id, too. The first id that comes with a name holds it, for as long as a
  broker of that name is there. Brokers of another id are refused, whatever their term, and what
  such a broker's address registered before is dropped. Those that say no id are refused, too,
  unless they change no address (the id was found just now), or are of a version that tells none
  (`any_group`): these may be of the group, since a rolling upgrade mixes both kinds. A signed claim
  to lead takes the name from unsigned brokers, whatever their id. An id is no secret and proves
  nothing: it keeps apart groups that have one name by mistake. Who forges one gets no more than a
  forged term or address gave him; signatures, which cover it, are what helps against him.
- The last id of a name is remembered when all of its brokers are gone, and a registration with
  another one is taken in and told of (`Registered.group_id_before`): a group may have been founded
  anew at empty stores, without its messages, while nobody meant it.
- A claim may be `signed` (remoting.registration_proof). From the first signed claim to id 0 on the
  name is held: only signed registrations and signed change requests count for it; unsigned earlier
  registrations are dropped, whatever term they claimed. A name is held while its claim lasts or a
  signed broker of it is there. No other broker can take the address of a signed one. Names without
  signed claims follow the rules above, unless the table is `signed_only`.
- The table of topics is kept per group. The broker that registers as 0 replaces it; a follower's is
  taken only while the group has none (a name server that restarted during an election).
- A leader may send only what changed: a delta. It names the DataVersion it builds on (`base`); the
  body carries the version after it. If the group's version equals `base`, the delta is merged (a
  topic with no read and no write queues is removed from the group). If the group's version already
  equals the new one, the delta is a repetition and ignored. Otherwise liveness and ids count, the
  topics do not, and the answer says `need_full`: the broker sends the full table. Always sending
  full tables is correct, too.
- An Apache broker of version 5 sends its whole table and, when a topic was made, that one alone,
  without saying which it is. Its topics are added and changed, never dropped, as in Apache; and no
  version is kept for it, so that it is asked for the whole table again and again.

Liveness: a broker that says nothing for its time-out (120 s unless it names another) is dropped by
`expire`, and at once when the channel it last spoke on closes; the end of an older channel means
nothing.

Costs: a repeated registration of an unchanged table does not touch topics (`wants_topics` is asked
before the body is even read; a table without a version is compared by the body's digest). Sizes are
bounded by `RouteLimits`. Addresses and leadership change at once. Many topics change in steps, also
those of a group that goes (`run_with`); changes of one group are made in their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fair_scheduling import Steps, finish
from raftmq.remoting.registration import DataVersion, TopicConfig

LEADER_ID = 0
EXPIRY_MS = 120_000  # Apache's; four registrations of 30 s
CLAIM_MS = 30_000  # how long a claim to lead outlives its claimant: one registration period
BROKERS_PER_GROUP_MAX = 128  # listed ones; each event and route of a group names them all
BROKERS_PER_CHANNEL_MAX = 64  # one process is one broker; a container of Apache's has some
GROUP_IDS_MAX = 10_000  # remembered, of names that may be gone
PERM_WRITE = 2
TOPICS_PER_STEP = 64  # changed in a step; some .2 ms
NAMES_PER_STEP = 4_096  # looked at in a step
STEPS_AT_ONCE = 6  # smaller changes are made before their registration returns
EXPIRED_MAX = 200  # brokers dropped by one call of `expire`
NO_VERSION = DataVersion()
THIS_MACHINE = "localhost"  # the peer of a broker on the name server's own machine


class QueueData(NamedTuple):
    """A topic's queues on one group. perm bits: 4 read, 2 write, 1 inherit. `message_type`: the
    kind of messages that it is for; "" if the group named none."""

    read_queue_count: int
    write_queue_count: int
    perm: int
    sys_flag: int
    message_type: str = ""


@dataclass(frozen=True, slots=True)
class RouteLimits:
    """The bounds of the table; a registration that would exceed one is refused as a whole."""

    brokers_max: int = 10_000  # addresses
    topics_max: int = 1_000_000  # names, over all groups
    places_max: int = 5_000_000  # the same, each counted for every group that has it


@dataclass(frozen=True, slots=True)
class Registration:
    """One broker's registration. `topics` None: not read, because `wants_topics` said no."""

    cluster: str
    broker_name: str
    address: str
    broker_id: int
    ha_address: str = ""
    version: DataVersion = NO_VERSION
    topics: Iterable[TopicConfig] | None = None
    delta_base: DataVersion | None = None  # the topics are a delta on this version
    whole: bool = True  # False, and no delta: the topics may be all there are, or some
    term: int = 0  # 0: not a Raft group
    group_id: str = ""  # of its Raft group, in hex; "": it said none
    any_group: bool = False  # it cannot say an id, and may be of the group that holds the name
    follows: bool = True  # False: it says that it knows no leader
    own_id: int = 0  # of a Raft leader, when it does not lead; 0: not said
    timeout_ms: int = EXPIRY_MS
    channel: Hashable = None
    http_address: str = ""  # of the broker's node API
    peer: str = ""  # host that it was sent from, or THIS_MACHINE
    digest: bytes = b""  # of the body that had the topics
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Registered:
    """The result of a registration. Leader fields are "" while no leader is listed."""

    leader_address: str
    leader_ha_address: str
    need_full: bool  # send the full topic table
    changed: bool  # clients see another route now, or will when the topics have changed
    group_id_before: str = ""  # of the name, if this registration brought another one
    topics: TopicChange | None = None  # under way; None: made


class RegistrationRefused(RemotingError):
    """The registration contradicts what is known; nothing was changed."""

    def __init__(self, message: str, code: int, leader_address: str = "", term: int = 0) -> None:
        super().__init__(message, code=code)
        self.leader_address = leader_address
        self.term = term


@dataclass(slots=True)
class LiveBroker:
    """One address and when it was last heard of."""

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
    """A change of a group's topics that may take many steps."""

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
    """One broker name: its addresses by id, and its topics. When the last broker is gone, the group
    is, too; the next broker of that name founds another."""

    name: str
    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    group_id: str = ""  # of the Raft group that holds the name; "": none was said
    term: int = 0  # highest that claimed LEADER_ID
    claimant: str = ""  # address that claimed it
    claim_ends_ms: int | None = None  # None: its claimant is there
    signed: bool = False  # the claim, or one before it, was signed
    version: DataVersion | None = None  # of the topics; None: no table yet
    version_author: str = ""  # address that sent them
    digest: bytes = b""  # of the body that had all of them; b"": they were changed since
    topics: dict[str, None] = field(default_factory=dict)  # in an order that repeats
    raft: bool = False  # its brokers say terms: any of them may come to lead
    live: dict[str, LiveBroker] = field(default_factory=dict)  # listed under an id or not
    gone: bool = False  # its topics are no routes any more
    changes: deque[TopicChange] = field(default_factory=deque)  # of its topics, to be made


class RouteTable:
    """The route table; the module's docstring has its rules. Not thread-safe; one loop owns it."""

    def __init__(self, limits: RouteLimits | None = None, *, signed_only: bool = False) -> None:
        self._limits = limits or RouteLimits()
        self._signed_only = signed_only
        self._live: dict[str, LiveBroker] = {}
        self._groups: dict[str, BrokerGroup] = {}
        self._queues: dict[str, dict[BrokerGroup, QueueData]] = {}  # also of groups that are gone
        self._place_count = 0
        self._changing: deque[BrokerGroup] = deque()  # those with changes
        self._run: Callable[[Steps[None]], None] | None = None
        self._is_running = False
        self._channels: dict[Hashable, set[str]] = {}
        self._watchers: list[Callable[[BrokerGroup], None]] = []
        self._topic_watchers: list[Callable[[str], None]] = []
        self._group_ids: dict[str, str] = {}  # the last one of each broker name
        self.registered_count = 0  # registrations that were taken
        self.founded_anew_count = 0  # registrations that brought a name another group id
        self.topics_version = 0  # grows when a topic name appears or goes; for caches

    def run_with(self, run: Callable[[Steps[None]], None]) -> None:
        """Have large changes of topics made by `run(steps)`, which returns at once; without it they
        are made before the call that causes them returns."""
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
        """Return whether the topics in a registration of this version, or of a body with this
        digest, would be read."""
        group = self._groups.get(broker_name)
        if group is None or (signed and not group.signed):
            return True
        is_same_author = group.version_author == address
        if digest and group.digest == digest and is_same_author and broker_id == LEADER_ID:
            return False
        if group.version is None or version is None:
            return True
        return broker_id == LEADER_ID and (group.version != version or not is_same_author)

    def check(self, claim: Registration, now_ms: int) -> None:
        """Raises RegistrationRefused for much that `register` refuses whatever the topics are."""
        group = self._groups.get(claim.broker_name)
        if group is not None:
            self._forget_claim(group, now_ms)
        self._check_signed(claim, group)
        self._check_brokers(claim)

    def register(self, claim: Registration, now_ms: int) -> Registered:
        """Take in one registration. Raises RegistrationRefused, and then changes nothing, unless
        its address was registered here as of another group: then it is not any more."""
        if claim.broker_id < 0:
            text = f"brokerId {claim.broker_id} is negative"
            raise RegistrationRefused(text, ResponseCode.INVALID_PARAMETER)
        group = self._groups.get(claim.broker_name)
        if group is not None:
            self._forget_claim(group, now_ms)
        self._check_signed(claim, group)
        group = self._check_group(claim, group, now_ms)
        self._check_term(claim, group)
        self._check_master(claim, group, now_ms)
        self._check_replica(claim, group, now_ms)
        self._check_brokers(claim)
        topics = self._check_topics(claim)
        changed = self._place(claim, now_ms)
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
        """Note a sign of life (322, 904). Return False if the broker must register: it is unknown,
        or registered signed and this request is not."""
        live = self._live.get(address)
        if live is None or live.broker_name != broker_name or (live.signed and not signed):
            return False
        live.last_seen_ms = now_ms
        if timeout_ms:
            live.timeout_ms = timeout_ms
        self._use_channel(live, channel)
        return True

    def version_known(self, address: str, broker_name: str, broker_id: int) -> DataVersion | None:
        """Return the version of the broker's topics that this table holds; None if the broker must
        register (again)."""
        live, group = self._live.get(address), self._groups.get(broker_name)
        if live is None or group is None or group.addresses.get(broker_id) != address:
            return None
        return group.version if broker_id == LEADER_ID else live.version

    def unregister(self, address: str, broker_name: str, now_ms: int, signed: bool = False) -> bool:
        """Remove a broker that unregisters (104). Raises RegistrationRefused if it is signed and
        this request is not."""
        live = self._live.get(address)
        if live is None or live.broker_name != broker_name:
            return False
        if live.signed and not signed:
            raise _unsigned(f"{address} of {broker_name} registered signed")
        self._remove(live, now_ms)
        return True

    def channel_closed(self, channel: Hashable, now_ms: int) -> list[LiveBroker]:
        """Drop and return the brokers whose current channel this is."""
        removed = [self._live[address] for address in self._channels.get(channel, ())]
        for live in removed:
            self._remove(live, now_ms)
        return removed

    def expire(self, now_ms: int) -> list[LiveBroker]:
        """Drop and return brokers that were silent for too long, at most EXPIRED_MAX."""
        silent = (b for b in self._live.values() if now_ms - b.last_seen_ms > b.timeout_ms)
        removed = list(islice(silent, EXPIRED_MAX))
        for live in removed:
            self._remove(live, now_ms)
        for group in self._groups.values():
            self._forget_claim(group, now_ms)
        return removed

    # --- from administrators

    def delete_topic(self, topic: str, cluster: str = "", signed: bool = False) -> int:
        """Forget a topic, on one cluster or everywhere; return how many groups had it. Held groups
        are left out unless this is `signed`: they say themselves which topics they have.

        A group that registers its whole table, or this topic changed, brings it back.
        """
        groups = [
            group
            for group in self._queues.get(topic, ())
            if not group.gone
            and (not cluster or group.cluster == cluster)
            and (signed or not group.signed)
        ]
        for group in groups:
            group.digest = b""
            self._drop_topic(group, topic)
        return len(groups)

    def put_queues(self, broker_name: str, config: TopicConfig, signed: bool = False) -> None:
        """Give a topic queues on a group; nothing if the group is not known. Raises
        RegistrationRefused at the limit of topics, and for a held group unless this is `signed`.

        Lasts until the group registers its whole table.
        """
        group = self._groups.get(broker_name)
        if group is None:
            return
        self._check_change(group, signed)
        limits = self._limits
        if config.topic not in self._queues and len(self._queues) >= limits.topics_max:
            raise _full(limits.topics_max, "topics")
        if config.topic not in group.topics and self.place_count >= limits.places_max:
            raise _full(limits.places_max, "topics of groups")
        group.digest = b""
        finish(self._putting(group, [config]))

    def set_writable(self, broker_name: str, writable: bool, signed: bool = False) -> int:
        """Give or take the write permission of all topics of a group; return how many topics it
        has. Raises RegistrationRefused for a held group unless this is `signed`.

        Lasts until the group registers its whole table; for a single topic, until it is registered
        changed.
        """
        group = self._groups.get(broker_name)
        if group is None:
            return 0
        self._check_change(group, signed)
        group.digest = b""
        self._change(group, self._setting_writable(group, writable))
        return len(group.topics)

    def under_way(self, broker_name: str) -> TopicChange | None:
        """Return the last change of a group's topics that is not made yet; None if all are."""
        group = self._groups.get(broker_name)
        return group.changes[-1] if group is not None and group.changes else None

    # --- queries

    def queues(self, topic: str) -> dict[str, QueueData] | None:
        """Return queues by broker name; None for an unknown topic."""
        return {group.name: data for group, data in self.places(topic)} or None

    def places(self, topic: str) -> Iterator[tuple[BrokerGroup, QueueData]]:
        """Yield the groups that have a topic, and its queues there."""
        by_group = self._queues.get(topic, {})
        return ((group, data) for group, data in by_group.items() if not group.gone)

    def group(self, broker_name: str) -> BrokerGroup | None:
        """Return the group, not to be changed; None if it is unknown."""
        return self._groups.get(broker_name)

    def groups(self) -> Iterator[BrokerGroup]:
        return iter(self._groups.values())

    def brokers(self, broker_name: str) -> Iterator[LiveBroker]:
        """Yield every live address of a group, listed under an id or not; not to be changed."""
        group = self._groups.get(broker_name)
        return iter(group.live.values() if group is not None else ())

    def is_signed_http(self, http_address: str) -> bool:
        """Return whether a live broker has registered this node API, signed."""
        return any(o.signed and o.http_address == http_address for o in self._live.values())

    def watch(self, watcher: Callable[[BrokerGroup], None]) -> None:
        """Have `watcher(group)` called whenever the addresses of a group have changed."""
        self._watchers.append(watcher)

    def watch_topics(self, watcher: Callable[[str], None]) -> None:
        """Have `watcher(topic)` called whenever a topic came, went, or has other queues."""
        self._topic_watchers.append(watcher)

    def topics(self) -> Iterator[str]:
        return filter(self.has_topic, self.names())

    def names(self) -> list[str]:
        """Return the names of all topics, and of some that have just gone (`has_topic`)."""
        return list(self._queues)

    def has_topic(self, topic: str) -> bool:
        return not all(group.gone for group in self._queues.get(topic, ()))

    @property
    def topic_count(self) -> int:
        return len(self._queues)

    @property
    def place_count(self) -> int:
        """Return how many topics there are if each is counted for every group that has it."""
        return self._place_count

    @property
    def broker_count(self) -> int:
        return len(self._live)

    @property
    def signed_broker_count(self) -> int:
        return sum(live.signed for live in self._live.values())

    # --- inside

    def _remember(self, claim: Registration) -> str:
        """Remember the group id that came with the name; return the one before if it is another."""
        if not claim.group_id:
            return ""
        before = self._group_ids.pop(claim.broker_name, "")
        if len(self._group_ids) >= GROUP_IDS_MAX:
            del self._group_ids[next(iter(self._group_ids))]  # which was named longest ago
        self._group_ids[claim.broker_name] = claim.group_id
        if before in ("", claim.group_id):
            return ""
        self.founded_anew_count += 1
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

    def _check_group(
        self, claim: Registration, group: BrokerGroup | None, now_ms: int
    ) -> BrokerGroup | None:
        """Refuse a broker of another group than the one that holds the name. Return the name's
        group, None if the claim's address was the last of it, as a broker of another id."""
        if group is None or group.group_id in ("", claim.group_id) or claim.any_group:
            return group
        live = self._live.get(claim.address)
        if claim.group_id and live is not None and live.broker_name == group.name:
            self._remove(live, now_ms - CLAIM_MS)  # its claim to lead is void at once
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
        """Forget the group's term if its claimant is gone for long enough, and that the name is
        held if no signed broker of it is there either."""
        if group.claim_ends_ms is None or now_ms < group.claim_ends_ms:
            return
        group.term, group.claimant, group.claim_ends_ms = 0, "", None
        group.signed = any(live.signed for live in group.live.values())

    def _hold(self, group: BrokerGroup, now_ms: int) -> bool:
        """Hold the name after its first signed claim: drop what unsigned brokers registered in it.
        Return True if clients see another route now."""
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
        """Refuse a master while another one of its name is there."""
        if group is None or claim.broker_id != LEADER_ID or claim.term or group.term:
            return
        master = self._live.get(group.addresses.get(LEADER_ID, claim.address))
        if master is None or master.address == claim.address or claim.signed > master.signed:
            return
        if claim.address in group.addresses.values():
            return  # one of its slaves, or of Apache's DLedger group, takes over
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
        """Refuse a replica that has the id of another one, which is there, and that no leader, or
        an earlier one, has reached."""
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
        """Check the limits of brokers. Unsigned claims take no room of signed ones."""
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
        """Check the limits of topics; return them. Unsigned claims take no room of signed ones."""
        if claim.topics is None:
            return None
        limits, group = self._limits, self._groups.get(claim.broker_name)
        topics = list(claim.topics)
        own = group.topics if group is not None else {}
        for names, used, count_max, subject in (
            (self._queues, len(self._queues), limits.topics_max, "topics"),
            (own, self.place_count, limits.places_max, "topics of groups"),
        ):
            room = count_max - used
            if claim.signed and len(topics) > room:
                held = sum(len(group.topics) for group in self._groups.values() if group.signed)
                room = count_max - held
            if len(topics) > room and sum(t.topic not in names for t in topics) > room:
                raise _full(count_max, subject)
        return topics

    def _place(self, claim: Registration, now_ms: int) -> bool:
        """List the address under its id, and no other. Return True if that changed anything."""
        live = self._live.get(claim.address)
        if live is not None and live.broker_name != claim.broker_name:
            self._remove(live, now_ms)  # the node moved to another group
            live = None
        if live is None:
            live = self._live[claim.address] = LiveBroker(claim.address, claim.broker_name)
        live.broker_id = claim.broker_id
        live.ha_address = claim.ha_address
        live.term = claim.term
        live.own_id = claim.own_id if claim.broker_id == LEADER_ID else 0
        live.version = claim.version
        live.timeout_ms = claim.timeout_ms
        live.last_seen_ms = now_ms
        live.http_address = claim.http_address
        live.peer = claim.peer
        live.signed = claim.signed
        self._use_channel(live, claim.channel)

        group = self._groups.get(claim.broker_name)
        if group is None:
            group = BrokerGroup(claim.broker_name, claim.cluster)
            self._groups[claim.broker_name] = group
        group.live[claim.address] = live
        group.cluster = claim.cluster
        group.group_id = claim.group_id or group.group_id
        group.raft = claim.term > 0 or (group.raft and claim.broker_id != LEADER_ID)
        if claim.broker_id == LEADER_ID:
            group.term = claim.term
            group.claimant, group.claim_ends_ms = claim.address, None
        before = dict(group.addresses)
        addresses = {i: a for i, a in before.items() if a != claim.address}
        if live.own_id:
            addresses.pop(live.own_id, None)  # its double's
        addresses[claim.broker_id] = claim.address
        group.addresses = addresses
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
        self._leave_channel(live)
        group = self._groups[live.broker_name]
        del group.live[live.address]
        if group.claimant == live.address:
            group.claim_ends_ms = now_ms + CLAIM_MS
        addresses = {i: a for i, a in group.addresses.items() if a != live.address}
        group.addresses = addresses
        if not addresses and not group.live:
            self._end(group)
        self._tell(group)

    def _end(self, group: BrokerGroup) -> None:
        """Take a group without brokers out of the routes at once, and its topics in steps."""
        del self._groups[group.name]
        group.gone = True
        self.topics_version += 1
        for change in group.changes:
            change.end(changed=False)
        group.changes.clear()
        self._change(group, self._dropping_all(group))

    def _tell(self, group: BrokerGroup) -> None:
        for watcher in self._watchers:
            watcher(group)

    def topic_changed(self, topic: str) -> None:
        """Tell the watchers that a part of the route kept elsewhere has changed."""
        for watcher in self._topic_watchers:
            watcher(topic)

    # --- topics, in steps

    def _change(self, group: BrokerGroup, steps: Steps[bool]) -> TopicChange:
        """Make a change behind those of the group that are under way: at once if it is small."""
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
        """Make all changes that there are, a step of each group in turn."""
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
        if not claim.whole:
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
        shared: dict[QueueData, QueueData] = {}  # most topics are alike: keep one object of a kind
        for number, config in enumerate(topics, 1):
            data = QueueData(
                config.read_queue_count,
                config.write_queue_count,
                config.perm,
                config.sys_flag,
                config.message_type,
            )
            by_group = self._queues.get(config.topic)
            if by_group is None:
                by_group = self._queues[config.topic] = {}
            if by_group.get(group) != data:
                if all(other.gone for other in by_group):
                    self.topics_version += 1
                by_group[group] = shared.setdefault(data, data)
                changed = True
                self.topic_changed(config.topic)
            if config.topic not in group.topics:
                group.topics[config.topic] = None
                self._place_count += 1
            if number % TOPICS_PER_STEP == 0:
                yield
        return changed

    def _setting_writable(self, group: BrokerGroup, writable: bool) -> Steps[bool]:
        for number, topic in enumerate(list(group.topics), 1):
            by_group = self._queues.get(topic, {})
            if group in by_group:
                old = by_group[group]
                perm = old.perm | PERM_WRITE if writable else old.perm & ~PERM_WRITE
                by_group[group] = old._replace(perm=perm)
                self.topic_changed(topic)
            if number % TOPICS_PER_STEP == 0:
                yield
        return True

    def _dropping_all(self, group: BrokerGroup) -> Steps[bool]:
        yield from self._dropping(group, list(group.topics))
        return True

    def _dropping(self, group: BrokerGroup, topics: Sequence[str]) -> Steps[None]:
        for number, topic in enumerate(topics, 1):
            if topic in group.topics:
                self._drop_topic(group, topic)
            if number % TOPICS_PER_STEP == 0:
                yield

    def _drop_topic(self, group: BrokerGroup, topic: str) -> None:
        del group.topics[topic]
        self._place_count -= 1
        by_group = self._queues[topic]
        del by_group[group]
        if not by_group:
            del self._queues[topic]
        if not group.gone and all(other.gone for other in by_group):
            self.topics_version += 1
        self.topic_changed(topic)


def _advance(change: TopicChange, steps: int) -> bool:
    """Make some steps of a change; return whether it is made."""
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
