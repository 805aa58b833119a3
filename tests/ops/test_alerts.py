"""Alerts, runbooks and the dashboard speak of metrics, keys and log events that there are.

The metrics are taken from real expositions: a Raft group's leader and follower after some traffic,
a classic master and its slave, a name server, a proxy.
"""

import asyncio
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from raftmq.audit.report.report import AuditReport, CheckResult
from raftmq.audit.report.results import prometheus_lines
from raftmq.audit.watch.consumed import Unconsumed
from raftmq.audit.watch.results import metrics
from raftmq.audit.watch.state import Round, State
from raftmq.broker import config as broker_config
from raftmq.chaos.cluster.cli import main as mqcluster
from raftmq.mqadmin.commands import COMMANDS
from raftmq.namesrv import config as namesrv_config
from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.server import NameServer
from raftmq.proxy.config import ProxyConfig
from raftmq.proxy.server import ProxyServer
from tests.broker.cluster import Group
from tests.broker.pop.consumer import Popper
from tests.broker.replication.ha.pair import Classic
from tests.certificates import Authority
from tests.ops.scrape import well_named
from tests.proxy.world import Caller
from tests.tidy.sources import product
from tests.waiting import until

ROOT = Path(__file__).parent.parent.parent
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
SCRAPES = ROOT / "deploy" / "prometheus" / "prometheus.yml"
PROVISIONING = ROOT / "deploy" / "grafana" / "provisioning"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboard.json"
RUNBOOKS = ROOT / "docs" / "runbooks"
WITHOUT_ALERT = {
    "README.md",
    "replace-node.md",
    "two-histories.md",
}  # what to do, whatever led there
METRICS = ROOT / "docs" / "metrics.md"

METRIC = re.compile(r"\b(?:rocketmq|raftmq|raft|process)_[a-z][a-z0-9_]*[a-z0-9]\b")
SELECTOR = re.compile(r"\b([a-z][a-z0-9_]*)\{([^{}]*)\}")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^()]*)\)")
OF_THE_TARGET = {"job", "instance", "le"}  # what Prometheus itself puts on
FUNCTIONS = {
    "abs", "sum", "min", "max", "count", "group", "topk", "rate", "increase", "deriv", "changes",
    "histogram_quantile", "last_over_time", "max_over_time", "time", "vector", "by", "on",
}  # fmt: skip

AUDIT = AuditReport("", (), {}, (CheckResult("damage", "", True, 1),), 0.0)

Known = dict[str, set[str]]


def known_in(text: str, known: Known) -> None:
    """Names and labels of an exposition's samples."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            known.setdefault(sample.name, set()).update(sample.labels)


async def expositions(tmp_path: Path) -> list[str]:
    result = []
    async with Group(tmp_path / "raft", 3) as group:
        leader = await group.leading()
        await group.create_topic(leader, "T")
        await group.send(leader, "T")
        await group.send(leader, "T", properties="DELAY\x0118\x02")
        await until(leader.delays.view)
        await group.pull(leader, "T", 0)
        await group.commit(leader, "T", 0, 0)
        await until(lambda: leader.state.offsets.offsets)
        assert await Popper(group).pop(leader)
        result += [broker.metrics.render()[0].decode() for broker in group.brokers.values()]
    async with Classic(tmp_path / "classic") as classic:
        await classic.followed()
        result += [broker.metrics.render()[0].decode() for broker in classic.brokers.values()]
    authority = Authority(tmp_path)
    pem = Path(authority.path)
    cert, key = authority.issue("server")
    config = NameServerConfig(
        "127.0.0.1",
        0,
        http_enable=False,
        tls_server_mode="permissive",
        tls_server_cert_path=cert,
        tls_server_key_path=key,
    )
    async with Group(tmp_path / "one", 1) as group, NameServer(config) as namesrv:
        leader = await group.leading()
        group.settings = {
            "namesrvAddr": f"127.0.0.1:{namesrv.port}",
            "tlsServerMode": "permissive",
            "tlsServerCertPath": cert,
            "tlsServerKeyPath": key,
        }
        await group.stop("n0")
        await group.start("n0")
        await until(lambda: namesrv.table.broker_count)
        result.append(group.brokers["n0"].metrics.render()[0].decode())
        result.append(namesrv.metrics.render()[0].decode())
        proxy = ProxyServer(
            ProxyConfig(
                namesrv=namesrv.address,
                port=0,
                http_port=0,
                http_tls_mode="permissive",
                tls_server_mode="enforcing",
                tls_server_cert_path=cert,
                tls_server_key_path=key,
            )
        )
        async with proxy:
            trusted = grpc.ssl_channel_credentials(await asyncio.to_thread(pem.read_bytes))
            channel = grpc.aio.secure_channel(f"localhost:{proxy.port}", trusted)
            async with Caller(proxy, channel=channel) as caller:
                await caller.call("Heartbeat")
            assert proxy.metrics is not None
            result.append(proxy.metrics.render()[0].decode())
    return result


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return asyncio.run(expositions(tmp_path_factory.mktemp("scraped")))


@pytest.fixture(scope="module")
def known(scraped: list[str], tmp_path_factory: pytest.TempPathFactory) -> Known:
    """Every series name with its labels."""
    result: Known = {"up": set()}
    for text in scraped:
        well_named(text)
        known_in(text, result)
    known_in("".join(prometheus_lines([AUDIT], 0)), result)
    with State(tmp_path_factory.mktemp("watch"), "") as watched:
        watched.commit(Round(unconsumed=[Unconsumed("G", "T", "b", 0, 0, 1)]), 0)
        known_in("".join(metrics(watched, 0)), result)
    return result


HEAD = """# Metrics

Metrics of brokers, name servers and proxies at `GET /metrics` (with a viewer's token if there are
tokens), generated from real expositions by `RAFTMQ_REWRITE=1 pytest tests/ops/test_alerts.py`.
A broker's metrics have the labels `cluster`, `broker` (brokerName, the group) and `node`. Metrics
without a meaning in a mode (`raft_…` in classic mode, `rocketmq_ha_…` in Raft mode) are absent.
Only the leader or master exports consumer lag, for at most `metricsSeriesMax` pairs.

| name | type | labels | meaning |
|---|---|---|---|
"""


def test_metrics_page_has_every_metric(scraped: list[str], known: Known) -> None:
    rows = {}
    for text in scraped:
        for family in text_string_to_metric_families(text):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = known.get(name) or known.get(f"{name}_bucket") or set()
            shown = ", ".join(sorted(labels - {"cluster", "broker", "node", "le"}))
            rows[name] = f"| `{name}` | {family.type} | {shown} | {family.documentation} |\n"
    text = HEAD + "".join(rows[name] for name in sorted(rows))
    if os.environ.get("RAFTMQ_REWRITE"):
        METRICS.write_text(text)
    assert METRICS.read_text() == text


def test_certificate_alert_covers_the_metric_of_every_program(
    known: Known,
) -> None:
    """A program more with TLS of its own has to stand in the expositions above, too."""
    programs = {
        path.relative_to(ROOT).parts[0] for path in product() if "ProcessTls(" in path.read_text()
    }
    assert programs >= {"broker", "namesrv", "proxy"}
    (rule,) = (rule for rule in rules() if rule["alert"] == "RaftmqCertificateExpires")
    prefixes = {"rocketmq" if each == "broker" else f"rocketmq_{each}" for each in programs}
    expected = {f"{each}_tls_certificate_not_after_seconds" for each in prefixes}
    assert expected <= known.keys()
    assert set(METRIC.findall(rule["expr"])) == expected


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def check_expression(expression: str, known: Known) -> None:
    bare = re.sub(r'"[^"]*"', '""', expression)
    assert bare.count("(") == bare.count(")") and bare.count("{") == bare.count("}"), expression
    names = METRIC.findall(bare)
    assert names or re.search(r"\bup\b", bare), f"no metric: {expression}"
    labels = set(OF_THE_TARGET)
    for name in names:
        assert name in known, f"{name} does not exist: {expression}"
        labels |= known[name]
    for name, selected in SELECTOR.findall(re.sub(r'"[^"]*"', '""', expression)):
        for label in re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", selected):
            assert label in known[name] | OF_THE_TARGET, f"{name} has no {label}: {expression}"
    for grouped in GROUPING.findall(bare):
        for label in filter(None, (part.strip() for part in grouped.split(","))):
            assert label in labels, f"nothing has {label}: {expression}"
    for function in re.findall(r"\b([a-z_]+)\s*\(", bare):
        assert function in FUNCTIONS | {"and", "or", "unless", "group_left"}, function


def test_alerts_query_existing_metrics(known: Known) -> None:
    assert len(rules()) >= 25
    for rule in rules():
        check_expression(str(rule["expr"]), known)


def test_every_alert_has_all_fields() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert re.fullmatch(r"\d+(s|m)", str(rule["for"]))


def test_every_alert_has_its_runbook_and_every_runbook_its_alert() -> None:
    index = (RUNBOOKS / "README.md").read_text()
    expected: dict[str, set[str]] = {}
    for rule in rules():
        expected.setdefault(rule["annotations"]["runbook_url"], set()).add(rule["alert"])
    for url, alerts in expected.items():
        text = (ROOT / url).read_text()
        named = set(re.findall(r"`(Raftmq\w+)`", text))
        assert named == alerts, url
        assert f"({Path(url).name})" in index
        for part in ("Meaning", "Impact", "Diagnosis", "Remedy", "Escalation"):
            assert f"\n## {part}" in text, (url, part)
    files = {f"docs/runbooks/{path.name}" for path in RUNBOOKS.glob("*.md")}
    assert files == set(expected) | {f"docs/runbooks/{name}" for name in WITHOUT_ALERT}
    for name in WITHOUT_ALERT - {"README.md"}:
        assert f"({name})" in index


def test_runbook_commands_and_options_exist() -> None:
    known = {command.name: command.flags for command in COMMANDS}
    text = "\n".join(path.read_text() for path in sorted(RUNBOOKS.glob("*.md")))
    typed = re.findall(r"mqadmin (\w+)((?: +-\w\s+[\w.:-]+)*)", text)
    assert len(typed) > 4
    for name, arguments in typed:
        shorts = {flag.short for flag in known[name]} | {"n"}
        assert set(re.findall(r" -(\w)\s", arguments)) <= shorts, (name, arguments)
    assert set(re.findall(r"mqcluster (\w+) --dir", text)) <= set(mqcluster.commands)
    keys = set(re.findall(r"^ +([a-zA-Z]\w+)=", text, re.MULTILINE))
    assert {"raftJoin", "dLegerPeers"} <= keys <= set(broker_config.OPTIONS)


def test_unknown_metric_in_an_alert_is_found(known: Known) -> None:
    for expression in (
        "raft_nothing > 0",
        "sum by (nobody) (raft_term)",
        'raft_term{group="x"} > 0',
        "sum(raft_term",
        "mean(raft_term)",
    ):
        with pytest.raises(AssertionError):
            check_expression(expression, known)


def test_runbooks_name_existing_metrics_links_keys_and_events(known: Known) -> None:
    sources = "".join(
        path.read_text()
        for room in ("broker", "dledger", "namesrv", "store", "remoting", "ops")
        for path in sorted((ROOT / room).rglob("*.py"))
    )
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known} | set(known)
    keys = set(broker_config.OPTIONS) | set(namesrv_config.OPTIONS)
    result: Counter[str] = Counter()
    for path in RUNBOOKS.glob("*.md"):
        text = path.read_text()
        for name in METRIC.findall(text):
            result["metrics"] += 1
            assert name in families, (path.name, name)
        for target in re.findall(r"\]\(([\w-]+\.md)\)", text):
            result["links"] += 1
            assert (RUNBOOKS / target).exists(), (path.name, target)
        for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text):
            key = re.fullmatch(r"([a-z]+(?:[A-Z][a-zA-Z0-9]*)+)(?:=\w+)?", span)
            if key is not None:
                result["keys"] += 1
                there = key[1] in keys or f'"{key[1]}"' in sources
                assert there, f"{path.name}: no key {span}"
        for events in re.findall(r"[Ll]ogs?\b[^\n]*:[^\n]*(?:\n[^\n]+)*", text):
            for event in re.findall(r"`([a-z]+_[a-z_]+)", events):
                if not METRIC.fullmatch(event):
                    result["events"] += 1
                    assert event in sources, f"{path.name}: no event {event}"
    assert result.keys() == {"metrics", "links", "keys", "events"}


def test_grafana_provisioning_is_valid() -> None:
    sources = yaml.safe_load((PROVISIONING / "datasources" / "raftmq.yml").read_text())
    assert [source["type"] for source in sources["datasources"]] == ["prometheus"]
    boards = yaml.safe_load((PROVISIONING / "dashboards" / "raftmq.yml").read_text())
    assert boards["providers"][0]["options"]["path"].startswith("/var/lib/grafana")


def test_scrape_jobs_and_rules_match() -> None:
    config = yaml.safe_load(SCRAPES.read_text())
    for name in config["rule_files"]:
        assert (SCRAPES.parent / name).exists()
    jobs = {job["job_name"] for job in config["scrape_configs"]}
    matches = set(re.findall(r'job="([^"]+)"', ALERTS.read_text() + DASHBOARD.read_text()))
    assert matches <= jobs
    assert all(job["metrics_path"] == "/metrics" for job in config["scrape_configs"])


def test_grafana_dashboard_queries_existing_metrics_without_overlap(known: Known) -> None:
    board = json.loads(DASHBOARD.read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            check_expression(target["expr"], known)
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
            assert match is not None, variable["definition"]
            check_expression(match[1], known)
            assert match[2] in known[METRIC.findall(match[1])[0]]
    for annotation in board["annotations"]["list"]:
        if "expr" in annotation:
            check_expression(annotation["expr"], known)
