"""The comparison's table and page, from the verdicts of runs."""

from __future__ import annotations

from pathlib import Path

import orjson

from raftmq.chaos.report.comparison import (
    HEAD,
    Candidate,
    comparison_page,
    recovery_rows,
    summary_rows,
)
from raftmq.chaos.run.engines import ENGINES
from raftmq.chaos.run.judge import judge
from tests.chaos.builder import HistoryBuilder, clean


def candidate(directory: Path, name: str, builder: HistoryBuilder) -> Candidate:
    directory.mkdir()
    path = directory / "history.jsonl"
    builder.inflicted(["flapping: no proxies"])
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in builder.records))
    result = judge(path, directory, lambda words: None)
    return Candidate(name, 1234.5, result.data, result.recoveries, directory.name)


def test_comparison_rows_and_page_show_what_each_engine_lost(tmp_path: Path) -> None:
    keeps, loses = clean(), clean()
    for builder in (keeps, loses):
        builder.fault("kill", "n0")
        builder.sent("x", 0, 2)
        builder.sent("y", 0, 3)
    keeps.consumed(0, (2, "x"), (3, "y"))
    loses.consumed(0, (3, "y"))
    loses.fetched(0, 1)
    keeps.drained()
    loses.drained()
    loses.fault("pause", "n0")
    result = [candidate(tmp_path / "a", "keeps", keeps), candidate(tmp_path / "b", "loses", loses)]

    first, second = (dict(zip(HEAD, row, strict=True)) for row in summary_rows(result))
    assert (first["engine"], first["calm msg/s"], first["acked and lost"]) == (
        "keeps",
        "1,234",
        "0",
    )
    assert first["verdict"] == "pass"
    assert (second["acked and lost"], second["offsets back"]) == ("1", "1")
    assert second["verdict"] == "fail"

    head, rows = recovery_rows(result)
    assert head == ("fault", "keeps", "loses")
    cells = {row[0]: row[1:] for row in rows}
    assert cells["kill:leader"][0].endswith("ms")
    assert cells["pause:leader"] == ("not run", "never in 1")

    page = comparison_page("Compared", "mqchaos compare & more", result)
    for text in ("keeps", "loses: acknowledged and lost, 1", "mqchaos compare &amp; more"):
        assert text in page
    assert "flapping: no proxies" in page
    assert "http" not in page.split("<script", 1)[0]


def test_comparison_has_the_four_engines() -> None:
    modes = {engine.shape.mode for engine in ENGINES.values()}
    assert modes == {"raft", "pysyncobj", "sync", "async"}
