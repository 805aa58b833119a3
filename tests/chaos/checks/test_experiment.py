"""Experiments that did not take place are INVALID, neither green nor hidden."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from raftmq.chaos.checks.experiment import CALM_SENDS_MIN, ENDS, GRACE_NS, PLANNED, was_run
from raftmq.chaos.checks.verdict import Check, Verdict, merge
from raftmq.chaos.cli import main
from raftmq.chaos.history.events import Fault, History, Outcome, Send
from tests.chaos.builder import clean

S = 1_000_000_000


def history(sends: list[tuple[int, bool]], faults: int = 0, planned: int | None = None) -> History:
    """Return a history of sends (second due, never made), and of faults at second 100, 200, …"""
    result = clean().build()
    result.sends[:] = [made(due_s, shed) for due_s, shed in sends]
    result.faults[:] = [
        Fault(
            "kill", ("n0",), 0, "", (100 + 100 * number) * S, (100 + 100 * number) * S + 1,
            number, "", healed_ns=(110 + 100 * number) * S,
        )
        for number in range(faults)
    ]  # fmt: skip
    if planned is not None:
        result.meta[PLANNED] = planned
    return result


def made(due_s: int, shed: bool) -> Send:
    send = clean().build().sends[0]
    send.due_ns = due_s * S
    send.shed = shed
    send.outcome = Outcome.FAIL if shed else Outcome.OK
    return send


CALM = [(1, False)] * CALM_SENDS_MIN
DURING = [(105, True)] * 40  # while the first fault is in effect


@pytest.mark.parametrize(
    ("sends", "faults", "planned", "says"),
    [
        (CALM, 1, 1, ""),
        (CALM, 1, None, ""),
        ([*CALM, *DURING], 1, 1, ""),  # no node answered, so none could be sent
        ([*CALM, (110 + GRACE_NS // S, True)], 1, 1, ""),
        ([*CALM, *[(1, True)] * 20], 1, 1, "17% of the sends that were due while no fault"),
        ([*CALM, *[(150, True)] * 20], 1, 1, "this machine cannot carry the load"),
        ([(105, False)] * 20 + [(105, True)] * 80, 1, 1, "80% of the sends were never made"),
        (CALM, 0, 3, "no fault struck"),
        (CALM, 0, 0, ""),
    ],
)
def test_experiment_without_its_faults_or_load_is_invalid(
    sends: list[tuple[int, bool]], faults: int, planned: int | None, says: str
) -> None:
    check = was_run(history(sends, faults, planned))
    assert check.verdict is (Verdict.INVALID if says else Verdict.PASS), check
    assert says in " ".join(check.examples)


def test_experiment_without_acknowledged_sends_is_invalid() -> None:
    result = history(CALM, 1, 1)
    for send in result.sends:
        send.outcome = Outcome.UNKNOWN
    assert was_run(result).examples == ("no send was acknowledged",)


@pytest.mark.parametrize("planned", [2, None], ids=["planned", "of an older history"])
def test_experiment_with_an_unhealed_fault_is_invalid(planned: int | None) -> None:
    """A failed replacement of a member is reported at the heal."""
    result = history(CALM, 2, planned)
    result.faults[1].healed_ns = 0
    check = was_run(result)
    assert check.verdict is (Verdict.INVALID if planned else Verdict.PASS)
    assert check.examples == (("kill of n0 was not healed",) if planned else ())


@pytest.mark.parametrize(("ends", "says_end"), [(True, True), (True, False), (False, False)])
def test_interrupted_run_is_invalid(tmp_path: Path, ends: bool, says_end: bool) -> None:
    builder = clean()
    if ends:
        builder.records[0] |= {ENDS: True}
    if says_end:
        builder.records.append({"type": "ok", "f": "end", "op": 1 << 40, "t_ns": 1, "p": "runner"})
    result = was_run(builder.build())
    assert result.verdict is (Verdict.INVALID if ends and not says_end else Verdict.PASS)
    assert ("the run was interrupted" in result.examples) is (ends and not says_end)


@pytest.mark.parametrize(
    ("scenario", "says"),
    [("kil:leader", "no scenario 'kil:leader'"), ("kill:n7", "there is no node n7; there are")],
)
def test_scenario_with_a_typing_error_is_rejected_before_anything_is_made(
    tmp_path: Path, scenario: str, says: str
) -> None:
    directory = tmp_path / "run"
    said = CliRunner().invoke(main, ["run", scenario, "--dir", str(directory)])
    assert said.exit_code == 2 and says in said.output, said.output
    assert not [*directory.glob("*")]  # it can be used for the run that was meant


def test_merged_verdict_is_fail_then_invalid_then_unknown() -> None:
    of = {verdict: Check("x", verdict, 0, "") for verdict in Verdict}
    assert merge(of.values()) is Verdict.FAIL
    del of[Verdict.FAIL]
    assert merge(of.values()) is Verdict.INVALID
    del of[Verdict.INVALID]
    assert merge(of.values()) is Verdict.UNKNOWN


def test_invalid_run_is_reported_in_report_verdict_and_watch(tmp_path: Path) -> None:
    builder = clean()
    builder.records[0] |= {"planned": 2}
    path = tmp_path / "history.jsonl"
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in builder.records))
    page = tmp_path / "report.html"
    said = CliRunner().invoke(main, ["report", str(path), "-o", str(page)])
    assert said.exit_code == 4, said.output
    assert "INVALID" in said.output and "no fault struck" in said.output
    assert '<span class="badge invalid">the experiment did not take place</span>' in (
        page.read_text()
    )
    assert orjson.loads((tmp_path / "verdict.json").read_bytes())["verdict"] == "invalid"
    # The live view shows the same.
    assert CliRunner().invoke(main, ["watch", str(path)]).exit_code == 4
