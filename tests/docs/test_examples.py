"""The documents' Python: what a page shows is a file in docs/examples, and every one of them runs,
with warnings as errors, against a Raft group of three processes.

`RAFTMQ_REWRITE=1 pytest tests/docs` puts the files as they are now into the pages that show them.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from raftmq.chaos.cluster.cluster import Cluster
from tests.docs.pages import (
    EXAMPLES,
    PAGES,
    ROOT,
    Block,
    blocks,
    calls,
    command_lines,
    commands,
    rewrite,
)

WAIT_S = 300.0  # a bound against hanging, not an expectation
if os.environ.get("RAFTMQ_REWRITE"):
    for page in PAGES:
        rewrite(page)
PYTHON = [block for page in PAGES for block in blocks(page) if block.language == "python"]

# What each prints: a pattern for all of it.
PRINTS = {
    "send.py": r"OK MessageQueue\(topic='Orders', broker_name='broker-a', queue_id=\d\) 0\n",
    "outcomes.py": r"(order-\d: stored at \d of queue \d\n){3}",
    "ordered.py": r"ada created (\d) 0\nada paid \1 1\nada shipped \1 2\n"
    r"grace created (\d) \d\ngrace paid \2 \d\ngrace shipped \2 \d\n",
    "many.py": r"1000 acknowledged\nbatch OK \d+\n",
    "blocking.py": r"all of them \[b'letter 0', b'letter 1', b'letter 2'\]\n",
    "orderly.py": r"created paid packed shipped\n",
    "broadcast.py": r"kitchen: 3 counter: 3\n",
    "compressed.py": r"LZ4 True small\nZSTD True small\nZLIB True small\n",
    "sql92.py": r"\[b'cake', b'the end'\]\n",
    "retries.py": r"(b'42' time \d\n){3,}dead letter b'42'\n",
    "delayed.py": r"tea is ready\n",
    "timed.py": r"soon\nlate\non time\n",
    "transaction.py": r"order-1 COMMIT\norder-2 ROLLBACK\norder-3 UNKNOWN\n"
    r"heard of \['order-1', 'order-3'\]\n",
    "poll.py": r"20 printed\n",
    "pull.py": r"0 \[b'entry 0', b'entry 1'\]\n2 \[b'entry 2', b'entry 3'\]\n4 \[b'entry 4'\]\n",
    "replay.py": "\n".join(f"yesterday, {n}" for n in range(8)) + r"\n",
    "idempotent.py": r"stored once\n",
    "writer.py": r"20261121: 2 messages\n20261122: 1 messages\n",
    "credentials.py": r"OK\n",
    "tls.py": r"OK\n",
    "request.py": r"b'SOUP\?'\n",
    "admin.py": r"ends at 1\nfound b'7.50' i-1\nbroker-a has 3 brokers\n",
}
SETTINGS = {
    "mappedFileSizeCommitLog": "16MiB",
    "enablePropertyFilter": "true",
    "transactionTimeOut": "500",  # the first question comes after so many ms, not 6,000
    "transactionCheckInterval": "500",
    # What an example shows is no failover: a busy machine shall not make one.
    "electionTimeoutMinMs": "4000",
    "electionTimeoutMaxMs": "6000",
}
# What our client logs of a machine that is busy: `event field=value …`.
EVENT = re.compile(r"[a-z]+(_[a-z]+)+ [a-z_]+=.*")
# A broker's API through a name server's.
BEHIND_A_NAME_SERVER = re.compile(r"^/api/v1/brokers/[^/]+/[^/]+/")
FRAMES = "frames.py"  # a test of its own
OF_THE_TOUR = {"consume.py", "longest_gap.py"}  # tests/docs/test_tour.py
OF_SPARK = {"flights_by_month.py", "landing.py"}  # tests/spark


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("examples") / "c"

    async def up() -> None:
        made = Cluster(directory)
        try:
            await made.up(settings=SETTINGS)
        finally:
            await made.close()

    asyncio.run(up())
    yield Cluster(directory)
    asyncio.run(stop(directory))


@contextmanager
def started(cluster: Cluster, name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """An example as its reader runs it, from the repository's root."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        cwd=ROOT,
        env=os.environ | {"NAMESRV_ADDR": cluster.state().namesrv, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("name", PRINTS)
def test_example_prints_what_its_page_shows(cluster: Cluster, name: str) -> None:
    with started(cluster, name) as process:
        out, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    assert not [line for line in errors.splitlines() if not EVENT.fullmatch(line)], errors
    assert re.fullmatch(PRINTS[name], out), out


def test_documented_http_paths_are_served(cluster: Cluster) -> None:
    nodes = cluster.state()
    served = {("GET", f"^/{page}$") for page in ("", "metrics", "docs")}
    for node in (nodes.brokers[0], nodes.name_servers[0]):
        with urlopen(f"http://{node.http}/api/v1/openapi.json", timeout=WAIT_S) as answer:
            document = json.load(answer)
        for path, methods in document["paths"].items():
            pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))
            served |= {(method.upper(), f"^{pattern}$") for method in methods}
    called = {
        (method, BEHIND_A_NAME_SERVER.sub("/api/v1/", path), block.where)
        for page in PAGES
        for block in blocks(page)
        for line in command_lines(block)
        for text in commands(line)
        for method, path in calls(text)
    }
    unknown = [
        one for one in called if not any(one[0] == m and re.match(p, one[1]) for m, p in served)
    ]
    assert not unknown
    assert len({path for _, path, _ in called}) > 20


def test_frames_example_prints_consecutive_entries(cluster: Cluster) -> None:
    asyncio.run(stop(cluster.directory))
    logs = []
    for node in cluster.state().brokers:
        with started(cluster, FRAMES, str(cluster.store_of(node))) as process:
            out, errors = process.communicate(timeout=WAIT_S)
        assert (process.returncode, errors) == (0, "")
        lines = out.splitlines()
        assert [int(line.split()[0]) for line in lines] == list(range(1, len(lines) + 1))
        assert re.fullmatch(r"     1 term \d+ noop         0 records bytes 0 to 60", lines[0])
        logs.append(lines)
    assert sum("messages" in line for line in max(logs, key=len)) > 10


async def stop(directory: Path) -> None:
    cluster = Cluster(directory)
    try:
        await cluster.down()
    finally:
        await cluster.close()


def test_every_example_is_run_and_documented() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == PRINTS.keys() | OF_THE_TOUR | OF_SPARK | {FRAMES}
    shown = {block.title for block in PYTHON}
    assert {f"docs/examples/{name}" for name in names} <= shown


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.where)
def test_documented_python_equals_the_example_file(block: Block) -> None:
    if block.title:
        assert block.text == (ROOT / block.title).read_text()
        return
    # A fragment: it parses, and what it imports is there.
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            assert not [alias.name for alias in node.names if not hasattr(module, alias.name)]
