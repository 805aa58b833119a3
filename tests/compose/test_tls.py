"""The compose file with TLS on every connection: it comes up, clients without a certificate find
nothing, those with one outlive the leader, and certificates are renewed while it runs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compose.stage import HEALTHY_TIMEOUT_S, ROOT, Stage, health_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1100)]

BROKERS = [f"broker-{group}{number}" for group in "ab" for number in range(3)]
NAME_SERVERS = ["nameserver-0", "nameserver-1"]
OTHERS = ["master-a", "slave-a", "master-b", "slave-b", "proxy-0", "proxy-1"]
RUNS_AS = 10001  # in the containers


def make_certificates(directory: Path) -> None:
    script = str(ROOT / "deploy" / "certificates.sh")
    subprocess.run([script, str(directory), *NAME_SERVERS, *BROKERS, *OTHERS], check=True)
    for path in [directory, *directory.rglob("*")]:
        os.chown(path, RUNS_AS, RUNS_AS)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tls")
    make_certificates(directory)
    return directory


@pytest.fixture(scope="module")
def stage(certificates):
    stage = Stage()
    stage.environment |= {
        "COMPOSE_FILE": "docker-compose.yml:deploy/docker-compose.tls.yml",
        "RAFTMQ_TLS_DIRECTORY": str(certificates),
        "RAFTMQ_TLS_CLIENT_CERTIFICATES": "require",
    }
    try:
        print(stage.up())
        yield stage
    finally:
        stage.down()


def said(stage: Stage, certificates: Path, *words: str) -> str:
    return stage.said_by(*words, tls=certificates / "client" / "tls.properties")


def send(stage: Stage, certificates: Path, text: str) -> None:
    assert "offset" in said(stage, certificates, "sendMessage", "-t", "Safe", "-p", text)


def test_tls_compose_services_become_healthy(stage):
    wait_until(
        lambda: (
            health_of(stage.containers()) == dict.fromkeys([*NAME_SERVERS, *BROKERS], "healthy")
        ),
        lambda: stage.compose("logs", "--tail", "20"),
        patience_s=HEALTHY_TIMEOUT_S,
        pause_s=1,
    )


def test_client_with_a_certificate_is_served_and_a_plain_one_is_not(stage, certificates):
    said(stage, certificates, "updateTopic", "-c", "DefaultCluster", "-t", "Safe")
    send(stage, certificates, "first")
    plain = stage.mqadmin("topicRoute", "-t", "Safe")
    assert plain.returncode != 0, plain.stdout


def leader_of(stage: Stage, certificates: Path, group: str) -> str:
    """Return the name of the service that leads a group."""
    for number in range(3):
        name, port = f"broker-{group}{number}", 10911 + 100 * (group == "b") + 10 * number
        result = said(stage, certificates, "brokerStatus", "-b", f"127.0.0.1:{port}")
        if re.search(r"raftRole\s+leader", result):
            return name
    raise AssertionError(result)


def test_tls_clients_survive_the_leader(stage, certificates):
    stage.compose("kill", leader_of(stage, certificates, "a"))
    for number in range(10):
        send(stage, certificates, f"after {number}")


def certificate_of(stage: Stage, port: int) -> str:
    look = "import ssl, sys; print(ssl.get_server_certificate(('127.0.0.1', int(sys.argv[1]))))"
    return stage.within(sys.executable, "-c", look, str(port)).stdout


def test_tls_certificates_are_renewed_without_a_restart(stage, certificates):
    """Brokers and name servers take the new files within ten seconds, without a restart."""
    before = {port: certificate_of(stage, port) for port in (9876, 9877, 11011)}
    assert all("BEGIN CERTIFICATE" in one for one in before.values())
    make_certificates(certificates)
    wait_until(
        lambda: all(certificate_of(stage, port) not in ("", old) for port, old in before.items()),
        lambda: stage.compose("logs", "--tail", "20"),
        patience_s=HEALTHY_TIMEOUT_S,
        pause_s=1,
    )
    send(stage, certificates, "with the new ones")
