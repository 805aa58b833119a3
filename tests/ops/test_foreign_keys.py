"""Configuration files of Apache's programs: keys are skipped, warned of, refused or converted."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from raftmq.broker import config as broker
from raftmq.namesrv import config as namesrv
from raftmq.ops.foreign_keys import NOT_NEEDED, OTHERWISE, REFUSED, converted, read_table
from raftmq.ops.options import ConfigError
from raftmq.proxy import config as proxy

PROGRAMS = {"mqbroker": broker, "mqnamesrv": namesrv, "mqproxy": proxy}
BROKER_CONF = """\
brokerClusterName = DefaultCluster
brokerName = broker-a
deleteWhen = 04
sendMessageThreadPoolNums = 64
mapedFileSizeConsumeQueue = 300000
storePathRootDir = /srv/store
storePathCommitLog = /srv/store/commitlog/
inSyncReplicas = 2
storeType = default
"""


def load(text: str, tmp_path: Path, module=broker, name="broker.conf", environment=None):
    path = tmp_path / name
    path.write_text(text)
    return module.load(str(path), (), environment)


@pytest.mark.parametrize("program", PROGRAMS)
def test_apache_key_table_has_only_foreign_keys_with_reasons(program):
    module = PROGRAMS[program]
    table = read_table(module.APACHE_KEYS)
    assert not table.keys() & module.OPTIONS.keys()
    assert {key.kind for key in table.values()} <= {REFUSED, OTHERWISE, NOT_NEEDED}
    assert all(key.because for key in table.values())
    assert len(table) > {"mqbroker": 370, "mqnamesrv": 50, "mqproxy": 130}[program]


def test_apache_broker_file_is_accepted(tmp_path):
    loaded = load(BROKER_CONF, tmp_path)
    assert loaded.config.broker_name == "broker-a"
    assert loaded.not_needed == (
        "sendMessageThreadPoolNums",
        "mapedFileSizeConsumeQueue",
        "storePathCommitLog",
        "storeType",
    )
    assert [w for w in loaded.warnings if "inSyncReplicas has no effect: SYNC_MASTER" in w]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("storePathCommitLog=/fast/commitlog", "the CommitLog lies in storePathRootDir"),
        ("enableControllerMode=true", "without a controller"),
        ("storeType=defaultRocksDB", "consume queues are files"),
        ("sendMesageThreadPoolNums=64", "unknown key 'sendMesageThreadPoolNums'"),
    ],
)
def test_apache_key_that_changes_the_store_and_a_typo_are_rejected(tmp_path, line, reason):
    with pytest.raises(ConfigError, match=reason):
        load(
            BROKER_CONF.replace("storePathCommitLog = /srv/store/commitlog/\n", "") + line, tmp_path
        )


def test_apache_proxy_json_is_read(tmp_path):
    text = '{"proxyMode": "CLUSTER", "grpcServerPort": 8085, "enableGrpcEpoll": true}'
    loaded = load(text, tmp_path, proxy, "rmq-proxy.json")
    assert loaded.config.port == 8085
    assert loaded.not_needed == ("proxyMode", "enableGrpcEpoll")


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "{",
        '{"grpcServerPort": {"a": 1}}',
        '{"bindAddress": []}',
        '{"grpcServerPort": 1, "grpcServerPort": 2}',
    ],
)
def test_malformed_proxy_json_is_rejected(tmp_path, text):
    with pytest.raises(ConfigError, match=r"rmq-proxy\.json"):
        load(text, tmp_path, proxy, "rmq-proxy.json")


@pytest.mark.parametrize("module", [broker, proxy])
def test_apache_image_variable_names_the_name_servers(tmp_path, module):
    variable = {"NAMESRV_ADDR": "10.0.0.1:9876;10.0.0.2:9876"}
    assert "10.0.0.2" in str(load("", tmp_path, module, environment=variable).config)
    of_file = load("namesrvAddr=10.0.0.9:9876", tmp_path, module, environment=variable)
    assert "10.0.0.9" in str(of_file.config) and "10.0.0.2" not in str(of_file.config)


def test_converted_file_has_the_same_settings_and_starts(tmp_path):
    (tmp_path / "broker.conf").write_text(BROKER_CONF)
    text = converted(broker, lambda _: (), "mqbroker", str(tmp_path / "broker.conf"))
    assert "# sendMessageThreadPoolNums=64 (not needed: " in text
    assert load(text, tmp_path, name="ours.conf").config == load(BROKER_CONF, tmp_path).config
    assert "To decide" not in text


def test_converted_file_ends_with_the_open_decisions(tmp_path):
    (tmp_path / "broker.conf").write_text(BROKER_CONF + "brokerIP1=192.0.2.10\nlistenPrt=1\n")
    text = converted(
        broker, lambda _: ("a secret is missing",), "mqbroker", str(tmp_path / "broker.conf")
    )
    _, decisions = text.split("# To decide before the first start:\n")
    assert "bindAddress" in decisions and "a secret is missing" in decisions
    assert "# listenPrt=1 (unknown key 'listenPrt'; did you mean listenPort?)" in text


CREDENTIALS = 'innerClientAuthenticationCredentials={"accessKey":"proxy","secretKey":"12345678"}'


@pytest.mark.parametrize(
    ("program", "keys"),
    [
        ("broker.startup", ("peerSecretFile={}", "registrationKeyFile={}", "httpTokensFile={}")),
        ("namesrv.server", ("registrationKeyFile={}", "httpTokensFile={}")),
        (
            "proxy.server",
            (CREDENTIALS, "httpTokensFile={}"),
        ),
    ],
)
def test_config_check_reads_the_files_of_a_start(program, keys, tmp_path):
    module = importlib.import_module(f"raftmq.{program}")
    named = ["aclEnable=true", "aclFile={}", "tlsServerCertPath={}", *keys]
    missing = tmp_path / "none"
    settings = [key.replace("{}", f"{missing}{n}") for n, key in enumerate(named)]
    config = PROGRAMS[f"mq{program.partition('.')[0]}"]
    failed = []
    for read in module.start_reads(config.load(None, settings).config):
        try:
            read()
        except module.START_READ_ERRORS as error:
            failed.append(str(error))
    for setting in (setting for setting in settings if str(missing) in setting):
        assert any(setting.partition("=")[2] in text for text in failed), setting
