"""docker-compose.yml: a third broker group is the others over again, behind a profile."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
REACHED: str = SERVICES["proxy-0"]["environment"]["RAFTMQ_BROKER_ADDRESS_MAP"]


def test_third_compose_group_differs_in_names_and_ports_only() -> None:
    for number in range(3):
        known, added = (
            str(SERVICES[f"broker-{group}{number}"]).replace(REACHED, "") for group in "bc"
        )
        renamed = known.replace("broker-b", "broker-c").replace("BROKER_B", "BROKER_C")
        renamed = renamed.replace(f":-110{number + 1}1", f":-113{number + 1}1")
        for node in (5, 4, 3):
            renamed = renamed.replace(f"n{node}-", f"n{node + 3}-")
            renamed = renamed.replace(f"'n{node}'", f"'n{node + 3}'")
        renamed = renamed.replace("_LEADER_ID': 'n7'", "_LEADER_ID': 'n8'")  # on the third machine
        assert added.replace("'profiles': ['broker-c'], ", "") == renamed
        assert "profiles" not in SERVICES[f"broker-b{number}"]


def test_third_compose_group_is_known_to_proxies_brokers_and_audit() -> None:
    assert SERVICES["broker-a0"]["environment"]["RAFTMQ_BROKER_ADDRESS_MAP"] == REACHED
    for number in range(3):
        name = f"broker-c{number}"
        assert f"RAFTMQ_PORT_BROKER_C{number}:-113{number + 1}1}}={name}:10911" in REACHED
        assert f"{name}:/stores/broker-c/n{number + 6}:ro" in SERVICES["audit"]["volumes"]
        assert name in COMPOSE["volumes"]
