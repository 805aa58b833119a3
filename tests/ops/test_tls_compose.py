"""deploy/docker-compose.tls.yml turns TLS on for what docker-compose.yml starts."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from raftmq.broker.config import BrokerConfig, load
from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.config import load as load_namesrv
from raftmq.proxy.config import ProxyConfig
from raftmq.proxy.config import load as load_proxy

ROOT = Path(__file__).parents[2]
SERVERS = ("['mqbroker'", "['mqnamesrv'", "['mqproxy'")
DEFAULTS = "${RAFTMQ_TLS_CLIENT_CERTIFICATES:-none}"


def services(name: str) -> dict[str, Any]:
    result = yaml.safe_load((ROOT / name).read_text())["services"]
    assert isinstance(result, dict)
    return result


WITHOUT, WITH = services("docker-compose.yml"), services("deploy/docker-compose.tls.yml")


def test_tls_compose_file_covers_exactly_the_servers() -> None:
    servers = {
        name
        for name, service in WITHOUT.items()
        if str(service.get("command", "")).startswith(SERVERS)
    }
    assert set(WITH) == servers
    for name, service in WITH.items():
        assert service["volumes"] == [f"${{RAFTMQ_TLS_DIRECTORY:-./tls}}/{name}:/etc/raftmq/tls:ro"]


@pytest.mark.parametrize("name", WITH)
def test_tls_compose_file_leaves_no_plain_connection(name: str) -> None:
    added = {
        key: value.replace(DEFAULTS, "none") for key, value in WITH[name]["environment"].items()
    }
    own = WITHOUT[name].get("environment", {})
    environment = {**{key: str(v) for key, v in own.items() if "${" not in str(v)}, **added}
    config: BrokerConfig | NameServerConfig | ProxyConfig
    if name.startswith("nameserver"):
        config = load_namesrv(None, (), environment).config
    elif name.startswith("proxy"):
        config = load_proxy(None, (), environment).config
    else:
        config = load(None, (), environment).config
        assert config.raft_tls_mode == ("disabled" if config.is_classic else "enforcing")
    assert config.tls_server_mode == config.http_tls_mode == "enforcing"
    assert config.tls_enable
    assert config.tls_client_auth_server
    assert config.tls_client_check_host_name
