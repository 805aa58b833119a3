"""The foreign clients against a Raft group of three processes, its leader killed in the middle.

One wave, one kill: every scenario with one client at least, every client with what is its own;
those of allocation are in test_allocation.py. All of them, a kill for each: `make interop`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.figures import raft_group, summary
from tests.interop.matrix import NAMES, Pair, drivers, page_table, pairs, wave
from tests.interop.runs import Outcome
from tests.interop.scenarios import TABLE
from tests.interop.toolchain import CLIENTS

# Java's client of 5.3 does all there is, and Node's what Go's has not. The others hear of a new
# leader by routes that they ask for every 30 s (Go) or when a held pull of 30 s is given up (4.3,
# 4.9).
GO = (
    "send-sync",
    "send-batch",
    "consume-orderly",
    "tags",
    "resume",
    "retry",
    "transaction",
    "request-reply",
)
JAVA43 = ("send-sync", "resume", "transaction")
JAVA49 = ("consume-orderly", "lite-pull", "reset")
IN_ONE_ROOM = [row.name for row in TABLE if not row.rooms]
SELECTION = [
    *pairs(["java53"], IN_ONE_ROOM),
    *pairs(["node"], [name for name in IN_ONE_ROOM if name not in GO]),
    *pairs(["go"], GO),
    *pairs(["java49"], JAVA49),
    *pairs(["java43"], JAVA43),
]
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Outcome]]:
    directory = Path(tmp_path_factory.mktemp("clients"))
    with drivers(CLIENTS, directory) as started, raft_group(directory) as group:
        result = wave(group, started, SELECTION, "ci")
    yield {(outcome.scenario, outcome.client): outcome for outcome in result}


@pytest.mark.parametrize("pair", SELECTION, ids=lambda pair: f"{pair[0].name}-{pair[1]}")
def test_foreign_client_scenario_survives_leader_kill_without_loss(
    outcomes: dict[tuple[str, str], Outcome], pair: Pair
) -> None:
    row, client = pair
    outcome = outcomes[row.name, client]
    assert outcome.before, outcome
    assert outcome.after, outcome
    assert outcome.lost == 0, outcome
    assert outcome.offsets_lost == 0, outcome


def test_selection_has_every_scenario_and_client() -> None:
    assert {row.name for row, _ in SELECTION} == set(IN_ONE_ROOM)
    assert {client for _, client in SELECTION} == set(CLIENTS)


def test_compatibility_page_has_the_table_of_scenarios() -> None:
    text = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
    assert "\n".join(page_table()) in text
    assert set(NAMES) == set(CLIENTS)


def test_scenario_summary_adds_up(outcomes: dict[tuple[str, str], Outcome]) -> None:
    """The figures add up; what Java and Node were given twice is shown, not judged."""
    figures = summary(list(outcomes.values()), kills=1)
    print(figures)
    assert figures["offsets_lost"] == 0
    for client, row in figures["clients"].items():
        count = sum(of == client for _, of in SELECTION)
        assert row["scenarios"] == row["passed_before_kill"] == row["passed_after_kill"] == count
        assert row["acknowledged"] > 0
