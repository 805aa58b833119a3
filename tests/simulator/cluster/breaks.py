"""The planted breaks, each with the load, the faults and the profile under which it shows.

Those that show too rarely here have a pure test each instead: tests/dledger/test_broken_core.py.

A simulator that misses one of them is worth nothing there: tests/simulator/test_cluster_breaks.py
holds that each is caught within some seeds.
"""

from __future__ import annotations

from tests.simulator.cluster import askedbreaks as asked
from tests.simulator.cluster import corebreaks as core
from tests.simulator.cluster import filteredbreaks as filtered
from tests.simulator.cluster import guestbreaks as guests
from tests.simulator.cluster import popbreaks as pops
from tests.simulator.cluster import repairbreaks as repair
from tests.simulator.cluster import retentionbreaks as retention
from tests.simulator.cluster import scalingbreaks as scaling
from tests.simulator.cluster import seenbreaks as seen
from tests.simulator.cluster import shellbreaks as shell
from tests.simulator.cluster.planting import (
    CUTS,
    DURABLE,
    KILLS,
    REFILLED,
    SLOW,
    SPLITS,
    Break,
)

ONCE = ("idempotent", "log")
UNSTABLE = ("kill_leader", "isolate", "split", "freeze", "cut_one_way")
FORGETFUL = ("wipe", "kill_leader", "isolate", "split")
AS_FOUNDED = {"operated": False, "refilled": False}
OPERATED = {"operated": True, "refilled": False}
SETTING_BACK = ("set_back", "set_back", "kill_leader", "isolate", "kill")
TAKING_PLACES = ("take_place", "take_place", "kill_leader", "isolate", "kill")
FLIPPING = ("flip_bits", "kill_leader", "isolate")
ROTTING = ("rot", "kill", "kill_leader", "power_cut_fragile", "isolate")
SPOILING = ("spoil_snapshot", "spoil_snapshot", "stop_planned")
LONGER = {"faults_s": 8.0, "durable": True, "half_healed": False}
REFILLS = REFILLED | {"operated": False}
POPS = ("pop", "log")
FILLED = {"filled": True, "operated": False, "replicas": 3}
LOSING_TIME = ("lose_time", "kill", "isolate")
KEPT = {"kept": True, "operated": False, "replicas": 3}
WAITING = ("log", "transactions", "pop")
ASKED = ("asked", "log")
FILTERED = ("filtered", "log")
SCALING = ("scaled",)
SCALED = {"scaled": True}
VISITED = {"guests": True, "operated": False, "replicas": 3}
BREAKS: tuple[Break, ...] = (
    Break(
        shell.message_before_durable_vote,
        faults=("slow_disk", "isolate", "kill", "kill"),
        profile=SLOW,
        first=31,
        long=True,
    ),
    Break(shell.sync_counted_as_async, faults=CUTS, profile=DURABLE, long=True),
    Break(
        shell.acknowledged_when_the_sync_begins,
        faults=("slow_disk", "power_cut_all"),
        profile=DURABLE | SLOW,
    ),
    Break(shell.sync_skipped, faults=CUTS, profile=DURABLE, long=True),
    Break(
        shell.failed_sync_ignored, faults=("fail_sync", "power_cut_all"), profile=DURABLE, first=2
    ),
    Break(
        shell.failed_sync_forgotten_by_a_restart,
        faults=("fail_sync", "start_twice", "wrong_store", "kill", "power_cut_all"),
        profile=DURABLE,
        first=8,
        long=True,
    ),
    Break(shell.names_unsynced, faults=CUTS, profile=DURABLE),
    Break(shell.applies_uncommitted, faults=SPLITS),
    Break(shell.reads_without_a_round, load=("metadata", "group"), faults=SPLITS, first=10),
    Break(shell.old_stores_believed, faults=SETTING_BACK, profile={"operated": False}, long=True),
    Break(shell.owners_believed, faults=TAKING_PLACES, profile=AS_FOUNDED),
    Break(shell.notes_taken_unchecked, faults=FLIPPING, first=253, long=True),
    Break(
        shell.notes_told_late, faults=SETTING_BACK, profile={"operated": False}, first=7, long=True
    ),
    Break(
        shell.notes_forgotten_by_a_restart,
        faults=SETTING_BACK,
        profile={"operated": False},
        first=19,
    ),
    Break(shell.promises_never_lost, faults=("wipe", *SPLITS), profile={"operated": False}),
    Break(shell.installer_skips_a_chunk, profile=REFILLED, long=True),
    Break(shell.install_without_topics, profile=REFILLED, long=True),
    Break(shell.store_not_locked, faults=("start_twice", "kill")),
    Break(shell.snapshot_ahead_of_the_log, load=("metadata", "group"), long=True),
    Break(shell.frames_not_dispatched),
    Break(shell.once_forgotten, load=ONCE, faults=("reset_connection", *KILLS), first=2),
    Break(
        shell.once_in_flight_unchecked,
        load=ONCE,
        faults=("reset_connection",),
        profile=SLOW,
        long=True,
    ),
    Break(
        shell.metadata_answered_at_once,
        load=("metadata", "group"),
        profile=SLOW,
        first=60,
        long=True,
    ),
    Break(shell.commits_answered_at_once, load=("group", "metadata"), long=True),
    Break(shell.offsets_read_beside_commits, load=("group", "log"), faults=SPLITS, long=True),
    Break(
        shell.commits_of_a_queue_overtake_each_other,
        load=("group", "log"),
        faults=SPLITS,
        long=True,
    ),
    Break(shell.commits_before_it_is_done, load=("locks", "log"), long=True),
    Break(shell.locks_not_logged, load=("locks", "log"), faults=SPLITS, long=True),
    Break(shell.locks_forgotten, load=("locks", "log")),
    Break(shell.lock_ends_with_the_connection, load=("locks", "log"), long=True),
    Break(shell.lock_ages_ten_times_as_fast, load=("locks", "log"), long=True),
    Break(shell.transaction_ended_twice, load=("transactions", "log"), long=True),
    Break(shell.halves_forgotten, load=("transactions", "log"), long=True),
    Break(shell.rollback_delivers, load=("transactions", "log")),
    Break(shell.delayed_early, load=("delayed", "log")),
    Break(shell.delayed_again_after_a_failover, load=("delayed", "log"), long=True),
    Break(shell.timers_lost, load=("delayed", "log"), long=True),
    Break(shell.retries_lost, load=("retries", "log")),
    Break(
        shell.stranger_taken,
        faults=("stranger", "kill"),
        profile=AS_FOUNDED | {"secret": False},
    ),
    Break(
        shell.group_id_unchecked,
        faults=("restore_beside", "foreign_group", "kill"),
        profile=AS_FOUNDED,
        long=True,
    ),
    Break(core.cuts_at_match, faults=UNSTABLE, first=11, long=True),
    Break(core.vote_not_saved, faults=UNSTABLE, long=True),
    Break(core.acknowledged_before_durable, profile=DURABLE | SLOW),
    Break(core.votes_counted_by_number, faults=UNSTABLE, long=True),
    Break(
        core.own_unsynced_copy_counted,
        faults=("slow_disk", "kill"),
        profile=DURABLE | SLOW,
        long=True,
    ),
    Break(core.votes_for_anybody, faults=UNSTABLE, first=3, long=True),
    Break(core.votes_twice, faults=UNSTABLE, profile=SLOW),
    Break(core.commits_unproven, faults=UNSTABLE, long=True),
    Break(core.elected_by_a_minority, faults=UNSTABLE),
    Break(core.recovering_votes_counted, faults=FORGETFUL, profile=AS_FOUNDED, long=True),
    Break(core.recovering_copies_counted, faults=FORGETFUL, profile=AS_FOUNDED),
    Break(
        core.certified_without_a_barrier, faults=FORGETFUL, profile=AS_FOUNDED, first=23, long=True
    ),
    Break(core.elected_by_all_but_one, faults=FORGETFUL, profile=AS_FOUNDED, first=2, long=True),
    Break(core.recovering_not_noted, faults=FORGETFUL, profile=AS_FOUNDED, first=5, long=True),
    Break(core.votes_in_one_slot, faults=("rot_votes", *UNSTABLE), profile=AS_FOUNDED, long=True),
    Break(
        core.page_cache_trusted,
        faults=("power_cut_fragile", "kill_leader", "isolate"),
        profile=AS_FOUNDED | {"durable": False},
    ),
    Break(core.configured_at_commit, faults=UNSTABLE, profile=OPERATED, first=3),
    Break(core.campaigns_as_a_learner, faults=UNSTABLE, profile=OPERATED, first=3, long=True),
    Break(core.configuration_forgotten_at_start, profile=OPERATED, first=1, long=True),
    Break(repair.patches_unsynced, faults=ROTTING, profile=AS_FOUNDED | DURABLE, long=True),
    Break(repair.frames_taken_unchecked, faults=FLIPPING, long=True),
    Break(repair.messages_taken_unchecked, faults=("flip_bits",), first=9, long=True),
    Break(repair.damage_cut, faults=ROTTING, profile=AS_FOUNDED, first=1),
    Break(repair.installs_no_queues, profile=REFILLS, long=True),
    Break(repair.installs_no_tables, profile=REFILLS, first=3),
    Break(repair.applies_twice, profile=REFILLS, long=True),
    Break(repair.installs_over_more, profile=REFILLS, long=True),
    Break(repair.snapshots_taken_unchecked, faults=SPOILING, profile=AS_FOUNDED | LONGER, first=2),
    Break(pops.pops_answered_before_they_are_logged, load=POPS, long=True),
    Break(pops.pops_acknowledged_in_memory, load=POPS, long=True),
    Break(pops.pops_never_again, load=POPS, long=True),
    Break(pops.pops_too_early, load=POPS),
    Break(pops.pops_in_flight_forgotten, load=POPS, long=True),
    Break(pops.pops_not_in_flight, load=POPS, long=True),
    Break(
        pops.pops_come_again_whatever_is_under_way,
        load=POPS,
        profile=SLOW,
        first=40,
        long=True,
    ),
    Break(pops.pops_void_handles_acknowledge, load=POPS, long=True),
    Break(retention.retention_takes_nothing, profile=FILLED),
    Break(retention.readers_behind_are_led_to_the_end, profile=FILLED, long=True),
    Break(retention.queues_keep_what_the_log_lost, profile=FILLED, long=True),
    Break(
        retention.disks_in_need_take_what_has_not_expired,
        faults=LOSING_TIME,
        profile=KEPT,
        first=1,
    ),
    Break(
        retention.messages_age_by_any_clock,
        faults=LOSING_TIME,
        profile=KEPT,
        first=1,
        long=True,
    ),
    Break(
        retention.clocks_lead_that_the_log_contradicts,
        faults=LOSING_TIME,
        profile=KEPT,
        first=2,
        long=True,
    ),
    Break(
        retention.popped_messages_go_with_any_trim,
        load=WAITING,
        profile=FILLED,
        first=1,
        long=True,
    ),
    Break(retention.halves_go_with_any_trim, load=WAITING, profile=FILLED, long=True),
    Break(guests.the_dead_stay_members, profile=VISITED, first=6),
    Break(
        guests.locks_of_the_dead_never_end,
        load=("locks", "log"),
        profile=VISITED,
        first=2,
        long=True,
    ),
    Break(
        guests.one_producer_is_asked_for_good,
        load=("transactions", "log"),
        profile=VISITED,
        first=3,
        long=True,
    ),
    Break(asked.batches_turned_round, load=ASKED, profile=AS_FOUNDED, long=True),
    Break(asked.resets_not_told, load=ASKED, profile=AS_FOUNDED),
    Break(
        asked.commits_taken_for_a_tools,
        load=ASKED,
        faults=("stop_planned", "kill_leader", "kill_name_server", "isolate"),
        profile=AS_FOUNDED,
        first=3,
        long=True,
    ),
    Break(asked.filters_let_all_through, load=ASKED, profile=AS_FOUNDED, long=True),
    Break(asked.index_begins_at_the_end, load=ASKED, profile=AS_FOUNDED, first=10, long=True),
    Break(asked.offsets_outlive_their_topic, load=ASKED, profile=AS_FOUNDED, long=True),
    Break(asked.messages_outlive_their_topic, load=ASKED, profile=AS_FOUNDED, long=True),
    Break(filtered.filters_turned_off_let_all_through, load=FILTERED, profile=AS_FOUNDED),
    Break(filtered.settings_answered_and_not_set, load=FILTERED, profile=AS_FOUNDED, long=True),
    Break(seen.bodies_altered_at_admission),
    Break(seen.keys_lost_when_delivered_later, load=("delayed", "log"), long=True),
    Break(seen.sends_refused_after_a_failover, long=True),
    Break(seen.snapshots_not_made),
    Break(seen.stops_in_part, faults=("stop_planned", "kill_leader"), long=True),
    Break(seen.restores_crash, faults=("restore_beside", "kill"), profile=AS_FOUNDED, long=True),
    Break(seen.pulls_not_told_of_messages),
    Break(seen.histories_too_long_to_judge, long=True),
    Break(scaling.deletions_are_not_recorded, load=SCALING, profile=SCALED, long=True),
    Break(scaling.new_leaders_drain_no_more, load=SCALING, profile=SCALED, long=True),
    Break(scaling.removed_with_a_message_left, load=SCALING, profile=SCALED, first=15, long=True),
    Break(
        scaling.removed_with_transactions_open,
        load=(*SCALING, "transactions"),
        profile=SCALED,
        long=True,
    ),
    Break(
        scaling.removed_with_popped_messages_left,
        load=(*SCALING, "pop"),
        profile=SCALED,
        first=14,
        long=True,
    ),
    Break(scaling.timers_are_moved_twice, load=SCALING, profile=SCALED, first=3, long=True),
    Break(scaling.ordered_topics_are_adopted, load=SCALING, profile=SCALED, long=True),
    Break(scaling.groups_register_before_they_have_joined, load=SCALING, profile=SCALED, first=2),
)
