from __future__ import annotations

import pytest

from raftmq.dledger.raft.progress import PROBE, REPLICATE, STRANDED, Progress


def make(next_index: int = 11, messages_max: int = 3, bytes_max: int = 1000) -> Progress:
    return Progress("b", next_index, 0.0, messages_max, bytes_max, 300)


def replicating() -> Progress:
    progress = make()
    progress.sent(11, 60, 0.0)
    assert progress.acknowledged(11, 1.0)
    assert progress.state is REPLICATE
    return progress


def test_probing_follower_gets_one_request_at_a_time() -> None:
    progress = make()
    assert progress.may_send()
    progress.sent(20, 600, 0.0)
    assert not progress.may_send()
    assert progress.next_index == 11  # nothing is assumed to have arrived


def test_successful_probe_starts_the_pipeline() -> None:
    progress = replicating()
    assert (progress.match_index, progress.next_index) == (11, 12)


def test_append_window_is_limited_in_messages() -> None:
    progress = replicating()
    for index in (12, 13, 14):
        assert progress.may_send()
        progress.sent(index, 60, 0.0)
    assert not progress.may_send()
    progress.acknowledged(12, 2.0)
    assert progress.may_send()
    assert len(progress.inflight) == 2


def test_append_window_is_limited_in_bytes_and_always_admits_one_request() -> None:
    progress = replicating()
    progress.sent(12, 5000, 0.0)
    assert not progress.may_send()
    assert progress.window_bytes() == 0
    progress.acknowledged(12, 2.0)
    assert progress.may_send()
    assert progress.inflight_bytes == 0


def test_acknowledgement_frees_all_earlier_requests() -> None:
    progress = replicating()
    progress.sent(12, 60, 0.0)
    progress.sent(14, 120, 0.0)
    progress.acknowledged(13, 2.0)
    assert list(progress.inflight) == [(14, 120)]
    progress.acknowledged(14, 2.0)
    assert not progress.inflight


def test_repeated_acknowledgement_changes_nothing() -> None:
    progress = replicating()
    assert not progress.acknowledged(5, 2.0)
    assert (progress.match_index, progress.next_index) == (11, 12)


def test_refusals_of_pipelined_requests_after_the_first_are_ignored() -> None:
    progress = replicating()
    progress.sent(12, 60, 0.0)
    progress.sent(13, 60, 0.0)
    assert progress.rejected(12)
    progress.probe_from(12)
    assert not progress.rejected(13)  # the second one's
    progress.sent(13, 120, 0.0)
    assert not progress.rejected(12)
    assert progress.rejected(11) is False  # at match: older than what is proven
    assert progress.state is PROBE


def test_follower_is_stalled_only_after_a_time_out_without_durable_frames() -> None:
    progress = replicating()
    progress.sent(12, 60, now_ms=100.0)
    assert not progress.stalled(399.0, verified_index=11)
    assert progress.stalled(400.0, verified_index=11)
    assert not progress.stalled(400.0, verified_index=12)  # written: its disk is slow


def test_resend_pause_grows_until_an_acknowledgement_arrives() -> None:
    progress = replicating()
    for _ in range(10):
        progress.back_off_resend(4800)
    assert progress.resend_after_ms == 4800
    progress.sent(12, 60, 0.0)
    progress.acknowledged(12, 1.0)
    assert progress.resend_after_ms == 300


def test_stranded_follower_gets_no_requests() -> None:
    progress = make()
    progress.strand()
    assert progress.state is STRANDED
    assert not progress.may_send()


def test_probe_starts_above_the_match_index() -> None:
    with pytest.raises(AssertionError):
        replicating().probe_from(11)
