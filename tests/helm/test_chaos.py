"""The chart's chaos deletes a broker's pod only if all of them are ready."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helm.httpapi import HttpApi
from tests.helm.rendering import CHART

PODS = "/api/v1/namespaces/messaging/pods"


def pod(name: str, ready: str = "True", **metadata: str) -> dict[str, Any]:
    conditions = [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": ready}]
    return {"metadata": {"name": name, **metadata}, "status": {"conditions": conditions}}


@pytest.fixture
def api() -> Iterator[HttpApi]:
    with HttpApi() as result:
        yield result


def run(api: HttpApi, tmp_path: Path, *pods: dict[str, Any]) -> str:
    api.answers[PODS] = {"items": pods}
    (tmp_path / "token").write_text("a-token\n")
    environment = {
        "API": f"http://127.0.0.1:{api.port}",
        "CREDENTIALS": str(tmp_path),
        "NAMESPACE": "messaging",
        "SELECTOR": "app=a,b=c",
        "BROKERS": "3",
        "GRACE_PERIOD_SECONDS": "0",
    }
    result = subprocess.run(
        [sys.executable, str(CHART / "files" / "chaos.py")],
        env=os.environ | environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_chart_chaos_deletes_one_ready_pod(api: HttpApi, tmp_path: Path) -> None:
    names = ("b-0", "b-1", "b-2")
    reported = run(api, tmp_path, *map(pod, names))
    requested, deleted = api.seen
    assert requested == ("GET", f"{PODS}?labelSelector=app%3Da%2Cb%3Dc", "Bearer a-token")
    name = reported.removeprefix("deleted ").strip()
    assert name in names
    assert deleted == ("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0", "Bearer a-token")


@pytest.mark.parametrize(
    "third",
    [[], [pod("b-2", ready="False")], [pod("b-2", deletionTimestamp="2026-01-01T00:00:00Z")]],
)
def test_chart_chaos_deletes_no_pod_unless_all_are_ready(
    api: HttpApi, tmp_path: Path, third: list[dict[str, Any]]
) -> None:
    reported = run(api, tmp_path, pod("b-0"), pod("b-1"), *third)
    assert reported == "nothing is deleted: 2 of 3 brokers are ready\n"
    assert [method for method, *_ in api.seen] == ["GET"]
