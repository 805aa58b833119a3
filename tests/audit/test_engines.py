"""Both engines say the same: the checks are those of tests/audit, the data a slice of theirs."""

from __future__ import annotations

import operator
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from raftmq.audit.api import AuditReport, run_audit
from raftmq.audit.engine import columns as F
from raftmq.audit.engine import spark_engine
from raftmq.audit.engine.choice import LOCAL, LOCAL_BYTES_MAX, SPARK, EngineOptions
from raftmq.audit.engine.columns import Window
from raftmq.audit.engine.frames import CORRUPT, Engine, EngineFailed, Frame, mapped
from raftmq.audit.engine.spark_engine import SparkEngine
from tests.audit.planted import HISTORY_KINDS, STORE_KINDS, Kind
from tests.audit.run import Run
from tests.audit.test_planted import PARTS, TOGETHER, planted, possible
from tests.audit.test_planted import sound as sound

pytestmark = pytest.mark.timeout(900)
SLICE = [("sound", (), 1), *TOGETHER[::4]]
ROWS: list[tuple[Any, ...]] = [
    ("a", 1, None, [5, 6]),
    ("a", None, "x'y", [7]),
    ("b", 3, "4F", []),
    ("b", 1, "g", [8]),
    (None, 2, "4f4B", None),
]
SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("number", pa.int64()),
        ("text", pa.string()),
        ("list", pa.list_(pa.int64())),
    ]
)
ONE = pa.schema([("name", pa.string()), ("one", pa.int32())])
NUMBER, TEXT, YES = F.col("number"), F.col("text"), F.lit(True)
IN_NAME = Window.partitionBy("name").orderBy("number", "text")
# Expressions of single rows.
SCALARS = {
    "equals": NUMBER == 1,
    "differs": ~(NUMBER != F.lit(1)),
    "between": (NUMBER > 1) & (NUMBER <= 3) | (NUMBER < 0) | (NUMBER >= 99),
    "sum": NUMBER + 1 - F.lit(3),
    "floor": F.floor(NUMBER / 2),
    "bits": NUMBER.bitwiseAND(1),
    "null": NUMBER.isNull(),
    "not_null": NUMBER.isNotNull(),
    "same": TEXT.eqNullSafe(F.lit(None).cast("string")),
    "in": NUMBER.isin(1, 3),
    "in_none": NUMBER.isin(),
    "starts": TEXT.startswith("x'"),
    "matches": TEXT.rlike("^([0-9A-F]{2})+$"),
    "quoted": F.concat(TEXT, F.lit("'\n\"")),
    "bytes": F.when(TEXT.rlike("^([0-9A-F]{2})+$"), F.unhex(TEXT)).otherwise(TEXT.cast("binary")),
    "hex": F.when(TEXT.rlike("^[0-9A-Fa-f]+$"), F.conv(F.substring(TEXT, -2, 2), 16, 10)),
    "cases": F.when(NUMBER == 1, "one").when(NUMBER.isNull(), "none").otherwise("more"),
    "no_case": F.when(NUMBER == 2, F.length(TEXT)),
    "first": F.coalesce(NUMBER, F.length("text"), F.lit(9)),
    "least": F.least(NUMBER, F.lit(2).cast("long")),
    "greatest": F.greatest(NUMBER, F.lit(2).cast("long")),
    "parts": F.split(F.coalesce(TEXT, F.lit("")), "\n"),
    "overlap": F.arrays_overlap(F.split("name", ","), F.array(F.lit("a"))),
    "size": F.size(F.array_intersect(F.split("name", ","), F.array(F.lit("a"), F.lit("z")))),
    "contains": F.array_contains(F.array(F.lit("a")), F.col("name")),
    "struct": F.struct("name", "number"),
    "lag": F.lag("number").over(IN_NAME),
    "lead": F.lead(NUMBER, 1).over(IN_NAME),
    "rank": F.row_number().over(IN_NAME),
    "before": F.max("number").over(IN_NAME.all_before()),
    "last": F.last_known(NUMBER).over(IN_NAME.all_before()),
}
AGGREGATES = {
    "rows": F.count("*"),
    "count": F.count("text"),
    "when": F.count(F.when(NUMBER > 1, 1)),
    "if": F.count_if(NUMBER > 1),
    "never": F.count_if(F.lit(True)),
    "distinct": F.count_distinct("number"),
    "pairs": F.count_distinct(F.struct("name", "number")),
    "sum": F.sum("number"),
    "min": F.min("number"),
    "max": F.max(NUMBER > 1),
    "lowest": F.min(F.when(NUMBER.isNotNull(), F.struct("number", "name"))),
    "of_max": F.max_by("text", "number"),
    "set": F.sort_array(F.collect_set("number")),
    "list": F.size(F.collect_list("number")),
    "copies": F.size(F.array_distinct(F.collect_list("name"))),
}


JOINS = ("inner", "left", "full_outer", "left_semi", "left_anti")


@pytest.fixture
def both(engine: Engine, spark: SparkSession) -> tuple[Engine, Engine]:
    return engine, SparkEngine(spark)


def rows(frame: Frame) -> list[str]:
    return sorted(map(str, frame.collect()))


def test_engines_agree_on_expressions(both: tuple[Engine, Engine]) -> None:
    for name, value in SCALARS.items():
        ours, sparks = (each.table(ROWS, SCHEMA).withColumn(name, value) for each in both)
        assert rows(ours) == rows(sparks), name


def test_engines_agree_on_aggregates(both: tuple[Engine, Engine]) -> None:
    aggregates = [value.alias(name) for name, value in AGGREGATES.items()]
    for content in (ROWS, []):
        ours, sparks = (each.table(content, SCHEMA) for each in both)
        assert rows(ours.agg(*aggregates)) == rows(sparks.agg(*aggregates))
        by_name, by_part = F.col("name").alias("key"), F.floor(NUMBER / 2).alias("part")
        grouped = (each.groupBy(by_name, by_part).agg(*aggregates) for each in (ours, sparks))
        assert rows(next(grouped)) == rows(next(grouped))


def test_engines_agree_on_frames(both: tuple[Engine, Engine]) -> None:
    made: list[list[list[str]]] = []
    for each in both:
        table = each.table(ROWS, SCHEMA)
        other = each.table([("a", 1), (None, 2), ("z", 1)], ONE).broadcast()
        least = table.withColumns({"text": F.lit("new"), "more": NUMBER + 1}).drop("number", "list")
        ordered = table.orderBy("number", "name").limit(3)
        made.append(
            [
                *[rows(table.join(other, ["name"], how).drop("list")) for how in JOINS],
                rows(least.withColumnRenamed("text", "renamed").distinct()),
                rows(table.exploded("name", F.split("name", ",")).select("name", "number")),
                rows(table.select("name", "list").numbered("list", "at", "value")),
                rows(table.select("name").unionByName(other.select("one", "name").drop("one"))),
                [str(row) for row in ordered.drop("list").orderBy("number", "name").rows()],
                [str(table.where("flag").count()) for table in (table.withColumn("flag", YES),)],
            ]
        )
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("line", "corrupt"),
    [
        ('{"name": "b", "number": 2, "list": [1, 2], "other": {"a": [1]}}', False),
        ('{"name": "b", "number": null}', False),
        ('{"name": "b", "num', True),
        ('{"name": "b", "number": "two"}', True),
        ('{"name": "b", "number": 2.5}', True),
        ('{"name": "b", "list": 2}', True),
        ("[1]", True),
    ],
)
def test_engines_agree_on_json_lines(
    both: tuple[Engine, Engine], tmp_path: Path, line: str, corrupt: bool
) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(f'{{"name": "a", "number": 1}}\n{line}\n')
    schema = pa.schema([*SCHEMA, (CORRUPT, pa.string())])
    found = []
    for each in both:
        lines = each.staged(each.lines(str(path), schema), str(tmp_path / each.name))
        found.append([row[CORRUPT] for row in lines.where(F.col(CORRUPT).isNotNull()).collect()])
        if not corrupt:
            found[-1] = rows(lines)
    assert found[0] == found[1]
    assert found[0] == [line] if corrupt else len(found[0]) == 2


def numbered(part: int) -> Iterator[Any]:
    """Yield a row for each number below, and then a text."""
    rows = [{"name": f"{part}", "one": number} for number in range(part)]
    yield pa.RecordBatch.from_pylist(rows, ONE)
    yield f"{part},"


@pytest.mark.parametrize("count", [0, 1, 3, 10])
def test_engines_merge_the_results_of_neighbours_in_order(
    both: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(spark_engine, "RESULTS_MAX", 3)
    expected = "".join(f"{part}," for part in range(count))
    for each in both:
        assert each.map_reduce("{},".format, range(count), operator.add, "") == expected
        assert mapped(each, str, range(count)) == expected.split(",")[:-1]
        rows, merged = each.read(numbered, range(count), ONE, operator.add, "")
        assert (rows.count(), merged) == (count * (count - 1) // 2, expected)


def test_failure_is_one_line(both: tuple[Engine, Engine], tmp_path: Path) -> None:
    for each in both:
        numbers = each.table(ROWS, SCHEMA).withColumn("number", TEXT.cast("long"))
        with pytest.raises(EngineFailed, match=r"x\\?'y|4F") as caught:
            numbers.collect()
        assert "\n" not in str(caught.value)
        with pytest.raises(EngineFailed, match="nowhere"):
            each.parquet(str(tmp_path / "nowhere")).count()


@pytest.mark.parametrize(
    ("kinds", "damaged"), [each[1:] for each in SLICE], ids=[each[0] for each in SLICE]
)
def test_engines_agree_on_reports(
    spark: SparkSession, sound: Run, tmp_path: Path, kinds: tuple[Kind, ...], damaged: int
) -> None:
    stores, history = planted(sound, tmp_path, kinds, damaged)
    ours, sparks = (run_audit(stores, history, spark=each) for each in (None, spark))
    assert (ours.engine, sparks.engine) == (LOCAL, SPARK)
    assert told(ours) == told(sparks)


@pytest.mark.long
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("part", range(PARTS))
def test_engines_agree_on_every_kind_of_damage(
    spark: SparkSession, sound: Run, tmp_path: Path, part: int
) -> None:
    """Each kind alone, on one, two and all replicas with a history, and by turns without."""
    cases = [(kind, damaged, True) for kind in STORE_KINDS for damaged in (1, 2, 3)]
    cases += [(kind, turn % 3 + 1, False) for turn, kind in enumerate(STORE_KINDS)]
    cases += [(kind, 1, True) for kind in HISTORY_KINDS]
    for kind, damaged, with_history in cases[part::PARTS]:
        if possible((kind, damaged)):
            root = tmp_path / "copy"
            stores, history = planted(sound, root, [kind], damaged)
            known = history if with_history else None
            ours, sparks = (told(run_audit(stores, known, spark=each)) for each in (None, spark))
            assert ours == sparks, f"{kind.name} on {damaged}, history: {with_history}"
            shutil.rmtree(root)


@pytest.mark.long
def test_decoded_rows_are_staged_at_the_named_uri(
    spark: SparkSession, sound: Run, tmp_path: Path
) -> None:
    seen: list[str] = []

    def look(_: str) -> None:
        seen.extend(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet"))

    staging = (tmp_path / "shared").as_uri()
    report = run_audit(
        sound.stores, sound.history_path, staging=staging, progress=look, spark=spark
    )
    assert report.ok
    staged = {path.split("/")[0] + "/" + path.split("/")[2] for path in seen}
    assert {"shared/decoded", "shared/units", "shared/ledger"} <= staged
    assert not [*(tmp_path / "shared").iterdir()]  # nothing is left there


def told(report: AuditReport) -> dict[str, Any]:
    """Return what a report says, without times and the engine."""
    told = asdict(report)
    for name in ("engine", "seconds", "phases"):
        del told[name]
    return told


@pytest.mark.parametrize(
    ("options", "size_bytes", "uri", "expected"),
    [
        ({}, 0, None, LOCAL),
        ({}, LOCAL_BYTES_MAX, "acks.parquet", LOCAL),
        ({}, LOCAL_BYTES_MAX + 1, None, SPARK),
        ({"engine": LOCAL}, LOCAL_BYTES_MAX + 1, None, LOCAL),
        ({"engine": SPARK}, 0, None, SPARK),
        ({"master": "spark://host:7077"}, 0, None, SPARK),
        ({"settings": {"spark.driver.memory": "8g"}}, 0, None, SPARK),
        ({}, 0, "s3://bucket/acks", SPARK),
    ],
)
def test_engine_is_chosen_by_size_and_options(
    options: dict[str, Any], size_bytes: int, uri: str | None, expected: str
) -> None:
    assert EngineOptions(**options).choose(size_bytes, uri) == expected
