"""The official Java client while one of two broker groups is drained and removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.jvm import Jvm
from tests.interop.test_java_client import Cluster, Listener, push_consumer
from tests.mqadmin.page import mqadmin
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(900)
STAYS, LEAVES = "broker-a", "broker-b"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two groups of one replica, without a grace period for older routes."""
    cluster = Cluster(tmp_path, "drainGraceMs=0", options=("--groups", "2", "--replicas", "1"))
    yield cluster
    cluster.down()


def test_no_send_of_java_fails_while_a_group_leaves(jvm: Jvm, cluster: Cluster) -> None:
    """Java asks for routes every 30 s only: its sends to the leaving group are rejected, and it
    sends them to the other group. A Java consumer gets every message, then the group is removed."""
    assert admin(cluster, "updateTopic -c DefaultCluster -t Scaled -r 2 -w 2")[0] == 0
    producer = jvm.producer("pg-scaled", cluster.namesrv)  # it is started
    consumer, listener = push_consumer(jvm, cluster, "cg-scaled", "Scaled", "*")
    keys: list[str] = []
    try:

        def send() -> str:
            keys.append(f"k{len(keys)}")
            result = producer.send(jvm.message("Scaled", "*", keys[-1], b"x"))
            assert result.getSendStatus().toString() == "SEND_OK"
            return str(result.getMessageQueue().getBrokerName())

        assert {send() for _ in range(20)} == {STAYS, LEAVES}
        assert admin(cluster, f"drainGroup -b {LEAVES}")[0] == 0
        assert {send() for _ in range(40)} == {STAYS}
        listener.wait_for(lambda: received(listener) >= set(keys))

        def is_removed() -> bool:
            status, said = admin(cluster, f"removeGroup -b {LEAVES}")
            assert status == 0 or "[NOT_EMPTY]" in said, said
            return status == 0

        wait_until(is_removed)  # once the consumer has committed
        wait_until(lambda: LEAVES not in admin(cluster, "clusterList")[1])
        assert send() == STAYS
    finally:
        consumer.shutdown()
        producer.shutdown()


def received(listener: Listener) -> set[str]:
    return {keys for _, _, keys, _ in listener.received}


def admin(cluster: Cluster, line: str) -> tuple[int, str]:
    """Return the exit status and the output of a command."""
    status, out, err = mqadmin(cluster.namesrv, *line.split())
    return status, out + err
