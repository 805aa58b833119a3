"""The metrics of a broker at /metrics.

Families are named `rocketmq_…` (messages) and `raft_…` (consensus), with the labels `cluster`,
`broker` (brokerName, the group) and `node`. A scrape reads the broker's own tables. Only role
events and two latencies are kept here, observed once per group commit and once per fdatasync.
Nothing is done per message.

The ready leader or master reports the consumer lag of the `metricsSeriesMax` (group, topic) pairs
furthest behind, among the first LAG_QUEUES_MAX queues of the offset table. A metric counts the
omitted pairs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING

from raftmq.dledger.raft.messages import Role, RoleEvent
from raftmq.ops.logs import LINES_SUPPRESSED, suppressed_lines
from raftmq.ops.metrics import LAG_BOUNDS_S, Exposition, Families, LoopLag, Timings
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.metrics import add_limits, add_tls
from raftmq.remoting.server import RemotingServer
from raftmq.store.errors import StoreError

from ..consume.long_polling import HELD_PULLS_MAX
from .parts import Parts

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

LAG_QUEUES_MAX = 20_000  # per scrape, 6 ms of the loop; 2,000 series need 20 ms more
ROLES = ("starting", "repairing", "follower", "pre_candidate", "candidate", "leader")
DISK_STATES = ("ok", "slow", "stalled", "full", "unreadable", "failed")

# Present from the start, because Prometheus sees no increase in a series that first appears with a
# count.
SHOWN_AT_ZERO = {(int(ResponseCode.SYSTEM_ERROR), "OUTCOME_UNKNOWN"): 0}
# Reasons of a lost leadership, by a part of the core's text.
REASONS = (
    ("no majority answers", "no_quorum"),
    ("too few replicas have recovered", "not_whole"),
    ("may not know its vote", "not_whole"),
    ("fdatasync has not returned", "disk_stalled"),
    ("no room", "disk_full"),
    ("reading the log failed", "disk_unreadable"),
    ("fdatasync of the log failed", "disk_failed"),
    ("writing failed", "disk_failed"),
    ("saving term and vote failed", "disk_failed"),
    ("removed from the group", "removed"),
    ("asks for votes", "higher_term"),  # also the end of a transfer
    ("is ahead", "higher_term"),
    ("leads", "higher_term"),
)
OTHER_REASON = "other"


class BrokerMetrics:
    """Collects a broker's metrics. `append` and `fsync` observe group commits and fdatasyncs."""

    def __init__(
        self, parts: Parts, server: RemotingServer, append: Timings, fsync: Timings
    ) -> None:
        self._server = server
        self.append = append
        self.fsync = fsync
        self.elections = 0
        self.leader_changes = 0
        self.leadership_lost = dict.fromkeys([*(name for _, name in REASONS), OTHER_REASON], 0)
        self._parts = parts
        self._lag = LoopLag(Timings(LAG_BOUNDS_S))
        self._was = Role.FOLLOWER
        self._term = 0
        self._leader: str | None = None
        self._exposition = Exposition(self._collect)

    def start(self) -> None:
        self._lag.start()

    def stop(self) -> None:
        self._lag.stop()

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the exposition and its content type, for the request's Accept header."""
        return self._exposition.render(accept)

    def role_changed(self, event: RoleEvent) -> None:
        if event.role is Role.CANDIDATE and (self._was, self._term) != (event.role, event.term):
            self.elections += 1
        if self._was is Role.LEADER and event.role is not Role.LEADER:
            reason = reason_of(event.reason)
            self.leadership_lost[reason] += 1
        if event.leader is not None and event.leader != self._leader:
            self.leader_changes += 1
            self._leader = event.leader
        self._was, self._term = event.role, event.term

    # ---- a scrape -------------------------------------------------------------------------

    def _collect(self) -> Iterable[Metric]:
        parts = self._parts
        config = parts.context.config
        families = Families(
            (
                ("cluster", config.broker_cluster_name),
                ("broker", config.broker_name),
                ("node", config.node_name),
            )
        )
        self._process(families)
        self._proofs(families)
        status = parts.context.log.status()
        self._flow(families)
        self._bounds(families)
        self._log(families)
        self._disk(families)
        self._retention(families)
        self._draining(families)
        self._lags(families)
        self._delayed(families)
        self._timers(families)
        self._transactions(families)
        self._pops(families)
        if config.is_classic:
            self._ha(families)
        else:
            self._raft(families, status)
            self._peers(families, status)
        return families.all

    def _process(self, families: Families) -> None:
        parts = self._parts
        config = parts.context.config
        families.gauges(
            "rocketmq_broker_info",
            "Description of this process; always 1.",
            ("mode", "engine", "flush", "role"),
            [
                (
                    (
                        "classic" if config.is_classic else "raft",
                        "" if config.is_classic else "dledger",
                        config.flush_disk_type,
                        config.broker_role if config.is_classic else "",
                    ),
                    1,
                )
            ],
        )
        _tell(families, [
            ("rocketmq_start_time_seconds", "Start of the process, Unix time.",
             parts.context.life.boot_ms / 1000),
            ("rocketmq_leading", "1 if this replica accepts sends: a ready leader, or a master.",
             float(parts.context.roles.leading)),
        ])  # fmt: skip
        families.histogram(
            "rocketmq_event_loop_lag_seconds",
            "Lateness of the event loop's timers.",
            self._lag.timings,
        )

    def _bounds(self, families: Families) -> None:
        """Collect the limits on what peers can make this process hold, and contained failures."""
        add_limits(families, "rocketmq", self._server.budgets, self._server.watch)
        families.counters(
            "rocketmq_contained_failures_total",
            "Failed work for clients during applies; see the log.",
            ("what",),
            [((what,), n) for what, n in sorted(self._parts.context.contained.counts.items())],
        )
        families.counter(
            "rocketmq_log_lines_suppressed_total", LINES_SUPPRESSED, suppressed_lines()
        )

    def _proofs(self, families: Families) -> None:
        gates = self._parts.gates.all
        _tell(families, [
            ("rocketmq_peers_prove_themselves",
             "1 if every peer at the Raft or HA port, in both directions, needs a proof.",
             float(self._parts.gates.proof_required)),
            ("rocketmq_peer_proofs_refused_total",
             "Connections of peers closed without a valid proof.",
             sum(gate.admissions.refused_count for gate in gates)),
            ("rocketmq_peers_unproven_total",
             "Connections of peers without a proof, despite a secret.",
             sum(gate.admissions.unproven_count for gate in gates)),
        ])  # fmt: skip

    def _flow(self, families: Families) -> None:
        parts = self._parts
        sends, pulls = parts.sends, parts.pulls
        server = self._server
        families.counters(
            "rocketmq_sends_total",
            "Sends answered, by response code and the tag of the remark.",
            ("code", "reason"),
            [
                ((name_of(code, ResponseCode), tag), n)
                for (code, tag), n in sorted((SHOWN_AT_ZERO | sends.results).items())
            ],
        )
        families.counters(
            "rocketmq_pulls_total",
            "Pulls answered, by response code.",
            ("code",),
            [((name_of(code, ResponseCode),), n) for code, n in sorted(pulls.results.items())],
        )
        families.counters(
            "rocketmq_requests_total",
            "Requests other than sends, by request code.",
            ("request",),
            [
                ((name_of(code, RequestCode),), n)
                for code, n in sorted(parts.guard.requests.items())
            ],
        )
        _tell(families, [
            ("rocketmq_messages_in_total", "Messages stored.", sends.put_count),
            ("rocketmq_repeated_sends_total",
             "Idempotent sends that were stored before: answered, not stored again.",
             sends.repeat_count),
            ("rocketmq_writer_repeats_total",
             "Repeated requests of exactly-once writers, not stored again.",
             sends.writers.repeat_count),
            ("rocketmq_messages_out_total", "Messages pulled.", pulls.get_count),
        ])  # fmt: skip
        families.histogram(
            "rocketmq_append_duration_seconds",
            "Time from the building of a group commit to its senders' answer: committed and "
            "applied (Raft), or as durable as configured (classic).",
            self.append,
        )
        received, sent = server.traffic_bytes
        _tell(families, [
            ("rocketmq_sends_waiting_bytes", "Waiting and running sends.", sends.held_bytes),
            ("rocketmq_sends_waiting_limit_bytes",
             "Limit above which sends are rejected: waitingBytesMax, or less during long waits.",
             sends.held_bytes_max),
            ("rocketmq_group_commits_inflight", "Group commits built and not applied.",
             sends.pending_count),
            ("rocketmq_pulls_held", "Pulls waiting for a message.", pulls.holds.count),
            ("rocketmq_pulls_held_limit", "Above, pulls are answered at once.", HELD_PULLS_MAX),
            ("rocketmq_received_bytes_total", "Bytes from clients.", received),
            ("rocketmq_sent_bytes_total", "Bytes to clients.", sent),
            ("rocketmq_connections", "Open client connections.", len(server.connections)),
            ("rocketmq_connections_accepted_total", "Client connections accepted.",
             server.accepted_count),
            ("rocketmq_connections_refused_total", "Client connections closed at the limit.",
             server.refused_count),
            ("rocketmq_connections_limit",
             "Limit of client connections: 20,000, or less with few file descriptors.",
             server.connections_max),
        ])  # fmt: skip
        add_tls(families, "rocketmq", parts.context.tls)
        families.gauge("rocketmq_clients", "Memberships of clients.", parts.clients.count)
        families.gauge(
            "rocketmq_writers", "Exactly-once writers.", len(parts.context.state.writers.writers)
        )
        families.gauge("rocketmq_topics", "Topics.", len(parts.context.state.topics.entries))

    def _log(self, families: Families) -> None:
        store = self._parts.context.store
        log = store.commitlog
        families.histogram(
            "rocketmq_commitlog_fsync_duration_seconds",
            "Duration of an fdatasync of the CommitLog, in its thread.",
            self.fsync,
        )
        _tell(families, [
            ("rocketmq_commitlog_min_offset_bytes", "Start of the CommitLog.", log.min_offset),
            ("rocketmq_commitlog_max_offset_bytes", "End of the CommitLog.", log.max_offset),
            ("rocketmq_commitlog_durable_offset_bytes",
             "Durable end of the CommitLog, by fdatasync.", log.durable_offset),
            ("rocketmq_dispatch_behind_bytes", "Bytes of log missing in the ConsumeQueues.",
             max(0, log.max_offset - store.derived.dispatched_offset)),
            ("rocketmq_index_behind_bytes", "Bytes of dispatched log missing in the index of keys.",
             max(0, store.derived.dispatched_offset - store.derived.indexed_offset)),
            ("rocketmq_queue_entries_damaged",
             "ConsumeQueue entries known to be wrong and not repaired yet.", len(store.repairs)),
            ("rocketmq_queue_entries_rewritten_total",
             "ConsumeQueue entries repaired from the log.", store.repairs.rewritten),
        ])  # fmt: skip

    def _disk(self, families: Families) -> None:
        parts = self._parts
        try:
            usage = parts.context.disk.usage()
        except OSError:  # visible by missing figures, and by raft_disk_state
            return
        _tell(families, [
            ("rocketmq_disk_size_bytes",
             "Size of the store's file system, without the reserve of root.", usage.size_bytes),
            ("rocketmq_disk_available_bytes", "Free space on it.", usage.available_bytes),
            ("rocketmq_disk_full", "1 while this replica rejects sends for missing disk space.",
             float(bool(parts.sends.disk_full))),
            ("rocketmq_disk_full_in_seconds",
             "Time until sends are rejected, at the rate of the last half hour; +Inf: never.",
             inf if (full_in_ms := parts.reliever.forecast.full_in_ms) is None
             else full_in_ms / 1000),
        ])  # fmt: skip

    def _draining(self, families: Families) -> None:
        drain = self._parts.drain
        _tell(families, [
            ("rocketmq_draining_seconds", "Time since this group is drained; 0: it is not.",
             drain.draining_s),
            ("rocketmq_drain_remaining_messages",
             "Unconsumed, delayed, timer, half and popped messages of a draining group, counted "
             "by its leader.", drain.remaining),
        ])  # fmt: skip

    def _retention(self, families: Families) -> None:
        retention, unexpired = self._parts.retention, self._parts.unexpired
        _tell(families, [
            ("rocketmq_clock_ahead_of_log_seconds",
             "Wall clock minus the log's own time; 0 while they agree.",
             retention.clock_lead_ms / 1000),
            ("rocketmq_clock_contradicted",
             "1 while the log contradicts the wall clock, which then ages no older messages.",
             float(bool(retention.contradiction))),
            ("rocketmq_unexpired_deleted_messages_total",
             "Messages deleted before their expiry (cleanFileForciblyEnable).",
             unexpired.messages),
            ("rocketmq_unexpired_deleted_unconsumed_messages_total",
             "Of these, messages that a consumer group, or every group, had not consumed.",
             unexpired.unconsumed),
            ("rocketmq_unexpired_deleted_bytes_total", "Their bytes in the CommitLog.",
             unexpired.size_bytes),
        ])  # fmt: skip

    def _lags(self, families: Families) -> None:
        parts = self._parts
        lags: list[tuple[int, str, str]] = []
        pairs = 0
        if parts.context.roles.leading:
            lags, pairs = lags_of(parts)
        most = heapq.nlargest(parts.context.config.metrics_series_max, lags)
        families.gauges(
            "rocketmq_consumer_lag_messages",
            "Messages between a group's offsets and the ends of a topic's queues, for topics "
            "that its connected consumers subscribe to.",
            ("group", "topic"),
            [((group, topic), lag) for lag, group, topic in most],
        )
        families.gauge(
            "rocketmq_consumer_lag_omitted",
            "(group, topic) pairs beyond the limits, without a lag.",
            pairs - len(most),
        )
        groups = parts.clients.consumers.values()
        differing = [one for one in groups if not one.is_consistent]
        series_max = parts.context.config.metrics_series_max
        families.gauges(
            "rocketmq_consumers_inconsistent",
            "Clients with different subscriptions than most of their group.",
            ("group",),
            [((one.name,), len(one.differences())) for one in differing[:series_max]],
        )

    def _raft(self, families: Families, status: dict[str, object]) -> None:
        families.states(
            "raft_role", "1 for the role of this replica.", "role", ROLES, str(status["role"])
        )
        families.counter(
            "raft_elections_total", "Elections started by this replica.", self.elections
        )
        families.counter(
            "raft_leader_changes_total", "Changes of the known leader.", self.leader_changes
        )
        families.counters(
            "raft_leadership_lost_total",
            "Times this replica stopped leading, by reason.",
            ("reason",),
            [((reason,), n) for reason, n in sorted(self.leadership_lost.items())],
        )
        figures = (
            ("term", "raft_term", "The current term."),
            ("commit_index", "raft_commit_index", "The last committed frame."),
            ("applied_index", "raft_applied_index", "The last applied frame."),
            ("first_index", "raft_first_index", "The log's first frame."),
            ("last_index", "raft_last_index", "The log's last frame."),
            ("durable_index", "raft_durable_index", "The last frame known to be durable here."),
            ("leader_ready", "raft_leader_ready", "1 if it leads and its no-op is applied."),
            (
                "election_backoff",
                "raft_election_backoff",
                "Factor on the election time-outs.",
            ),
            (
                "election_halved",
                "raft_election_halved",
                "1 if election time-outs are halved (calm times).",
            ),
            ("recovered", "raft_recovered", "0 while this replica may have lost promises."),
            (
                "set_back",
                "raft_store_rolled_back",
                "1 if it started on a store older than its promises.",
            ),
            ("commands_waiting", "raft_commands_waiting", "Commands waiting for their proposal."),
            ("damaged_count", "raft_log_damaged_frames", "Frames known to be damaged."),
            (
                "behind_bytes",
                "raft_behind_bytes",
                "Of a follower: bytes of log that it is behind its leader.",
            ),
        )
        for key, name, doc in figures:
            value = status.get(key)
            if isinstance(value, int):
                families.gauge(name, doc, value)
        _tell(families, [
            ("raft_installing",
             "1 while a snapshot install from the leader runs.",
             float(bool(status.get("installing")))),
            ("raft_standstill",
             "1 if its group has no leader although all voters are there.",
             float(bool(status.get("standstill")))),
            ("raft_leader_known", "1 if a leader is known.", float(status["leader"] is not None)),
            ("raft_failed", "1 if this member ended.", float(bool(status["failure"]))),
        ])  # fmt: skip
        if "disk_state" in status:
            families.states(
                "raft_disk_state",
                "1 for the state of this replica's disk.",
                "state",
                DISK_STATES,
                str(status["disk_state"]),
            )
        repaired, scrub = status.get("repaired"), status.get("scrub")
        if isinstance(repaired, int):
            families.counter("raft_log_repaired_frames_total", "Frames repaired.", repaired)
        if isinstance(scrub, dict):
            families.counter("raft_scrub_damaged_total", "Damage found by reading.", scrub["found"])
            families.counter(
                "raft_scrub_checked_bytes_total",
                "Bytes of log read by the scrubber.",
                scrub["checked_bytes"],
            )

    def _peers(self, families: Families, status: dict[str, object]) -> None:
        peers = status["peers"]
        assert isinstance(peers, dict)
        context, progress = self._parts.context, {}
        if not context.config.is_classic and context.log.raft.has_core:
            engine = context.log.raft
            progress = engine.core.progress
            families.gauge(
                "raft_voters",
                "Voters in this replica's configuration.",
                len(engine.core.membership.voters),
            )
            families.gauge(
                "raft_is_voter", "0 for a learner.", float(engine.core.membership.is_voter)
            )
        foreign = status.get("foreign")
        if isinstance(foreign, list):
            families.gauge(
                "raft_foreign_peers",
                "Replicas of foreign groups or with different founders, and ids of two "
                "processes, seen in the last half minute.",
                len(foreign),
            )
        parted = status.get("parted")
        if isinstance(parted, list):
            families.gauge(
                "raft_parted_peers", "Peers rejected because their history differs.", len(parted)
            )
        last = status.get("last_index")
        followers = [(name, p) for name, p in peers.items() if p.get("match") is not None]
        known = [(name, p) for name, p in peers.items() if p.get("ahead_ms") is not None]
        families.gauges(
            "raft_peer_connected",
            "1 if the peer is connected.",
            ("peer",),
            [((name,), float(peer["connected"])) for name, peer in peers.items()],
        )
        families.counters(
            "raft_peer_dropped_writes_total",
            "Writes to the peer dropped because it does not read.",
            ("peer",),
            [((name,), peer.get("dropped", 0)) for name, peer in peers.items()],
        )
        figures: tuple[tuple[str, str, dict[str, float]], ...] = (
            ("raft_peer_match_index", "Of a leader: last frame that the peer has acknowledged.",
             {name: peer["match"] for name, peer in followers}),
            ("raft_peer_lag_frames",
             "Of a leader: frames of its log that the peer has not acknowledged.",
             {name: last - p["match"] for name, p in followers if isinstance(last, int)}),
            ("raft_peer_behind_bytes",
                "Of a leader: bytes of log that the peer has not acknowledged.",
             {name: p["behind_bytes"] for name, p in followers if "behind_bytes" in p}),
            ("raft_peer_inflight_bytes",
             "Of a leader: bytes sent to the peer and not acknowledged.",
             {name: p.inflight_bytes for name, p in progress.items()}),
            ("raft_peer_clock_ahead_seconds", "Clock of the peer minus this replica's.",
             {name: p["ahead_ms"] / 1000 for name, p in known}),
            ("raft_peer_settings_differ",
             "Settings of the peer that should be equal on all replicas, and differ.",
             {name: len(p["settings_differ"]) for name, p in known}),
        )  # fmt: skip
        for family, doc, by_peer in figures:
            rows = [((name,), value) for name, value in by_peer.items()]
            families.gauges(family, doc, ("peer",), rows)

    def _delayed(self, families: Families) -> None:
        try:
            levels = self._parts.delays.view()
        except (OSError, StoreError):
            levels = []  # the disk's state is a separate metric
        families.gauges(
            "rocketmq_delayed_messages",
            "Waiting messages, by delay level.",
            ("level",),
            [((str(v.level),), v.max_offset - v.offset) for v in levels],
        )
        families.gauges(
            "rocketmq_delayed_late_seconds",
            "Lateness of the next message of a delay level.",
            ("level",),
            [((str(v.level),), v.late_ms / 1000) for v in levels],
        )

    def _timers(self, families: Families) -> None:
        try:
            view = self._parts.timers.view()
        except (OSError, StoreError):
            return
        _tell(families, [
            ("rocketmq_timer_messages",
             "Waiting timer messages, in this replica's view.",
             view.waiting),
            ("rocketmq_timer_late_seconds", "Lateness of the next timer message.",
             view.late_ms / 1000),
        ])  # fmt: skip
        families.counters(
            "rocketmq_timer_messages_total",
            "Timer messages that this process delivered, or stored again for retention.",
            ("result",),
            [
                (("delivered",), self._parts.timers.delivered_count),
                (("stored_again",), self._parts.timers.rolled_count),
            ],
        )

    def _transactions(self, families: Families) -> None:
        transactions = self._parts.transactions
        counts = transactions.counts
        families.gauge(
            "rocketmq_transactions_open",
            "Open half messages; 0 on followers.",
            self._parts.halves.open_count,
        )
        families.counters(
            "rocketmq_transactions_total",
            "Transactions ended, and checks sent to producers, by this process.",
            ("what",),
            [
                (("committed",), counts.committed),
                (("rolled-back",), counts.rolled_back),
                (("given-up",), counts.given_up),
                (("checked",), counts.checked),
            ],
        )

    def _pops(self, families: Families) -> None:
        parts, popping = self._parts, self._parts.popping
        table = parts.context.state.pops
        pairs = [(table.in_flight(*pair), pair) for pair in table.queues]
        most = heapq.nlargest(parts.context.config.metrics_series_max, pairs)
        families.gauges(
            "rocketmq_pop_in_flight_messages",
            "Messages that a group popped and has not acknowledged.",
            ("group", "topic"),
            [((group, topic), count) for count, (topic, group) in most],
        )
        families.gauge(
            "rocketmq_pop_batches", "Pops with unacknowledged messages.", table.batch_count
        )
        families.gauge(
            "rocketmq_pop_waiting", "Pops waiting for messages.", popping.pops.waiting.count
        )
        families.counters(
            "rocketmq_pop_messages_total",
            "Messages popped, acknowledged, redelivered, and dead letters, by this process.",
            ("what",),
            [
                (("popped",), popping.pops.popped_count),
                (("acknowledged",), popping.acks.acked_count),
                (("come-again",), popping.reviver.revived_count),
                (("dead",), popping.reviver.dead_count),
            ],
        )

    def _ha(self, families: Families) -> None:
        """Collect classic mode's figures from the view of this side."""
        parts = self._parts
        engine = parts.context.log.classic
        end = parts.context.store.commitlog.max_offset
        if engine.is_slave:
            _tell(families, [
                ("rocketmq_ha_connected", "Of a slave: 1 if it follows.",
                 float(engine.slave.connected)),
                ("rocketmq_ha_refused", "Of a slave: 1 if its log is no prefix of its master's.",
                 float(bool(engine.slave.refused))),
            ])  # fmt: skip
            behind = max(0, engine.follower.comparison.master_end - end)
        else:
            links = list(engine.master.links)
            _tell(families, [
                ("rocketmq_ha_slaves", "Of a master: slaves connected.", len(links)),
                ("rocketmq_ha_slaves_in_sync", "Of a master: slaves within haSlaveFallbehindMax.",
                 engine.master.in_sync),
                ("rocketmq_ha_sends_waiting", "Batches waiting for a slave.", len(engine.acks)),
            ])  # fmt: skip
            behind = max((end - link.acknowledged for link in links), default=0)
        families.gauge(
            "rocketmq_ha_fall_behind_bytes", "Lag of the slave that is furthest behind.", behind
        )


def _tell(families: Families, figures: Iterable[tuple[str, str, float]]) -> None:
    """Add families of one series, (name, documentation, value); names with _total count."""
    for name, doc, value in figures:
        add = families.counter if name.endswith("_total") else families.gauge
        add(name, doc, value)


def reason_of(text: str) -> str:
    """Return the class of a role event's reason."""
    return next((name for phrase, name in REASONS if phrase in text), OTHER_REASON)


def name_of(code: int, codes: type[RequestCode] | type[ResponseCode]) -> str:
    try:
        return codes(code).name
    except ValueError:
        return str(code)


def lags_of(parts: Parts) -> tuple[list[tuple[int, str, str]], int]:
    """Return (lag, group, topic) of the examined pairs, and the number of all pairs. Topics that a
    group no longer subscribes to are omitted."""
    state = parts.context.state
    offsets = state.offsets.offsets
    queue_of = parts.context.store.queues.queue
    lags: list[tuple[int, str, str]] = []
    room, pairs = LAG_QUEUES_MAX, len(offsets)
    for (topic, group), queues in offsets.items():
        room -= len(queues)
        if room < 0:
            break
        if parts.clients.has_left(group, topic):
            pairs -= 1
            continue
        lag = 0
        for queue_id in queues:
            queue = queue_of(topic, queue_id)
            if queue is not None:
                position, in_flight = state.progress(topic, group, queue_id)
                lag += in_flight + max(0, queue.max_offset - (position or 0))
        lags.append((lag, group, topic))
    return lags, pairs
