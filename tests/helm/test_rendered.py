"""The rendered chart fits the product: its configuration files, commands, ports, probes and secrets
are what the servers take; and its parts fit each other."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import raftmq
from raftmq.audit.watch.command import watch
from raftmq.broker.config import OPTIONS as BROKER_OPTIONS
from raftmq.broker.config import BrokerConfig
from raftmq.broker.config import load as load_broker
from raftmq.commands import COMMANDS
from raftmq.mqadmin.commands import COMMANDS as MQADMIN_COMMANDS
from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.config import load as load_namesrv
from raftmq.proxy.config import ProxyConfig
from raftmq.proxy.config import load as load_proxy
from raftmq.remoting.acl.account_file import parse_accounts
from raftmq.remoting.acl.signature import credentials_of
from raftmq.remoting.registration_proof import load_registration_keys
from raftmq.web.auth import load_token, load_tokens
from tests.helm.objects import Pod, Rendered, template_of
from tests.helm.rendering import CASES, CHART, DIGEST, NAMESPACE, Object, digest

ROOT = CHART.parents[2]
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
GROUPS = {"default": 1, "proxies": 2, "large": 2, "own": 1, "open": 1, "between": 1}
OWN_SECRETS = {
    "own-secrets": {
        key: "0123456789abcdef"
        for key in ("peer.secret", "registration.key", "tokens.json", "cluster.token")
    }
    | {"metrics.token": "0123456789abcdef", "operator.token": "0123456789abcdef"},
    "own-accounts": {
        "plain_acl.yml": "accounts: []",
        "inner.json": '{"accessKey":"inner-key","secretKey":"inner-secret"}',
        "accessKey": "k",
        "secretKey": "s",
    },
    "own-tls": {"tls.crt": "", "tls.key": "", "ca.crt": ""},
    "own-raft-tls": {"tls.crt": "", "tls.key": "", "ca.crt": ""},
}
CERTIFICATES = {"tls.crt": "", "tls.key": "", "ca.crt": ""}  # what cert-manager makes
ISSUED = {"mq-raftmq-tls": CERTIFICATES, "mq-raftmq-raft-tls": CERTIFICATES}


def servers(case: str) -> list[Pod]:
    result = Rendered.of(case)
    secrets = OWN_SECRETS if case == "own" else ISSUED if case == "large" else {}
    owners = [*result.of_kind("StatefulSet"), *result.of_kind("Deployment")]
    owners = [one for one in owners if not is_watch(one)]
    assert owners, case
    return [
        Pod(result, owner, index, secrets)
        for owner in owners
        for index in range(owner["spec"]["replicas"])
    ]


def component(pod: Pod) -> str:
    return str(template_of(pod.owner)["metadata"]["labels"]["app.kubernetes.io/component"])


def is_watch(one: Object) -> bool:
    """Whether it belongs to the continuous audit, which is no server of the cluster."""
    return one["metadata"]["labels"].get("app.kubernetes.io/component") == "watch"


def config_of(pod: Pod, tmp_path: Path) -> BrokerConfig | NameServerConfig | ProxyConfig:
    """What the pod's command makes of its file and environment; unknown keys are errors."""
    pod.write_files(tmp_path)
    command, flag, path = pod.container["command"]
    assert flag == "--config"
    file, environment = str(tmp_path / path.lstrip("/")), pod.environment()
    if command == "mqbroker":
        return load_broker(file, (), environment).config
    if command == "mqnamesrv":
        return load_namesrv(file, (), environment).config
    assert command == "mqproxy"
    return load_proxy(file, (), environment).config


def test_stored_rendering_matches_the_chart() -> None:
    assert digest() == DIGEST.read_text().strip(), "make helm"


@pytest.mark.parametrize("case", CASES)
def test_brokers_read_their_configuration_and_form_groups(case: str, tmp_path: Path) -> None:
    groups: dict[str, list[BrokerConfig]] = {}
    for pod in servers(case):
        if component(pod) == "broker":
            config = config_of(pod, tmp_path / pod.name)
            assert isinstance(config, BrokerConfig)
            groups.setdefault(config.broker_name, []).append(config)
            assert config.without_effect() == ()
            own = next(peer for peer in config.peers if peer.node_id == config.dleger_self_id)
            assert own.host == config.broker_ip1
            assert own.host.split(".")[0] == pod.name
            assert pod.spec.get("subdomain") is None  # a StatefulSet's serviceName makes it
            service = pod.owner["spec"]["serviceName"]
            assert own.host == f"{pod.name}.{service}.{NAMESPACE}.svc.cluster.local"
    assert list(groups) == [f"broker-{number}" for number in range(GROUPS[case])]
    for members in groups.values():
        assert [one.dleger_self_id for one in members] == [p.node_id for p in members[0].peers]
        assert len(members) == (5 if case == "large" else 3)
        assert len({one.dleger_peers for one in members}) == 1
        assert {one.flush_disk_type for one in members} == {
            "ASYNC_FLUSH" if case == "large" else "SYNC_FLUSH"
        }


@pytest.mark.parametrize("case", CASES)
def test_every_server_knows_all_name_servers_by_name(case: str, tmp_path: Path) -> None:
    names = [
        f"{pod.name}.{pod.owner['spec']['serviceName']}.{NAMESPACE}.svc.cluster.local"
        for pod in servers(case)
        if component(pod) == "namesrv"
    ]
    addresses = ";".join(f"{name}:9876" for name in names)
    advertised = []
    for pod in servers(case):
        config = config_of(pod, tmp_path / pod.name)
        if isinstance(config, BrokerConfig):
            assert config.namesrv_addr == addresses
        elif isinstance(config, ProxyConfig):
            assert config.namesrv == addresses
        else:
            advertised.append(config.http_advertised_address)
    assert advertised == [f"{name}:9880" for name in names]


@pytest.mark.parametrize("case", CASES)
def test_chart_is_open_only_where_requested(case: str, tmp_path: Path) -> None:
    tls = {"open": "disabled", "between": "permissive"}.get(case, "enforcing")
    for pod in servers(case):
        config = config_of(pod, tmp_path / pod.name)
        assert config.tls_server_mode == config.http_tls_mode == tls
        assert config.tls_enable is (case != "open")
        assert config.tls_client_auth_server
        assert config.tls_client_check_host_name
        assert config.acl_enable is (case not in ("open", "between"))
        assert config.http_tokens_file
        if isinstance(config, BrokerConfig):
            assert config.peer_secret
            assert config.raft_tls_mode == tls
            assert config.registration_key_file
        if isinstance(config, NameServerConfig):
            assert config.registrations_must_be_signed is (case != "open")
            assert config.http_cluster_token_in_the_clear is (case == "open")
        else:
            assert (config.inner_credentials is not None) is (case != "open")


def test_settings_of_the_values_are_in_the_files(tmp_path: Path) -> None:
    for pod in servers("large"):
        config = config_of(pod, tmp_path / pod.name)
        if isinstance(config, BrokerConfig):
            assert (config.file_reserved_time, config.max_hash_slot_num) == (48, 10_000_000)
            assert config.enable_property_filter
        if isinstance(config, ProxyConfig):
            assert config.idempotent_sends


@pytest.mark.parametrize("case", CASES)
def test_every_file_that_a_configuration_names_is_mounted(case: str, tmp_path: Path) -> None:
    for pod in servers(case):
        files, mounts = pod.files(), pod.container["volumeMounts"]
        text = "\n".join([files[pod.container["command"][2]], *pod.environment().values()])
        named = set(re.findall(r"/etc/raftmq/[\w./-]+", text))
        assert named and named <= set(files), pod.name
        for path in re.findall(r"/var/lib/[\w./-]+", text):
            (mount,) = [one for one in mounts if path.startswith(one["mountPath"])]
            assert mount["name"] == "data"


def test_generated_secrets_are_readable_by_the_servers(tmp_path: Path) -> None:
    result = Rendered.of("default")
    secrets, accounts = (result.data("Secret", f"mq-raftmq-{n}") for n in ("secrets", "accounts"))
    for key, text in (secrets | accounts).items():
        (tmp_path / key).write_text(text)
        (tmp_path / key).chmod(0o440)  # as a kubelet mounts them, for the group of the pod
    assert len(load_registration_keys(str(tmp_path / "registration.key"))) == 1
    roles = {one["token"]: one["role"] for one in json.loads(secrets["tokens.json"])["tokens"]}
    assert len(load_tokens(tmp_path / "tokens.json")) == len(roles) == 3
    for name, role in (("cluster", "admin"), ("operator", "operator"), ("metrics", "viewer")):
        assert roles[load_token(tmp_path / f"{name}.token", "key")] == role
    assert len(secrets["peer.secret"]) >= 32
    by_key = parse_accounts(accounts["plain_acl.yml"]).by_key
    inner = credentials_of(accounts["inner.json"])
    assert inner is not None
    known = {key: (one.secret_key, one.admin) for key, one in by_key.items()}
    assert known[inner.access_key] == (inner.secret_key, True)
    assert known[accounts["accessKey"]] == (accounts["secretKey"], True)


@pytest.mark.parametrize("case", CASES)
def test_ports_are_where_the_servers_listen(case: str, tmp_path: Path) -> None:
    result = Rendered.of(case)
    for pod in servers(case):
        config = config_of(pod, tmp_path / pod.name)
        ports = {one["name"]: one["containerPort"] for one in pod.container["ports"]}
        if isinstance(config, BrokerConfig):
            listened = {"client": config.listen_port, "vip": config.listen_port - 2}
            assert ports == listened | {"raft": 40911, "http": config.listen_port + 4}
            assert {peer.port for peer in config.peers} == {40911}
        elif isinstance(config, ProxyConfig):
            assert ports == {"grpc": config.port, "http": config.port + 4}
        else:
            assert ports == {"remoting": config.port, "http": config.port + 4}
        labels = template_of(pod.owner)["metadata"]["labels"]
        selecting = [
            one for one in result.of_kind("Service")
            if one["spec"]["selector"].items() <= labels.items()
        ]  # fmt: skip
        offered = {p["targetPort"]: p["port"] for one in selecting for p in one["spec"]["ports"]}
        assert offered == ports
        for policy in result.of_kind("NetworkPolicy"):
            if policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items():
                allowed = {p["port"] for rule in policy["spec"]["ingress"] for p in rule["ports"]}
                assert allowed == set(ports.values())


@pytest.mark.parametrize("case", CASES)
def test_selectors_and_names_match(case: str) -> None:
    result = Rendered.of(case)
    names = {(one["kind"], one["metadata"]["name"]) for one in result.objects}
    for owner, template in result.pods():
        if owner["kind"] in ("StatefulSet", "Deployment"):
            labels = template["metadata"]["labels"]
            expected = owner["spec"]["selector"]["matchLabels"]
            assert expected.items() <= labels.items()
            others = [t for o, t in result.pods() if o is not owner]
            assert not [
                t for t in others if expected.items() <= t["metadata"]["labels"].items()
            ]  # or two would fight for a pod
        if owner["kind"] == "StatefulSet":
            assert ("Service", owner["spec"]["serviceName"]) in names
        for volume in template["spec"].get("volumes", []):
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in names
        account = ("ServiceAccount", template["spec"]["serviceAccountName"])
        assert account in names or case == "own"


@pytest.mark.parametrize("case", CASES)
def test_pods_run_without_root_and_without_a_writable_root(case: str) -> None:
    for owner, template in Rendered.of(case).pods():
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 10001  # the image's
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["enableServiceLinks"] is False
        chaos = owner["kind"] == "CronJob"  # which alone asks the Kubernetes API
        assert spec.get("automountServiceAccountToken", True) is chaos
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]


def test_watch_of_the_chart_is_a_command_of_mqaudit() -> None:
    result = Rendered.of("large")
    (owner,) = [one for one in result.of_kind("StatefulSet") if is_watch(one)]
    pod = Pod(result, owner)
    given = watch.make_context("watch", pod.container["command"][2:]).params
    (broker, *_) = [each for each in servers("large") if component(each) == "broker"]
    assert given["namesrv"] == broker.environment()["RAFTMQ_NAMESRV_ADDR"]
    assert (given["audit_topic"], given["minutes"]) == ("Receipts", 0.5)
    assert given["consumer_groups"] == ("billing", "audit")
    assert {"name": "data", "mountPath": str(given["results"])} in pod.container["volumeMounts"]
    (policy,) = [one for one in result.of_kind("NetworkPolicy") if is_watch(one)]
    ports = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert ports == {pod.container["ports"][0]["containerPort"]}
    assert given["listen"] == f"0.0.0.0:{ports.pop()}"
    assert not [one for one in Rendered.of("default").objects if is_watch(one)]


def test_disruption_budget_permits_one_replica_of_a_group() -> None:
    result = Rendered.of("large")
    for owner in [*result.of_kind("StatefulSet"), *result.of_kind("Deployment")]:
        if is_watch(owner):
            continue
        labels = template_of(owner)["metadata"]["labels"]
        (budget,) = [
            one for one in result.of_kind("PodDisruptionBudget")
            if one["spec"]["selector"]["matchLabels"].items() <= labels.items()
        ]  # fmt: skip
        assert budget["spec"]["maxUnavailable"] == 1
    for owner in Rendered.of("default").of_kind("StatefulSet"):
        spec = template_of(owner)["spec"]
        rules = spec["affinity"]["podAntiAffinity"]
        required = "requiredDuringSchedulingIgnoredDuringExecution" in rules
        assert required is ("broker" in owner["metadata"]["name"])
        assert owner["spec"]["podManagementPolicy"] == "Parallel"


def test_start_has_a_day_and_a_stop_longer_than_its_hook() -> None:
    for pod in servers("default"):
        startup, container = pod.container["startupProbe"], pod.container
        seconds = startup["periodSeconds"] * startup["failureThreshold"]
        assert seconds >= (86_400 if component(pod) == "broker" else 300)
        paths = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness")]
        assert {one["path"] for one in paths} == {"/health/live"}
        assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"
        assert {one["scheme"] for one in paths} == {"HTTPS"}
        if component(pod) == "broker":
            *_, script, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
            assert script in pod.files()
            assert int(seconds) + 30 <= pod.spec["terminationGracePeriodSeconds"]


def test_chart_commands_are_the_products() -> None:
    for case in CASES:
        for _, template in Rendered.of(case).pods():
            (container,) = template["spec"]["containers"]
            assert container["command"][0] in {*COMMANDS, "sh", "python3"}
    script = (CHART / "files" / "message.sh").read_text()
    known = {command.name: command for command in MQADMIN_COMMANDS}
    used = set(re.findall(r"\bmqadmin (\w+)", script))
    assert used == {"updateTopic", "sendMessage", "consume"} and used <= known.keys()


def test_removed_groups_are_drained_before_the_upgrade() -> None:
    assert not Rendered.of("large").of_kind("Job")
    (job,) = Rendered.of("proxies").of_kind("Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    assert job["spec"]["backoffLimit"] == 0  # it refuses the upgrade
    pod = Pod(Rendered.of("proxies"), job)
    told = pod.environment()
    assert (told["BROKER_GROUPS"], told["DRAIN_SECONDS"]) == ("", "7200")  # none runs here
    _, _, script, _, *options = pod.container["command"]
    assert options == ["--moveTimers", "--to=broker-0", "--givenUp=billing", "--givenUp=audit"]
    known = {command.name: command for command in MQADMIN_COMMANDS}
    used = {match[1] for match in re.finditer(r"mqadmin (\w+)", script)}
    assert used == {"drainGroup"}
    flags = {flag.long for flag in known["drainGroup"].flags}
    assert {"wait", "moveDeadLetters", *re.findall(r"--(\w+)", " ".join(options))} <= flags


def test_chart_monitoring_equals_the_prometheus_configuration() -> None:
    result = Rendered.of("large")
    jobs, services = set(), result.of_kind("Service")
    for monitor in result.of_kind("ServiceMonitor"):
        (endpoint,) = monitor["spec"]["endpoints"]
        jobs |= {r["replacement"] for r in endpoint["relabelings"] if r.get("targetLabel") == "job"}
        expected = monitor["spec"]["selector"]["matchLabels"]
        (service,) = [s for s in services if expected.items() <= s["metadata"]["labels"].items()]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        assert service["spec"]["clusterIP"] == "None"
        if not is_watch(service):
            assert endpoint["tlsConfig"]["serverName"] in dns_names(result)
    scrapes = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    assert jobs == {one["job_name"] for one in scrapes["scrape_configs"]}
    for name, position in (("alerts.yml", "prometheus"), ("dashboard.json", "grafana")):
        linked = CHART / "files" / name
        assert linked.resolve() == (ROOT / "deploy" / position / name).resolve()


def dns_names(found: Rendered) -> list[str]:
    names: list[str] = found.named("Certificate", "mq-raftmq-tls")["spec"]["dnsNames"]
    return names


def test_certificates_cover_all_dialled_names(tmp_path: Path) -> None:
    result = Rendered.of("large")
    replicas = result.named("Certificate", "mq-raftmq-raft-tls")["spec"]["dnsNames"]
    issuers = {
        one["metadata"]["name"]: one["spec"]["issuerRef"] for one in result.of_kind("Certificate")
    }
    assert issuers["mq-raftmq-tls"] == {"name": "company", "kind": "ClusterIssuer"}
    assert issuers["mq-raftmq-raft-tls"]["name"] == "mq-raftmq-raft-tls"  # never somebody else's
    for pod in servers("large"):
        config = config_of(pod, tmp_path / pod.name)
        if isinstance(config, BrokerConfig):
            assert f"*.{config.broker_ip1.partition('.')[2]}" in dns_names(result)
            assert [f"*.{peer.host.partition('.')[2]}" for peer in config.peers] == replicas * 5
            for address in config.name_servers:
                assert f"*.{address.partition('.')[2].removesuffix(':9876')}" in dns_names(result)
    for service in ("namesrv", "proxy"):
        assert f"mq-raftmq-{service}.{NAMESPACE}.svc.cluster.local" in dns_names(result)


def test_values_and_their_schema_have_the_same_keys() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(values: Object, described: Object, where: str) -> None:
        known = described.get("properties")
        if known is None:
            return
        assert described["additionalProperties"] is False, where
        assert set(values) == set(known) - {"global"}, where
        for key, value in values.items():
            if isinstance(value, dict) and key != "issuer":  # empty, unless one is named
                compare(value, known[key], f"{where}.{key}")

    compare(VALUES, schema, "")


def test_chart_installs_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == raftmq.__version__
    (pod, *_) = servers("default")
    assert pod.container["image"] == f"raftmq:{raftmq.__version__}"


def test_documented_keys_are_brokers_keys() -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text() + (CHART / "README.md").read_text()
    keys = set(re.findall(r"settings\.(\w+)", text))
    assert keys and keys <= set(BROKER_OPTIONS)


def test_image_files_and_the_chart_agree() -> None:
    """The volume's directory is the image's, and broker.toml says of a container what the chart
    says."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    assert "/var/lib/raftmq" in dockerfile and "--uid 10001" in dockerfile
    toml = tomllib.loads((ROOT / "deploy" / "config" / "broker.toml").read_text())
    text = Rendered.of("default").data("ConfigMap", "mq-raftmq-broker")["broker.conf"]
    store = {key: value for table in toml.values() for key, value in table.items()}
    for key in ("storePathRootDir", "mappedFileSizeCommitLog", "flushDiskType", "bindAddress"):
        assert f"{key}={store[key]}\n" in text + "\n"
