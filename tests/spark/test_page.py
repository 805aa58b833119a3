"""What docs/spark.md shows is run, block by block, as its reader would."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.client import Message, Producer

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
LINES = [b"one two two", b"three three three", b"two one three"]


async def send(namesrv: str, topic: str) -> None:
    async with Producer("page", namesrv) as producer:
        for line in LINES:
            await producer.send(Message(topic, line, tags="A"))


def test_every_block_does_what_the_page_says(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namesrv = cluster.state().namesrv
    asyncio.run(send(namesrv, "PageOrders"))
    scope: dict[str, Any] = {}
    printed = []
    for block in BLOCKS:
        code = block.replace("127.0.0.1:9876", namesrv).replace('"Orders"', '"PageOrders"')
        exec(code.replace("/data/", f"{tmp_path}/"), scope)
        printed.append(capsys.readouterr().out)
    assert len(BLOCKS) == 4 and scope["spark"] is spark
    assert re.search(r"\|\s*A\|\s+3\|", printed[0])
    query = scope["query"]
    try:
        for _ in range(600):
            if sum(each["numInputRows"] for each in query.recentProgress) == len(LINES):
                break
            time.sleep(0.1)
    finally:
        query.stop()
    (month,) = (tmp_path / "orders").glob("month=*")
    assert re.fullmatch(r"month=\d{4}-\d\d", month.name)
    rows = spark.read.parquet(str(tmp_path / "orders")).collect()
    assert sorted(bytes(row["body"]) for row in rows) == sorted(LINES)
    assert re.findall(r"\|\s*(\w+)\|\s+(\d)\|", printed[2]) == [
        ("three", "4"),
        ("two", "3"),
        ("one", "2"),
    ]
