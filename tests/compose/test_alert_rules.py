"""deploy/prometheus/alerts_test.yml, which promtool runs, has every alert fire, and stay silent.

promtool is no part of this project's environment: what it needs is checked here as far as it can be
without it, so that no alert is added that nobody tries. Where promtool is installed, it runs.
"""

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from tests.compose.stage import ROOT

PROMETHEUS = ROOT / "deploy" / "prometheus"
NAME = re.compile(r'alertname="(\w+)"')


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    text = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())
    assert text["rule_files"] == ["alerts.yml"]
    return list(text["tests"])


@pytest.fixture(scope="module")
def alerts() -> dict[str, str]:
    groups = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def firing(check: dict[str, Any]) -> set[str]:
    return {NAME.findall(sample["labels"])[0] for sample in check.get("exp_samples", ())}


def test_every_alert_fires_in_a_case_after_a_quiet_start(cases, alerts):
    tried = set()
    for case in cases:
        start, *later = [firing(check) for check in case["promql_expr_test"]]
        tried |= {name for names in later for name in names - start}
    assert tried == set(alerts)


def test_alert_cases_provide_the_queried_metrics(cases, alerts):
    metric = re.compile(r"\b(?:up|(?:rocketmq|raftmq|raft|process)_[a-z0-9_]+)\b")
    matches = {name for expr in alerts.values() for name in metric.findall(expr)}
    given = {one["series"].split("{")[0] for case in cases for one in case["input_series"]}
    assert given == matches
    for case in cases:
        assert all("ALERTS" in check["expr"] for check in case["promql_expr_test"]), case["name"]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_every_case_as_expected():
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        ended = subprocess.run(
            ["promtool", *command], cwd=PROMETHEUS, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
