"""The keys of TLS: under our names and Apache's, in both formats, and what must go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftmq.broker.config import load, parse_live
from raftmq.namesrv.config import load as load_namesrv
from raftmq.ops.options import ConfigError

PEERS = "dLegerPeers=n0-127.0.0.1:40911"
RAFT = (PEERS, "enableDLegerCommitLog=true")

TOML = {
    "our names": '[tls]\ntlsServerMode = "permissive"\ntlsServerCertPath = "c.pem"\n',
    "a table": '[tls]\nserver.mode = "permissive"\nserver.certPath = "c.pem"\n',
    "tables": '[tls.server]\nmode = "permissive"\ncertPath = "c.pem"\n',
    "above": 'tls.server.mode = "permissive"\ntls.server.certPath = "c.pem"\n',
    "quoted": '[tls]\n"tls.server.mode" = "permissive"\n"tls.server.certPath" = "c.pem"\n',
}


@pytest.mark.parametrize("form", TOML)
def test_tls_keys_in_toml(form: str, tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(TOML[form])
    config = load(str(path)).config
    assert (config.tls_server_mode, config.tls_server_cert_path) == ("permissive", "c.pem")


def test_tls_keys_in_properties_and_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text(
        "tls.server.mode=enforcing\ntls.server.certPath=c.pem\ntls.server.keyPassword=hush\n"
        "tls.server.need.client.auth=require\ntls.enable=true\ntls.client.authServer=false\n"
    )
    variables = {"RAFTMQ_TLS_SERVER_TRUST_CERT_PATH": "ca.pem"}
    config = load_namesrv(str(path), (), variables).config
    assert config.tls_server_mode == "enforcing"
    assert config.tls_server_key_password == "hush"
    assert config.tls_server_trust_cert_path == "ca.pem"
    assert config.tls_enable
    assert not config.tls_client_auth_server
    assert "hush" not in repr(config)
    assert "hush" not in load(None, ["tls.server.keyPassword=hush"]).config.properties_text()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["tls.server.mode=enforcing"], "tlsServerMode=enforcing: needs tlsServerCertPath"),
        (["tlsServerMode=permisive"], "did you mean permissive?"),
        (["httpTlsMode=enforcing"], "needs httpTlsCertPath or tlsServerCertPath"),
        (["tlsServerNeedClientAuth=require"], "needs tlsServerTrustCertPath"),
        (["raftTlsMode=enforcing", "raftTlsCertPath=c", *RAFT], "needs raftTlsTrustCertPath"),
        (["raftTlsMode=enforcing", *RAFT], "needs raftTlsCertPath or tlsServerCertPath"),
        (
            ["raftTlsMode=enforcing", "raftTlsCertPath=c", "raftTlsTrustCertPath=d"],
            "there is no Raft group",
        ),
    ],
)
def test_contradictory_tls_settings_are_rejected(settings: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        load(None, settings)


def test_contradictory_tls_settings_of_a_name_server_are_rejected() -> None:
    with pytest.raises(ConfigError, match="--set: tlsServerMode=enforcing: needs"):
        load_namesrv(None, ["tls.server.mode=enforcing"])


def test_tls_keys_cannot_change_at_run_time() -> None:
    expected = parse_live({"tls.server.mode": "permissive", "topicsMax": 5})
    assert expected.fixed == {"tlsServerMode": "permissive"}
    assert expected.live == {"topicsMax": 5}
