"""mqadmin, ours and Apache's, against clusters of ours and of Apache's. One JVM for all of it.

First our page of examples, on a cluster that is new; then Apache's sub-commands against the same
cluster; then ours against an Apache broker that registered with the same name server.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqadmin.commands import COMMANDS
from tests.interop import apache
from tests.interop.jvm import fetch
from tests.interop.mqadmin import ApacheAdmin
from tests.interop.test_java_client import Cluster, mqcluster
from tests.mqadmin.page import mqadmin, render, skeleton

PAGE = Path(__file__).parents[2] / "docs" / "mqadmin.md"
WAIT_S = 60.0
OURS_ALONE = {"raftStatus", "transferLeader", "members"}
# Apache has these; deeds that our clusters have no use for are left out of the comparison.
WHERE = "DefaultCluster"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("mqadmin"))
    yield cluster
    mqcluster("down", "--dir", cluster.directory)


@pytest.fixture(scope="module")
def broker(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[apache.ApacheBroker]:
    """Apache's broker, with Apache's tools in the same JVM."""
    broker = apache.ApacheBroker(
        tmp_path_factory.mktemp("apache"), cluster.namesrv, brokerName="apache-a"
    )
    broker.more_jars = fetch(apache.TOOLS_IVY_FILE, apache.TOOLS_JARS)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(scope="module")
def admin(broker: apache.ApacheBroker, cluster: Cluster) -> ApacheAdmin:
    assert broker.jvm is not None
    return ApacheAdmin(broker.jvm, cluster.namesrv)


def ours(cluster: Cluster, line: str) -> Any:
    """The answer of a sub-command of ours, which must succeed."""
    status, out, err = mqadmin(cluster.namesrv, *line.split(), "--json")
    assert status == 0, f"{line}: {status}\n{out}\n{err}"
    return json.loads(out)


def until(ready: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_page_shows_what_is_printed(cluster: Cluster) -> None:
    new = render(cluster.namesrv)
    assert skeleton(new) == skeleton(PAGE.read_text()), "python -m tests.mqadmin.page"


def test_flags_are_apaches(admin: ApacheAdmin) -> None:
    for command in COMMANDS:
        if command.name not in OURS_ALONE:
            flags = {(flag.short, flag.long) for flag in command.flags}
            assert flags == admin.options(command.name), command.name
