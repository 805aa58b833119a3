"""Rules that are taken away on purpose (tests.simulator.cluster: corebreaks, repairbreaks): a
script or a test in which each of them decides comes out otherwise. The simulator catches most of
these breaks, too. The others want messages that come twice or out of order, which no connection
brings, or several rare events at once, for which a world costs more than they are worth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.dledger.raft import test_election_timeout as backoff
from tests.dledger.raft import test_membership as membership
from tests.dledger.raft import test_repair as repairing
from tests.dledger.script import Script
from tests.dledger.storage import test_startup_state as promises
from tests.simulator.cluster import corebreaks as core
from tests.simulator.cluster import repairbreaks as repair
from tests.simulator.cluster.planting import Plant

SCRIPTS = Path(__file__).parent / "scripts"
# Terms here and there, what is committed there, how many frames may be taken
# (tests/dledger/raft/test_repair.py).
UNCOMMITTED = ([1, 1, 3, 3], [1, 2, 4, 4], 0, 0, False)


@pytest.mark.parametrize(
    ("plant", "script"),
    [
        (core.cuts_at_match, "reordered_appends"),
        (core.acknowledged_to_an_earlier_leader, "late_ack_of_an_older_term"),
        (core.acknowledged_before_durable, "transfer"),
        (core.votes_counted_by_number, "duplicated_votes"),
        (core.old_term_committed_by_counting, "figure_8"),
        (core.own_unsynced_copy_counted, "slow_disk"),
        (core.votes_for_anybody, "log_repair_figure_7"),
        (core.commits_unproven, "reordered_appends"),
        (core.reads_confirmed_by_nobody, "read_index_on_a_deposed_leader"),
        (core.elected_by_a_minority, "election"),
        (core.recovering_votes_counted, "group_of_two"),
        (core.recovering_copies_counted, "lost_disk_commits_nothing"),
        (core.certified_alone, "lost_disk_commits_nothing"),
        (core.certified_without_a_barrier, "lost_disk_of_a_follower"),
        (core.elected_by_all_but_one, "forgotten_vote"),
        (core.campaigns_with_a_bad_disk, "stalled_disk_does_not_lead"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_disabled_rule_changes_the_simulated_run(plant: Plant, script: str) -> None:
    expected = (SCRIPTS / f"{script}.txt").read_text()
    assert Script().run(expected) == expected
    with plant():
        try:
            actual = Script().run(expected)
        except AssertionError:  # of the core itself
            return
    assert actual != expected


@pytest.mark.parametrize(
    ("plant", "test"),
    [
        (
            core.two_changes_at_once,
            membership.test_second_member_change_is_rejected_until_the_first_commits,
        ),
        (core.learners_counted, membership.test_copy_on_a_learner_commits_nothing),
        (
            core.removed_leader_counts_itself,
            membership.test_leader_that_is_removed_does_not_count_itself,
        ),
        (
            core.cut_configuration_kept,
            membership.test_configuration_is_in_force_from_append_until_truncation,
        ),
        (
            core.time_outs_never_grow,
            lambda: backoff.test_election_back_off_doubles_from_the_second_mistake_to_its_limit(
                2, 2
            ),
        ),
        (core.time_outs_never_shrink, backoff.test_election_back_off_ends_after_calm_times),
        (
            repair.repaired_with_uncommitted,
            lambda: repairing.test_repair_patch_has_the_frames_that_are_proven(*UNCOMMITTED),
        ),
        (
            repair.repaired_unchecked,
            repairing.test_repair_rejects_malformed_data_and_asks_another_peer,
        ),
        (repair.cut_without_a_note, promises.test_dropped_damaged_frames_make_the_replica_recover),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_disabled_rule_fails_its_test(plant: Plant, test: Callable[[], None]) -> None:
    test()
    with plant(), pytest.raises((AssertionError, pytest.fail.Exception)):
        test()
