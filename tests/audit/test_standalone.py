"""A standalone Spark cluster audits running brokers: it has their addresses, and nothing else."""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from raftmq.chaos.cluster.cluster import Cluster
from tests.audit.test_live import BODY, COUNT, Load, followers, put, unit_of
from tests.audit.test_live import group as group
from tests.spark.test_standalone import ROOT, Standalone
from tests.waiting import wait_until

CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
}


def audited(standalone: Standalone, namesrv: str, scratch: Path) -> dict[str, Any]:
    """Run mqaudit on the cluster; return its report."""
    path = scratch.with_suffix(".json")
    scratch.mkdir()
    conf = [part for name, value in CONF.items() for part in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "raftmq.audit", "--namesrv", namesrv, "--json", str(path)),
            *("--master", standalone.address, "--scratch", str(scratch), *conf),
        ],
        env=standalone.environment | {"PYTHONPATH": str(ROOT)},
        cwd=scratch,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode in (0, 3), done.stderr
    assert list(scratch.iterdir()) == []
    (report,) = json.loads(path.read_bytes())
    assert isinstance(report, dict)
    return report


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_damage_on_a_live_replica_is_located_by_a_cluster(group: Cluster, tmp_path: Path) -> None:
    namesrv = group.state().namesrv
    name = followers(group)[0]
    (node,) = (each for each in group.state().brokers if each.name == name)
    segment = group.store_of(node) / "commitlog" / f"{0:020d}"
    at = segment.read_bytes().index(BODY) + 100
    queue = group.store_of(node) / "consumequeue" / "Orders" / "2" / f"{0:020d}"
    wait_until(lambda: any(unit_of(queue, 7)))  # it was in memory before
    with ExitStack() as ended, Load(group) as load:
        standalone = Standalone(tmp_path, ended)
        before = load.acknowledged
        sound = audited(standalone, namesrv, tmp_path / "sound")
        assert sound["ok"] and sound["engine"] == "spark", sound
        assert COUNT + before <= sound["figures"]["stored"]
        assert load.acknowledged > before
        for attempt in range(3):
            put(segment, at, b"\1")
            put(queue, 7 * 20 + 8, b"\1")
            damaged = audited(standalone, namesrv, tmp_path / f"damaged-{attempt}")
            put(segment, at, b"\0")
            put(queue, 7 * 20 + 8, b"\0")
            checks = {
                check["name"]: check["offenders"] for check in damaged["checks"] if check["count"]
            }
            if "replicas" in checks:
                break  # else the replica's scrub came first, and repaired it
    (unit,) = checks["queue_index"]
    assert (unit["store"], unit["topic"], unit["queue_offset"]) == (name, "Orders", 7)
    (difference,) = checks["replicas"]
    assert (difference["store"], difference["location"]) == (name, f"commitlog/{0:020d}:{at}")
    assert {offender["store"] for offender in checks["damage"]} == {name}
