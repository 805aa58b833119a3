"""docker-compose.yml: a third broker group is the others over again, behind a profile; the
continuous audit is a command of mqaudit that Prometheus reaches."""

import re
from pathlib import Path
from typing import Any

import yaml

from raftmq.audit.watch.command import watch

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


def test_compose_watch_serves_its_metrics_where_prometheus_looks() -> None:
    service = SERVICES["watch"]
    given = [re.sub(r"\$\{\w+:-(.*?)\}", r"\1", word) for word in service["command"]]
    assert given[:2] == ["mqaudit", "watch"]
    options = watch.make_context("watch", given[2:]).params
    assert f"watch:{options['results']}" in service["volumes"]
    assert options["namesrv"] == SERVICES["proxy-0"]["environment"]["RAFTMQ_NAMESRV_ADDR"]
    assert service["environment"]["RAFTMQ_BROKER_ADDRESS_MAP"] == REACHED
    scrapes = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    (found,) = [
        job["dns_sd_configs"][0]
        for job in scrapes["scrape_configs"]
        if job["job_name"] == "raftmq-watch"
    ]
    assert options["listen"] == f"0.0.0.0:{found['port']}" and found["names"] == ["watch"]
