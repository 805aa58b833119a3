"""What docs/spark.md shows is run, block by block, as its reader would."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.client import Admin, Message, Producer

DOCS = Path(__file__).parents[2] / "docs"
PAGE, NOTEBOOK = DOCS / "spark.md", DOCS / "examples" / "profile.ipynb"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
LINES = [b"one two two", b"three three three", b"two one three"]


async def send(namesrv: str, topic: str, count: int = len(LINES)) -> None:
    async with Admin(namesrv) as admin:
        await admin.topic.create(topic, 2)
    async with Producer("page", namesrv) as producer:
        for line in LINES[:count]:
            await producer.send(Message(topic, line, tags="A"))


def test_every_block_of_spark_page_gives_the_documented_result(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namesrv = cluster.state().namesrv
    for name in ("Words", "Copies", "Replays"):
        asyncio.run(send(namesrv, f"Page{name}", 0))
    asyncio.run(send(namesrv, "PageOrders"))
    scope: dict[str, Any] = {}
    printed = []
    for block in BLOCKS:
        code = re.sub(r'"(Orders|Words|Copies|Replays)"', r'"Page\1"', block)
        code = code.replace("127.0.0.1:9876", namesrv)
        exec(code.replace("/data/", f"{tmp_path}/"), scope)
        printed.append(capsys.readouterr().out)
    assert len(BLOCKS) == 10 and scope["spark"] is spark
    assert re.search(r"\|\s*A\|\s+3\|", printed[0])
    for query in (scope["query"], scope["copy"]):
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def found(topic: str) -> list[bytes]:
        read = spark.read.format("raftmq").option("namesrv", namesrv).option("topic", topic)
        return sorted(bytes(row["body"]) for row in read.load().collect())

    assert found("PageCopies") == found("PageReplays") == sorted(LINES)
    text = [b'{"word":"%b","count":%d}' % w for w in ((b"one", 2), (b"three", 4), (b"two", 3))]
    assert found("PageWords") == text
    (month,) = (tmp_path / "orders").glob("month=*")
    assert re.fullmatch(r"month=\d{4}-\d\d", month.name)
    rows = spark.read.parquet(str(tmp_path / "orders")).collect()
    assert sorted(bytes(row["body"]) for row in rows) == sorted(LINES)
    assert re.findall(r"\|\s*(\w+)\|\s+(\d)\|", printed[2]) == [
        ("three", "4"),
        ("two", "3"),
        ("one", "2"),
    ]


def test_cells_of_the_notebook_print_the_profile_of_a_topic(
    spark: SparkSession, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(send(cluster.state().namesrv, "NoteOrders"))
    scope: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            code = "".join(cell["source"]).replace("Orders", "NoteOrders")
            exec(code.replace("127.0.0.1:9876", cluster.state().namesrv), scope)
    scope["orders"].unpersist()
    out = capsys.readouterr().out
    assert sorted(re.findall(r"size_max +\| (\d+)", out)) == ["13", "17"]
    assert re.findall(r"\| +(16|32)\| +(\d)\|", out) == [("16", "2"), ("32", "1")]
    assert "|   A|    3|" in out
