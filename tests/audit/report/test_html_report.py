"""An audit's page: every finding is on the pictures, at its place, and the page stays small."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftmq.audit.report.html_report import page
from raftmq.audit.report.report import AuditReport, CheckResult, Offender, StoreReport
from tests.pictures import assert_readable, pictures, tooltips, words_of

MS = 1_700_000_000_123  # 2023-11-14 22:13:20 UTC
STORES = tuple(StoreReport(f"n{n}", 1_000, 90_000, 80_000, 70_000, 12, 3) for n in range(3))
TIMELINE = ((MS, 5, 1_000), (MS + 60_000, 7, 30_000), (MS + 120_000, 6, 60_000))


def fault(name: str, *offenders: Offender) -> CheckResult:
    return CheckResult.of_faults(name, f"what {name} asks", offenders)


def report(*checks: CheckResult) -> AuditReport:
    return AuditReport("", STORES, {}, checks, 1.5, group="broker-a", timeline=TIMELINE)


def test_every_finding_with_a_position_is_on_both_pictures() -> None:
    checks = (
        fault("damage", {"store": "n1", "position": 2_000}, {"store": "n2", "position": 2_000}),
        fault("altered", {"first_position": 40_000, "copies": 1}),
        fault("index", {"store": "n0", "position": 1 << 60}, {"store": "n0", "position": 0}),
        fault("tables", {"store": "n0", "what": "not in the log"}),
    )
    text = page([report(*checks)], MS)
    assert_readable(text)
    where, when = pictures(text)
    assert sorted(tooltips(where, "mark")) == [
        "altered: first_position=40000, copies=1",  # no store alone has it: it stands in each
        "altered: first_position=40000, copies=1",
        "altered: first_position=40000, copies=1",
        "damage: store=n1, position=2000",
        "damage: store=n2, position=2000",
        "index: store=n0, position=0",
        f"index: store=n0, position={1 << 60}",
    ]
    assert sorted(tooltips(when, "mark")) == [
        "2023-11-14 22:13:20 UTC, damage: store=n1, position=2000",
        "2023-11-14 22:13:20 UTC, damage: store=n2, position=2000",
        "2023-11-14 22:13:20 UTC, index: store=n0, position=0",
        "2023-11-14 22:14:20 UTC, altered: first_position=40000, copies=1",
        f"2023-11-14 22:15:20 UTC, index: store=n0, position={1 << 60}",
    ]
    assert "what=not in the log" in text  # it has no place: the table says it


def test_a_damaged_position_does_not_press_the_stores_together() -> None:
    checks = fault("index", {"store": "n0", "position": 1 << 60})
    (where, _) = pictures(page([report(checks)], MS))
    bars = [part for part in where.iter("rect") if part.get("class") == "log"]
    assert len(bars) == 3
    assert min(float(bar.get("width", 0)) for bar in bars) > 800


def test_checks_that_name_the_same_place_do_not_hide_each_other() -> None:
    checks = [fault(f"check{n}", {"store": "n0", "position": 40_000}) for n in range(3)]
    found = pictures(page([report(*checks)], MS))
    assert len(found) == 2
    for picture in found:
        drawn = [part for part in picture.iter() if "mark" in part.get("class", "").split()]
        places = [part.get("d", "").split("m")[0] for part in drawn]
        assert len(set(places)) == len(checks)
        assert len({part.get("class") for part in drawn}) == len(checks)


def test_stores_say_where_they_end() -> None:
    where = pictures(page([report()], MS))[0]
    assert tooltips(where, "log") == [f"n{n}: bytes 1,000 to 90,000" for n in range(3)]
    assert tooltips(where, "commit") == ["commit: 80,000"] * 3
    assert tooltips(where, "agreed") == ["agreed up to: 70,000"] * 3


@pytest.mark.parametrize(
    ("span_s", "shown"),
    [
        (4, ["22:13:21", "22:13:22", "22:13:23", "22:13:24"]),
        (120, ["22:13:30", "22:13:45", "22:14:00", "22:14:15"]),
        (6 * 3_600, ["23:00", "2023-11-15", "01:00", "02:00", "03:00", "04:00"]),
        (4 * 86_400, ["2023-11-15", "12:00", "2023-11-16", "12:00"]),
        (40 * 86_400, ["2023-11-19", "2023-11-24", "2023-11-29", "2023-12-04"]),
    ],
)
def test_the_axis_has_round_times(span_s: int, shown: list[str]) -> None:
    timeline = ((MS, 5, 1_000), (MS + span_s * 1_000, 7, 30_000))
    text = page([replace(report(), timeline=timeline)], MS)
    assert_readable(text)
    times = [words for words in words_of(pictures(text)[1]) if words.count(":") + words.count("-")]
    assert times[1:][: len(shown)] == shown  # the first is the title


def test_ten_thousand_offenders_are_a_small_page_that_says_what_it_leaves_out() -> None:
    wrong = [{"store": f"n{n % 3}", "position": 1_000 + n} for n in range(10_000)]
    text = page([report(fault("damage", *wrong))], MS)
    assert_readable(text)
    assert "damage (20 of 10,000)" in text
    assert "and 9,980 more" in text


def test_a_page_of_many_groups_in_which_all_is_wrong_is_small() -> None:
    what = "x" * 200
    wrong = [{"store": f"n{n % 3}", "position": 1_000 * n, "what": what} for n in range(10_000)]
    checks = [fault(f"check{n}", *wrong) for n in range(30)]
    text = page([report(*checks) for _ in range(10)], MS)
    assert_readable(text)
    drawn = pictures(text)
    assert len(drawn) == 20  # two of each group
    for picture in drawn:
        said = [words.split(": ", 1)[0] for words in tooltips(picture, "mark")]
        assert {name.split(", ")[-1] for name in said} == {f"check{n}" for n in range(30)}
    assert "check7 (2 of 10,000)" in text
    assert "and 9,998 more" in text
