"""An audit's page: every finding with its place and time, in a small page."""

from __future__ import annotations

from raftmq.audit.report.html_report import page
from raftmq.audit.report.report import AuditReport, CheckResult, Offender, StoreReport
from tests.pictures import assert_readable

MS = 1_700_000_000_123  # 2023-11-14 22:13:20 UTC
STORES = tuple(StoreReport(f"n{n}", 1_000, 90_000, 80_000, 70_000, 12, 3) for n in range(3))
TIMELINE = ((MS, 5, 1_000), (MS + 60_000, 7, 30_000), (MS + 120_000, 6, 60_000))


def fault(name: str, *offenders: Offender) -> CheckResult:
    return CheckResult.of_faults(name, f"what {name} asks", offenders)


def report(*checks: CheckResult) -> AuditReport:
    return AuditReport("", STORES, {}, checks, 1.5, group="broker-a", timeline=TIMELINE)


def test_html_report_locates_every_finding() -> None:
    checks = (
        fault("damage", {"store": "n1", "position": 2_000}, {"store": "n2", "position": 31_000}),
        fault("altered", {"first_position": 40_000, "copies": 1}),
        fault("index", {"store": "n0", "position": 1 << 60}, {"store": "n0", "position": 0}),
        fault("tables", {"store": "n0", "what": "not in the log"}),
    )
    text = page([report(*checks)], MS)
    assert_readable(text)
    for line in (
        "store=n1, position=2000, stored about 2023-11-14 22:13:20 UTC",
        "store=n2, position=31000, stored about 2023-11-14 22:14:20 UTC",
        "first_position=40000, copies=1, stored about 2023-11-14 22:14:20 UTC",
        f"store=n0, position={1 << 60}, stored about 2023-11-14 22:15:20 UTC",
        "store=n0, position=0, stored about 2023-11-14 22:13:20 UTC",
        "store=n0, what=not in the log",
    ):
        assert f"<code>{line}</code>" in text


def test_html_report_shows_the_ends_of_stores() -> None:
    text = page([report()], MS)
    numbers = "".join(f'<td class="n">{n}</td>' for n in ("1,000", "80,000", "70,000", "90,000"))
    for n in range(3):
        assert f"<tr><td>n{n}</td>{numbers}" in text


def test_html_report_of_10000_offenders_is_small_and_counts_the_rest() -> None:
    wrong = [{"store": f"n{n % 3}", "position": 1_000 + n} for n in range(10_000)]
    text = page([report(fault("damage", *wrong))], MS)
    assert_readable(text)
    assert "and 9,980 more" in text


def test_html_report_of_many_failing_groups_is_small() -> None:
    what = "x" * 200
    wrong = [{"store": f"n{n % 3}", "position": 1_000 * n, "what": what} for n in range(10_000)]
    checks = [fault(f"check{n}", *wrong) for n in range(30)]
    text = page([report(*checks) for _ in range(10)], MS)
    assert_readable(text)
    for n in range(30):
        assert text.count(f"what check{n} asks") == 10
    assert "and 9,998 more" in text
