"""broker.conf: right values arrive, wrong ones name themselves, their place and the right one."""

import pytest

from raftmq.broker.config import OPTIONS, BrokerConfig, Peer, build_config, load, parse_peers
from raftmq.ops.options import ConfigError
from raftmq.ops.settings import parse_properties
from raftmq.ops.settings import parse_properties as parse

RAFT = "enableDLegerCommitLog=true\ndLegerPeers=n0-h0:1;n1-h1:2\ndLegerSelfId=n1\n"


def test_apache_broker_conf_is_read():
    text = (
        "# a comment\n\nbrokerName = broker-x\nlistenPort=10921\nflushDiskType=SYNC_FLUSH\n" + RAFT
    )
    config = build_config(parse(text, "broker.conf"))
    assert config.broker_name == "broker-x"
    assert config.listen_port == 10921
    assert config.flush_disk_type == "SYNC_FLUSH"
    assert config.enable_dleger_commit_log
    assert config.peers == (Peer("n0", "h0", 1), Peer("n1", "h1", 2))
    assert config.registration_id(leader=True) == 0
    assert config.registration_id(leader=False) == 2


def test_set_option_overrides_broker_conf(tmp_path):
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=a\n")
    assert load(str(path), ["brokerName=b", "listenPort=1"]).config.broker_name == "b"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("brokerNmae=x", ["f:1", "'brokerNmae'", "did you mean brokerName?"]),
        ("\nflushDiskType=SYNC_FLUHS", ["f:2", "flushDiskType", "did you mean SYNC_FLUSH?"]),
        ("listenPort=ten", ["f:1", "listenPort=ten", "whole number"]),
        ("listenPort=70000", ["listenPort=70000", "at most 65535"]),
        ("fileReservedTime=-1", ["at least 0"]),
        ("autoCreateTopicEnable=ture", ["true or false", "did you mean true?"]),
        ("no equals sign", ["f:1", "expected key=value"]),
        ("brokerName=a b", ["f:1", "brokerName", "characters outside"]),
        ("brokerClusterName=" + "c" * 256, ["brokerClusterName", "the longest is 255"]),
        ("dLegerPeers=n0+host", ["f:1", "dLegerPeers", "'n0+host'"]),
        ("dLegerPeers=n0-a:1;n0-b:2", ["'n0'", "twice"]),
        ("dLegerPeers=n0-a:1;n1-b:1;n2-A:1", ["n0 and n2", "the same address A:1"]),
        ("namesrvAddr=127.0.0.1", ["f:1", "namesrvAddr", "no host:port"]),
        ("namesrvAddr=ns1:9876;ns2:0", ["'ns2:0' has port 0"]),
        ("namesrvAddr=http://127.0.0.1:9876", ["no host:port"]),
        ("namesrvAddr=127.0.0.1:99999", ["no host:port"]),
        ("haMasterAddress=master", ["haMasterAddress", "no host:port"]),
        ("masterAddress=master", ["masterAddress", "no host:port"]),
        ("httpAdvertisedAddress=10.0.0.1", ["httpAdvertisedAddress", "no host:port"]),
        ("enableDLegerCommitLog=true", ["dLegerPeers", "needs the peers"]),
        (
            "dLegerSelfId=n7\nenableDLegerCommitLog=true\ndLegerPeers=n0-a:1",
            ["f:1", "n7", "n0"],
        ),
        ("electionTimeoutMaxMs=100", ["electionTimeoutMaxMs", "electionTimeoutMinMs"]),
        ("heartbeatIntervalMs=200", ["heartbeatIntervalMs", "half"]),
        ("mappedFileSizeConsumeQueue=21", ["multiple of 20"]),
        ("mappedFileSizeCommitLog=70000", ["maxMessageSize"]),
        ("deleteWhen=25", ["deleteWhen", "hours"]),
        ("brokerRole=SLAVE", ["brokerId", "a SLAVE needs a brokerId of its own"]),
        ("#\nbrokerId=2", ["f:2", "a master's brokerId is 0"]),
        ("haListenPort=10911", ["haListenPort", "listenPort"]),
        ("listenPort=65535", ["haListenPort"]),
    ],
)
def test_wrong_settings_are_explained(text, parts):
    with pytest.raises(ConfigError) as caught:
        build_config(parse(text, "f"))
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "text", ["ns1:9876;ns2:9876", "ns1:9876, 10.0.0.2:9876;", "[::1]:9876", "not.yet.there:1"]
)
def test_name_server_addresses_need_not_resolve(text):
    assert build_config(parse(f"namesrvAddr={text}", "f")).name_servers


def test_missing_broker_conf_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        load(str(tmp_path / "none.conf"))


@pytest.mark.parametrize(
    ("text", "peers"),
    [
        ("n0-host:1", [Peer("n0", "host", 1)]),
        ("n0=my-host-0:1;", [Peer("n0", "my-host-0", 1)]),
        ("n0-my-host-0:1", [Peer("n0", "my-host-0", 1)]),
        ("n0=[::1]:9", [Peer("n0", "::1", 9)]),
    ],
)
def test_peers_are_parsed(text, peers):
    assert parse_peers(text) == tuple(peers)


def test_joining_replica_may_have_the_address_of_a_lost_member():
    text = "enableDLegerCommitLog=true\ndLegerSelfId=n3\ndLegerPeers=n0-a:1;n1-b:1;n2-c:1;n3-b:1\n"
    joining = build_config(parse_properties(text + "raftJoin=true\n", "f"))
    assert [peer.host for peer in joining.peers] == ["a", "b", "c", "b"]


def test_properties_text_round_trip():
    config = BrokerConfig(broker_name="b", auto_create_topic_enable=False)
    assert build_config(parse(config.properties_text(), "x")) == config
    assert len(OPTIONS) == len(config.properties_text().splitlines())


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("brokerRole=SYNC_MASTER\nslaveReadEnable=true\n", ()),
        (
            "enableDLegerCommitLog=false\ndLegerGroup=g\npreferredLeaderId=n1\n",
            ("dLegerGroup", "preferredLeaderId"),
        ),
        (RAFT, ()),
        (RAFT + "brokerRole=SLAVE\nbrokerId=1\n", ("brokerId", "brokerRole")),
    ],
)
def test_keys_without_effect_are_reported(text: str, names: tuple[str, ...]) -> None:
    assert build_config(parse(text, "f")).without_effect() == names


@pytest.mark.parametrize("key", ["dLegerPeers=n0-127.0.0.1:1", "dLegerSelfId=n0", "dLegerGroup=g"])
def test_raft_keys_without_the_raft_switch_are_rejected(key: str) -> None:
    """Three replicas without the switch would be three masters of one name."""
    with pytest.raises(ConfigError) as caught:
        build_config(parse(key, "f"))
    assert f"f:1: {key}: is of a Raft group, and enableDLegerCommitLog is not" in str(caught.value)
    assert build_config(parse(f"enableDLegerCommitLog=false\n{key}", "f")).is_classic


@pytest.mark.parametrize(
    ("text", "port"),
    [("", 10912), ("listenPort=0", 0), ("listenPort=2000", 2001), ("haListenPort=7", 7)],
)
def test_ha_port_is_listen_port_plus_one(text: str, port: int) -> None:
    assert build_config(parse(text, "f")).ha_port == port


@pytest.mark.parametrize(
    ("text", "flush"),
    [
        ("", "ASYNC_FLUSH"),
        ("brokerRole=SYNC_MASTER", "ASYNC_FLUSH"),
        (RAFT, "SYNC_FLUSH"),
        (RAFT + "flushDiskType=ASYNC_FLUSH", "ASYNC_FLUSH"),
        ("flushDiskType=SYNC_FLUSH", "SYNC_FLUSH"),
    ],
)
def test_raft_group_defaults_to_sync_flush(text, flush):
    assert build_config(parse(text, "f")).flush_disk_type == flush


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", "127.0.0.1"),
        (RAFT, "127.0.0.1"),
        ("aclEnable=false", "127.0.0.1"),
        ("aclEnable=true", "0.0.0.0"),
        ("bindAddress=0.0.0.0", "0.0.0.0"),
        ("bindAddress=10.0.0.1\naclEnable=true", "10.0.0.1"),
        ("brokerIP1=localhost", "127.0.0.1"),
        ("brokerIP1=10.0.0.1\naclEnable=true", "0.0.0.0"),
        ("brokerIP1=10.0.0.1\nbindAddress=127.0.0.1", "127.0.0.1"),  # behind a proxy, say
    ],
)
def test_broker_without_accounts_defaults_to_loopback(text, address):
    assert build_config(parse(text, "f")).bind_address == address


def test_advertised_address_without_a_listener_is_rejected():
    with pytest.raises(ConfigError, match=r"^f:1: brokerIP1=10\.0\.0\.1: nobody .*bindAddress=0"):
        build_config(parse("brokerIP1=10.0.0.1", "f"))
