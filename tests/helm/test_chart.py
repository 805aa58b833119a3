"""Helm itself takes the chart: lints it, renders it as tests/helm/rendered has it, refuses wrong
values; and the types of the Kubernetes API take what it renders.

Helm is built from its Go module, which takes minutes (or HELM names one), so these are long.
"""

import base64
import json
import re
import ssl
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from raftmq.remoting.tls_links import valid_for
from tests.helm.rendering import (
    CASES,
    CHART,
    HERE,
    KUBERNETES,
    NAMESPACE,
    RENDERED,
    Object,
    render,
    run_helm,
    template,
    tool,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
MORE = [  # besides the cases
    "tls.source=certManager",
    "tls.source=plaintext",
    "accounts.source=everybody",
    "broker.antiAffinity=none,nameServer.antiAffinity=required",
    "monitoring.serviceMonitor=true,monitoring.prometheusRule=true,monitoring.grafanaDashboard=true",
    "chaos.enabled=true,chaos.gracePeriodSeconds=90",
    "proxy.enabled=true,broker.groups=12",
    "broker.storage.storageClass=fast,broker.preStopSeconds=0",
]


def rendered_with(*options: str, release: str = "mq") -> list[Object]:
    result = template(*options, release=release)
    assert result.returncode == 0, result.stderr
    return [one for one in yaml.safe_load_all(result.stdout) if one]


def judged(text: str) -> subprocess.CompletedProcess[str]:
    """What the strict decoder says of YAML documents."""
    decode = tool("decode", "./decode")
    return subprocess.run([decode], input=text, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("case", CASES)
def test_helm_lint_finds_nothing(case: str) -> None:
    values = str(HERE / "cases" / f"{case}.yaml")
    result = run_helm(
        "lint", "--strict", "--values", values, "--kube-version", KUBERNETES, str(CHART)
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("case", CASES)
def test_rendered_chart_equals_the_stored_one(case: str) -> None:
    assert render(case) == (RENDERED / f"{case}.yaml").read_text(), "make helm"


@pytest.mark.parametrize("options", MORE)
def test_api_types_accept_every_object(options: str) -> None:
    result = template("--set", options)
    assert result.returncode == 0, result.stderr
    judgement = judged(result.stdout)
    assert judgement.returncode == 0, judgement.stdout
    assert judgement.stdout.count("good ") == result.stdout.count("\nkind: ")


@pytest.mark.parametrize("case", CASES)
def test_api_types_accept_every_case(case: str) -> None:
    judgement = judged((RENDERED / f"{case}.yaml").read_text())
    assert judgement.returncode == 0, judgement.stdout


def test_decoder_rejects_an_unknown_field() -> None:
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {prots: []}\n"
    judgement = judged(f"---\n{service}")
    assert judgement.returncode == 1 and 'unknown field "spec.prots"' in judgement.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("broker.replicas=4", "/broker/replicas"),
        ("broker.groups=0", "/broker/groups"),
        ("broker.setings.fileReservedTime=1", "setings"),
        ("tls.source=none", "/tls/source"),
        ("tls.source=secret,tls.secret=a", "/tls/raftSecret"),
        ("accounts.source=secret", "/accounts/secret"),
        ("accounts.source=", "/accounts/source"),
        ("tls.mode=disabled", "/tls/mode"),
        ("accounts.enforce=no", "/accounts/enforce"),
        ("broker.flushDiskType=NEVER", "/broker/flushDiskType"),
        ("broker.storage.size=big", "/broker/storage/size"),
    ],
)
def test_wrong_values_are_rejected_by_name(options: str, words: str) -> None:
    result = template("--set", options)
    assert result.returncode != 0 and words in result.stderr


def test_older_kubernetes_is_rejected() -> None:
    result = run_helm("template", "mq", str(CHART), "--kube-version", "1.27.0")
    assert result.returncode != 0 and "kubeVersion" in result.stderr


def test_generated_certificates_have_the_dialled_names() -> None:
    objects = rendered_with("--set", "tls.extraNames={mq.example.org}", release="other")
    secrets = {one["metadata"]["name"]: one for one in objects if one["kind"] == "Secret"}
    clients = issued(secrets["other-raftmq-tls"])
    replicas = issued(secrets["other-raftmq-raft-tls"])
    domain = f"{NAMESPACE}.svc.cluster.local"
    pod = f"other-raftmq-broker-0-2.other-raftmq-broker.{domain}"
    assert valid_for(replicas, pod) and valid_for(clients, pod)
    for name in (
        f"other-raftmq-namesrv-1.other-raftmq-namesrv-pods.{domain}",
        f"other-raftmq-namesrv.{domain}",
        f"other-raftmq-proxy.{NAMESPACE}.svc",
        "mq.example.org",
        "localhost",
    ):
        assert valid_for(clients, name), name
        assert not valid_for(replicas, name)
    assert valid_for(clients, "127.0.0.1")


def issued(secret: Object) -> dict[str, Any]:
    """The names of a Secret's certificate, as ssl shows them; its CA must be the Secret's, and its
    key its own."""
    cert, key, authority = (
        base64.b64decode(secret["data"][name]) for name in ("tls.crt", "tls.key", "ca.crt")
    )
    parsed, issuer = x509.load_pem_x509_certificate(cert), x509.load_pem_x509_certificate(authority)
    parsed.verify_directly_issued_by(issuer)
    assert key.startswith(b"-----BEGIN ")
    names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    usages = parsed.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert {usage.dotted_string for usage in usages} == {
        ssl.Purpose.SERVER_AUTH.oid,
        ssl.Purpose.CLIENT_AUTH.oid,
    }
    result = [("DNS", name) for name in names.get_values_for_type(x509.DNSName)]
    result += [("IP Address", str(ip)) for ip in names.get_values_for_type(x509.IPAddress)]
    return {"subjectAltName": tuple(result)}


def test_every_installation_has_its_own_secrets() -> None:
    def secrets() -> str:
        return json.dumps([one for one in rendered_with() if one["kind"] == "Secret"])

    assert secrets() != secrets()


def test_chart_alerts_and_dashboard_equal_the_repositorys() -> None:
    monitoring = "monitoring.prometheusRule=true,monitoring.grafanaDashboard=true"
    runbooks = "monitoring.runbooks=https://wiki.example.org/runbooks"
    objects = rendered_with("--set", f"{monitoring},{runbooks}")
    (rules,) = [one["spec"] for one in objects if one["kind"] == "PrometheusRule"]
    deploy = CHART.parents[1]
    alerts = (deploy / "prometheus" / "alerts.yml").read_text()
    there = alerts.replace(": docs/runbooks/", ": https://wiki.example.org/runbooks/")
    assert rules == yaml.safe_load(there)
    (shown,) = [one["data"] for one in objects if "raftmq.json" in one.get("data", {})]
    dashboard = json.loads((deploy / "grafana" / "dashboard.json").read_text())
    assert json.loads(shown["raftmq.json"]) == dashboard


def test_chart_package_has_all_files(tmp_path: Path) -> None:
    result = run_helm("package", "--destination", str(tmp_path), str(CHART))
    assert result.returncode == 0, result.stderr
    (package,) = tmp_path.glob("*.tgz")
    with tarfile.open(package) as archive:
        packed = archive.extractfile("raftmq/files/alerts.yml")
        assert packed is not None and b"RaftmqGroupWithoutLeader" in packed.read()
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    assert re.fullmatch(rf"raftmq-{re.escape(version)}\.tgz", package.name)
