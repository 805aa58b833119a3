"""The hook before a broker's stop judges what the APIs of the group say; test_live.py has it
before real brokers."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helm.httpapi import HttpApi
from tests.helm.rendering import CHART
from tests.ports import bound

NODE, TRANSFER = "/api/v1/node", "/api/v1/node/transfer"
OWN, OTHER = "127.0.0.1", "127.0.0.2"
ITSELF = {"RAFTMQ_BROKER_IP1": OWN}
ITSELF["RAFTMQ_DLEGER_PEERS"] = f"n0-{OWN}:40911;n1-{OTHER}:40911;n2-broker-0-2.b.ns.svc:40911"
FOLLOWER: dict[str, Any] = {"name": "n0", "role": "follower", "membership": "voter", "peers": []}
FOLLOWER |= {"leader": "n1", "leaderHttpAddress": ""}


def peer(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "voter": True, "connected": True, "lagFrames": 0} | more


def leading(name: str, *peers: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "role": "leader", "membership": "voter", "peers": list(peers)}


@pytest.fixture
def apis() -> Iterator[tuple[HttpApi, HttpApi]]:
    """The own one and another broker's, on one port."""
    with HttpApi(OWN) as own, HttpApi(OTHER, own.port) as other:
        yield own, other


def run(port: int, tmp_path: Path) -> tuple[int, str]:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "operator.token").write_text("a-token\n")
    environment = {"PRESTOP_DIRECTORY": str(tmp_path), "PRESTOP_PORT": str(port)}
    result = subprocess.run(
        [sys.executable, str(CHART / "files" / "prestop.py"), "0"],
        env=os.environ | environment | ITSELF,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert not result.stderr
    return result.returncode, result.stdout


@pytest.mark.parametrize(
    ("own", "leader", "said"),
    [
        (FOLLOWER, leading("n1", peer("n0", lagFrames=9_000), peer("n2")), ""),
        (FOLLOWER, leading("n1", peer("n0"), peer("n2", lagFrames=101)), "n2 is 101 frames behind"),
        (FOLLOWER, leading("n1", peer("n0"), peer("n2", lagFrames=None)), "n2 is None frames"),
        (FOLLOWER, leading("n1", peer("n2", connected=False)), "n2 is not connected"),
        (FOLLOWER, leading("n1", peer("n2"), peer("n3", voter=False, connected=False)), ""),
        (FOLLOWER | {"leader": None}, {}, "the group has no leader"),
        (FOLLOWER | {"membership": "none"}, {}, ""),
        (FOLLOWER | {"membership": "learner"}, {}, ""),
        (leading("n0", peer("n1"), peer("n2", connected=False)), {}, "n2 is not connected"),
        (leading("n0", peer("n1"), peer("n2")), {}, "this replica still leads"),
    ],
)
def test_prestop_waits_while_the_group_needs_the_replica(
    apis: tuple[HttpApi, HttpApi],
    tmp_path: Path,
    own: dict[str, Any],
    leader: dict[str, Any],
    said: str,
) -> None:
    apis[0].answers, apis[1].answers = {NODE: own}, {NODE: leader}
    status, text = run(apis[0].port, tmp_path)
    assert status == bool(said)
    assert text.startswith(f"stops although {said}" if said else "")
    asked_to_move = ("POST", TRANSFER, "Bearer a-token") in apis[0].seen
    assert asked_to_move is (said == "this replica still leads")


def test_prestop_asks_the_leader_at_its_reported_address(
    apis: tuple[HttpApi, HttpApi], tmp_path: Path
) -> None:
    own, other = apis
    reported = {"leader": "n2", "leaderHttpAddress": f"{OTHER}:{other.port}"}
    own.answers, other.answers = {NODE: FOLLOWER | reported}, {NODE: leading("n1", peer("n0"))}
    assert run(own.port, tmp_path) == (0, "")
    assert other.seen == [("GET", NODE, "Bearer a-token")]


def test_prestop_of_a_broker_that_is_down_exits_at_once(tmp_path: Path) -> None:
    with bound() as nobody:
        assert run(nobody.getsockname()[1], tmp_path) == (0, "")
