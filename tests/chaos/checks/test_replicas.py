"""Leaders, replicas' bytes and log lines, with planted violations and lines that faults explain."""

from __future__ import annotations

import pytest

from raftmq.chaos.checks.verdict import Verdict
from tests.chaos.builder import clean
from tests.chaos.checks.judging import LEADERS, LOGS, REPLICAS, check, failed


def test_second_leader_in_a_term_is_found() -> None:
    builder = clean()
    builder.leader("n1", 1)
    assert failed(builder) == {LEADERS}
    assert check(builder, LEADERS).examples == ("term 1: n0, n1",)


def test_leader_terms_are_per_group_and_masters_have_none() -> None:
    builder = clean()
    builder.leader("n0", 3, "broker-a")
    builder.leader("n3", 3, "broker-b")
    builder.leader("m0", 0, "broker-a")
    builder.leader("m1", 0, "broker-a")
    assert failed(builder) == set()
    builder.leader("n4", 3, "broker-b")
    assert check(builder, LEADERS).examples == ("broker-b term 3: n3, n4",)


def test_equal_replicas_pass() -> None:
    builder = clean()
    builder.replicas(n0="ab", n1="ab", n2="ab")
    assert check(builder, REPLICAS).verdict is Verdict.PASS


def test_differing_replica_is_named_with_the_part() -> None:
    builder = clean()
    builder.replicas(n0="ab", n1="ax", n2="ab")
    assert failed(builder) == {REPLICAS}
    (example,) = check(builder, REPLICAS).examples
    assert example == "broker-a: n1 is unlike n0, n2 from the part at 512 on, below 1000"
    builder.replicas(n0="ab", n1="ab", n2="ab")  # compared again, so the last counts
    assert failed(builder) == set()


def test_differing_replicas_without_a_majority_are_all_named() -> None:
    builder = clean()
    builder.replicas(n0="ab", n1="xb", n2="ay")
    result = check(builder, REPLICAS)
    assert result.count == 2


@pytest.mark.parametrize(
    ("digests", "errors"), [({"n0": "ab"}, {}), ({"n0": "ab", "n1": "ab"}, {"n2": "no store"})]
)
def test_replicas_that_cannot_be_compared_are_undecided(
    digests: dict[str, str], errors: dict[str, str]
) -> None:
    builder = clean()
    builder.replicas(errors=errors, **digests)
    assert check(builder, REPLICAS).verdict is Verdict.UNKNOWN


def test_differing_replicas_fail_although_another_is_unreadable() -> None:
    builder = clean()
    builder.replicas(errors={"n2": "no store"}, n0="ab", n1="ac")
    assert check(builder, REPLICAS).verdict is Verdict.FAIL


def test_clean_logs_pass_and_a_log_failure_is_reported() -> None:
    builder = clean()
    builder.logs(100)
    assert check(builder, LOGS).verdict is Verdict.PASS
    builder.logs(100, ("n1", "AssertionError: next_pull"))
    assert failed(builder) == {LOGS}
    assert check(builder, LOGS).examples == ("n1: AssertionError: next_pull",)


@pytest.mark.parametrize(
    ("kind", "node", "line", "excused"),
    [
        ("disk-full", "n1", "member_failed node=n1 | OSError: [Errno 28]", True),
        ("disk-full", "n2", "member_failed node=n2 | OSError: [Errno 28]", False),
        ("disk-full", "n1", "AssertionError: next_pull", False),
        ("kill", "n1", "member_failed node=n1 | OSError: [Errno 28]", False),
        ("flip-header", "n1", "StoreDamaged: frame 7", True),
        ("kernel-power-cut", "n1", "StoreDamaged: frame 7", True),
        ("answers-lost", "n1", "StoreDamaged: frame 7", False),
    ],
)
def test_log_line_explained_by_an_injected_fault_is_excused(
    kind: str, node: str, line: str, excused: bool
) -> None:
    builder = clean()
    builder.fault(kind, "n1")
    builder.logs(100, (node, line))
    assert (failed(builder) == set()) is excused
    assert ("1 excused" in check(builder, LOGS).detail) is excused


@pytest.mark.parametrize(("seconds", "excused"), [(-9.0, False), (0.0, True), (9.0, True)])
def test_log_line_before_a_fault_is_not_excused_by_it(seconds: float, excused: bool) -> None:
    builder = clean()
    builder.wait(10)
    builder.fault("flip-header", "n1")
    (fault,) = builder.build().faults
    logged_ns = fault.invoked_ns + int(seconds * 1e9)
    builder.wait(10)
    builder.logs(100, ("n1", "StoreDamaged: frame 7"), logged_ns=logged_ns)
    assert failed(builder) == (set() if excused else {LOGS})
