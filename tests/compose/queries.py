"""Asks a running Prometheus all that dashboard and alerts ask: python -m tests.compose.queries

It has to have scraped the cluster for some minutes, with load on it. Prints JSON: the targets and
whether they are up, every query that failed or found nothing, what fires. Exit status 1 if a query
failed or a target is down; a query that finds nothing may be right (no damage, no slave).
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
VARIABLES = ("cluster", "broker", "node")  # of the dashboard; all of them
TIMEOUT_S = 10.0


class Refused(Exception):
    """Prometheus' own words."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:9090")
    url = parser.parse_args().url
    answer = report(url)
    print(json.dumps(answer, indent=1))
    return 1 if answer["failed"] or answer["targets"]["down"] else 0


def report(url: str) -> dict[str, Any]:
    targets = ask(url, "targets", state="active")["activeTargets"]
    down = {t["labels"]["instance"]: t["lastError"] for t in targets if t["health"] != "up"}
    queries = [*panels(), *rules()]
    failed: dict[str, str] = {}
    empty: list[str] = []
    for title, query in queries:
        try:
            if not ask(url, "query", query=query)["result"]:
                empty.append(f"{title}: {query}")
        except Refused as text:
            failed[f"{title}: {query}"] = str(text)
    health = [rule for group in ask(url, "rules")["groups"] for rule in group["rules"]]
    return {
        "targets": {"up": len(targets) - len(down), "down": down},
        "queries": len(queries),
        "failed": failed,
        "empty": empty,
        "rules_not_well": {r["name"]: r["lastError"] for r in health if r["health"] == "err"},
        "firing": sorted({r["name"] for r in health if r.get("state") == "firing"}),
        "pending": sorted({r["name"] for r in health if r.get("state") == "pending"}),
    }


def panels() -> list[tuple[str, str]]:
    """Title and expression of every panel, for all clusters, groups and replicas."""
    board = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    result = []
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name in VARIABLES:
                query = query.replace(f"${name}", ".*")
            result.append((panel["title"], query))
    return result


def rules() -> list[tuple[str, str]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    return [(rule["alert"], rule["expr"]) for group in groups for rule in group["rules"]]


def ask(url: str, what: str, **query: str) -> Any:
    """The data of one answer of the HTTP API. Raises Refused, OSError."""
    address = f"{url}/api/v1/{what}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        raise Refused(json.load(error)["error"]) from error


if __name__ == "__main__":
    sys.exit(main())
