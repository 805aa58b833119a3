"""docs/capacity.md: its sizes are the formats', its limits the defaults, its metrics and keys are
there, and its example follows from its formulas."""

from __future__ import annotations

import math
import re

import pytest

from bench.scenarios import SCENARIOS
from raftmq.broker.admin.exactly_once_writers import WRITERS_MAX
from raftmq.broker.clients import CLIENTS_MAX
from raftmq.broker.config import OPTIONS
from raftmq.broker.consume.long_polling import HELD_PULLS_MAX
from raftmq.broker.consume.offset_commits import OFFSETS_MAX
from raftmq.broker.pop.requests import BATCHES_MAX
from raftmq.broker.replication.engine import FRAMES_IN_FLIGHT_MAX
from raftmq.broker.transactions.service import OPEN_MAX
from raftmq.chaos.cluster.topology import REPLICAS_MAX
from raftmq.store.dispatch import QUEUE_ENTRY_BYTES
from raftmq.store.frame import HEADER_SIZE_BYTES
from raftmq.store.index.index_limits import (
    ENTRY_SIZE_BYTES,
    HASH_SLOTS,
    INDEX_ENTRIES,
    SLOT_SIZE_BYTES,
)
from raftmq.store.record import encode_record
from tests.docs.pages import ROOT
from tests.store.make import PLAIN

TEXT = (ROOT / "docs" / "capacity.md").read_text()
KEY = re.compile(r"`([a-z]+[A-Z]\w+)`")
METRIC = re.compile(r"(?:raft|rocketmq|process)_[a-z_]+")
SHOWN = "commitLogMaxOffset"  # by mqadmin brokerStatus
UNITS = {"MiB": 1 << 20, "KiB": 1 << 10}


def section(heading: str) -> str:
    return TEXT[TEXT.index(f"\n## {heading}\n") :].split("\n## ")[1]


def rows(heading: str) -> list[list[str]]:
    lines = [line for line in section(heading).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,.]*\d|\d", text)]


def test_capacity_page_sizes_equal_the_formats() -> None:
    own = len(PLAIN.topic) + len(PLAIN.properties) + len(PLAIN.body)
    fixed = len(encode_record(PLAIN)) - own
    index = ENTRY_SIZE_BYTES + SLOT_SIZE_BYTES * HASH_SLOTS // INDEX_ENTRIES
    disk = section("Disk")
    assert f"| record | {fixed} + `topic` + `properties` + `body` |" in disk
    formula = f"{fixed} + topic + properties + body + {HEADER_SIZE_BYTES} / frame"
    assert f"{formula} + {QUEUE_ENTRY_BYTES} + {index} * keys" in disk


def test_capacity_page_limits_equal_the_defaults() -> None:
    limits = [row for row in rows("Limits") if KEY.search(row[-1])]
    assert len(limits) >= 5
    for _, reported, keys in limits:
        unit = next((UNITS[word] for word in UNITS if word in reported), 1)
        first = KEY.findall(keys)[0]
        assert numbers(reported)[0] * unit in (
            OPTIONS[first].default,
            OPTIONS[first].default * unit,
        )
    assert REPLICAS_MAX == 9 and "up to nine members" in TEXT


def test_capacity_page_fixed_limits_equal_the_constants() -> None:
    fixed = {
        "memberships (client and group) of a broker": CLIENTS_MAX,
        "offsets (groups × queues)": OFFSETS_MAX,  # noqa: RUF001
        "waiting pulls": HELD_PULLS_MAX,
        "open transactions": OPEN_MAX,
        "exactly-once writers": WRITERS_MAX,
        "unacknowledged pops": BATCHES_MAX,
    }
    reported = {row[0]: numbers(row[1]) for row in rows("Limits") if row[-1] == "fixed"}
    assert reported == {name: [limit] for name, limit in fixed.items()}
    assert FRAMES_IN_FLIGHT_MAX == 8 and "| a frame; eight may be uncommitted |" in TEXT


def test_capacity_page_keys_and_metrics_exist() -> None:
    known = (ROOT / "docs" / "metrics.md").read_text()
    assert not [name for name in METRIC.findall(TEXT) if f"`{name}" not in known]
    assert set(KEY.findall(TEXT)) - {SHOWN} <= set(OPTIONS)
    named = re.search(r"bench\n--scenario (\w+)` \(and ([^)]*)\)", TEXT)
    assert named is not None
    assert {named[1], *re.findall(r"`(\w+)`", named[2])} <= set(SCENARIOS)


def test_capacity_page_example_follows_from_its_formulas() -> None:
    reported = {row[0]: row[1] for row in rows("A worked example") if len(row) == 2}
    peak, average, hours, body, readers, replicas = 40_000, 10_000, 72, 1_024, 2, 3
    send_us, sync, read_us, frame = 5 + 2.5 * body / 1_024, 1.4, 1.7, 100
    assert numbers(reported["a send on the leader"])[2:] == [send_us, sync * send_us]
    cores = peak * (sync * send_us + readers * read_us) / 1e6
    assert numbers(reported["`leader_cores`"])[-1] == round(cores, 2)
    groups = math.ceil(cores / 0.5)
    assert numbers(reported["`groups`"])[-1] == groups
    record = 91 + 6 + 115 + body
    message = record + HEADER_SIZE_BYTES / frame + 20 + 21 * 2
    assert numbers(reported["`message`"])[-1] == round(message)
    disk = average * 3_600 * hours * message / groups / 0.75 + 2 * (1 << 30)
    assert f"= {disk / 1e12:.2f} TB" in reported["`disk` of a replica"]
    out = peak / groups * record * (replicas - 1 + readers) / 1e6
    assert f"= {out:.0f} MB a second" in reported["leader's network, of one group"]
    frames = average * 3_600 * hours / frame
    assert f"{frames / 1e6:.0f} million frames, {frames * 6 / 1e6:.0f} MB" in reported["memory"]


@pytest.mark.parametrize("name", ["performance", "pop", "proxy", "security"])
def test_capacity_page_figures_equal_those_of_the_cited_pages(name: str) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text()
    taken = {
        "performance": ["| 156 | 49 | 17 | 8.6 | 5.3 |", "| 4.7 | 4.9 | 7.2 | 22 | 160 | 3,680 |",
                        "| 2.9 | 345,000 |", "| 12.0 |", "| 8.7 |", "4.7 KiB", "20 to 40 bytes of",
                        "less than 6 until"],
        "pop": ["5.8", "a follower 1.0", "400 bytes"],
        "proxy": ["0.5 ms", "0.6 ms"],
        "security": ["10 µs of a request"],
    }  # fmt: skip
    assert not [text for text in taken[name] if text not in page]
