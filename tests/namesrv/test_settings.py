"""Settings of a running name server: those that tools may change, and the others."""

import logging

import pytest

from raftmq.namesrv.config import NameServerConfig, load
from raftmq.namesrv.settings import Settings
from raftmq.ops.options import ConfigError


@pytest.fixture
def level():
    before = logging.getLogger().level
    yield logging.getLogger
    logging.getLogger().setLevel(before)


def test_live_key_is_changed_and_shown(level):
    settings = Settings(NameServerConfig(), {"kvConfigPath": "here"})
    settings.change("logLevel=ERROR\n")
    assert level().level == logging.ERROR
    lines = settings.text().splitlines()
    assert "logLevel=ERROR" in lines
    assert "kvConfigPath=here" in lines


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("logLevel=ERROR\nlistenPort=1\n", "listenPort: not while"),
        ("logLevel=LOUD\n", "expected one of"),
        ("logLevle=INFO\n", "did you mean logLevel"),
        ("nonsense\n", "expected key=value"),
        ("x" * (256 << 10), r"expected key=value, found 'x{80}'$"),
        ("\n" * ((256 << 10) + 1), "262145 characters, allowed are 262144"),
    ],
)
def test_settings_change_is_applied_completely_or_not_at_all(level, text, says):
    before = level().level
    config = NameServerConfig()
    with pytest.raises(ConfigError, match=says):
        Settings(config, {}).change(text)
    assert (config, level().level) == (NameServerConfig(), before)


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ([], "127.0.0.1"),
        (["aclEnable=false"], "127.0.0.1"),
        (["aclEnable=true"], "0.0.0.0"),
        (["bindAddress=0.0.0.0"], "0.0.0.0"),
        (["bindAddress=10.0.0.1", "aclEnable=true"], "10.0.0.1"),
    ],
)
def test_name_server_without_accounts_defaults_to_loopback(settings, address):
    assert load(None, settings).config.bind == address


def test_advertised_http_address_without_a_port_is_rejected():
    with pytest.raises(ConfigError, match=r"httpAdvertisedAddress=10.*no host:port"):
        load(None, ["httpAdvertisedAddress=10.0.0.1"])
    assert load(None, ["httpAdvertisedAddress=10.0.0.1:9880"])
