"""docs/start.md is walked through: its commands, in its order, on a cluster with ports of its own.

The clone, the environment and the run of mqchaos are left out: they have tests of their own.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftmq.chaos.cluster.cluster import Cluster
from tests import curl
from tests.docs.pages import ROOT
from tests.docs.tour import START, Step, steps, type_in

ELSEWHERE = re.compile(r"git clone|cd |make venv|\. \.venv|mqchaos run")
PRINTS = {  # what a command prints, where that is worth a look
    "docs/examples/send.py": r"OK MessageQueue\(topic='Orders'",
    "docs/examples/consume.py": r"\d \d order-1 b'one coffee'\n",
    "longest_gap.py": r"(?s)(?=.*sent SIGKILL to n\d).*\d+ acknowledged, \d+ failed, \d+ unknown\n",
    "mqcluster status": r" dead .*\n",
    "clusterList": r"broker-a +0 ",
    "raftStatus": r" leader ",
    "topicStatus": r"broker-a ",
    "consumerProgress": r"Orders ",
    "queryMsgByKey": r"order-1|UNIQ|broker-a|[0-9A-F]{32}",
    "/api/v1/cluster": r'"groups":\[\{"name":"broker-a"',
    "/metrics": r"raft_term",
}


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment in which our commands are those of this checkout; the cluster's end."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    programs = {"python": "", "curl": f"-I {shlex.quote(curl.__file__)}"}
    for name, target in scripts.items():
        module, _, function = target.partition(":")
        code = f"import sys; sys.argv[0] = {name!r}; from {module} import {function}; {function}()"
        programs[name] = f"-c {shlex.quote(code)}"
    (tmp_path / "bin").mkdir()
    for name, options in programs.items():
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {options} "$@"\n')
        program.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    yield environment
    type_in(f"mqcluster down --dir {tmp_path / 'c'}", ROOT, environment)


def test_start_page_can_be_followed(tmp_path: Path, terminal: dict[str, str]) -> None:
    looked_at = set()
    for step in steps():
        if ELSEWHERE.match(step.command):
            continue
        done = type_in(here(step.command, tmp_path / "c"), ROOT, terminal)
        assert done.status == 0, f"{step.command}\n{done.output}"
        assert "Traceback" not in done.output
        for name, pattern in PRINTS.items():
            if name in step.command:
                assert re.search(pattern, done.output), f"{step.command}\n{done.output}"
                looked_at.add(name)
        if step.command.startswith("mqcluster up"):
            terminal["NAMESRV_ADDR"] = Cluster(tmp_path / "c").state().namesrv
    assert looked_at == PRINTS.keys()


def here(command: str, directory: Path) -> str:
    """The page's command on this test's own cluster: its directory, and free ports."""
    command = command.replace("/tmp/c", str(directory)).replace(" --standard-ports", "")
    command = command.replace("sleep 2", "sleep 1").replace("longest_gap.py 5", "longest_gap.py 3")
    if (directory / "cluster.json").exists():
        nodes = Cluster(directory).state()
        broker, server = nodes.brokers[0], nodes.name_servers[0]
        command = command.replace("127.0.0.1:9876", server.address)
        command = command.replace("127.0.0.1:9880", server.http)
        command = command.replace("127.0.0.1:10915", broker.http)
    return command


def test_start_page_steps_are_listed_by_heading() -> None:
    result = list(steps(START))
    assert result[0] == Step("Install", "git clone REPOSITORY raftmq")
    assert len(result) > 15
    assert result[-1] == Step("Stop", "mqcluster down --dir /tmp/c")
