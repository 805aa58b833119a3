"""Configuration files: TOML and properties, units, the environment; what wrong ones are told."""

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from raftmq.broker import config as broker_config
from raftmq.broker.cli import main as mqbroker
from raftmq.broker.config import load
from raftmq.namesrv import config as namesrv_config
from raftmq.namesrv.cli import main as mqnamesrv
from raftmq.ops.config_dump import effective, tables
from raftmq.ops.options import MISTAKES_SHOWN_MAX, ConfigError
from raftmq.proxy import config as proxy_config

RAFT = "enableDLegerCommitLog=true\ndLegerPeers=n0-127.0.0.1:40911\ndLegerSelfId=n0\n"
ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "configuration.md"
EVERY = (broker_config.OPTIONS, namesrv_config.OPTIONS, proxy_config.OPTIONS)

GOOD = """
[identity]
brokerName = "broker-x"

[store]
mappedFileSizeCommitLog = "64MiB"
flushDiskType = "SYNC_FLUSH"
fileReservedTime = "3d"
diskMaxUsedSpaceRatio = "80%"

[raft]
enableDLegerCommitLog = true
dLegerPeers = [
  "n0-h0:1",
  "n1-h1:2",
]
dLegerSelfId = "n1"
electionTimeoutMaxMs = "2s"
"""


def written(tmp_path: Path, text: str, name: str = "broker.toml") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_toml_file_is_read(tmp_path: Path) -> None:
    result = load(written(tmp_path, GOOD))
    config = result.config
    assert config.broker_name == "broker-x"
    assert config.mapped_file_size_commit_log == 64 << 20
    assert config.file_reserved_time == 72
    assert config.disk_max_used_space_ratio == 80
    assert [peer.port for peer in config.peers] == [1, 2]
    assert config.election_timeout_max_ms == 2000
    assert result.locations["flush_disk_type"].endswith("broker.toml:7")


def test_environment_precedes_the_file_and_the_command_line_both(tmp_path: Path) -> None:
    network = "listenPort = 1\nbrokerIP1 = 'a'\nadvertisedPort = 1\nbindAddress = '0.0.0.0'\n"
    path = written(tmp_path, f"[network]\n{network}")
    variables = {"RAFTMQ_LISTEN_PORT": "2", "RAFTMQ_BROKER_IP1": "b", "HOME": "/"}
    result = load(path, ["brokerIP1=c"], variables)
    assert (result.config.listen_port, result.config.broker_ip1) == (2, "c")
    assert result.config.advertised_port == 1
    assert result.locations["listen_port"] == "env RAFTMQ_LISTEN_PORT"
    assert result.locations["broker_ip1"] == "--set"


def test_units_are_read_in_properties_too(tmp_path: Path) -> None:
    path = written(tmp_path, "waitingBytesMax=1 MiB\nwaitTimeMillsInSendQueue=4s\n", "broker.conf")
    config = load(path).config
    assert (config.waiting_bytes_max, config.wait_time_mills_in_send_queue) == (1 << 20, 4000)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[store]\n\nflushDiskTyp = 'x'", ["f.toml:3", "did you mean flushDiskType?"]),
        ("[stor]\nflushDiskType='x'", ["f.toml:1", "[stor]", "did you mean store?"]),
        ("[raft]\nflushDiskType='SYNC_FLUSH'", ["f.toml:2", "belongs in [store]"]),
        ("[store]\nflushDiskType='sync_flush'", ["f.toml:2", "did you mean SYNC_FLUSH?"]),
        ("[network]\nlistenPort = 'ten'", ["f.toml:2", "whole number"]),
        ("[network]\nlistenPort = 1.5", ["f.toml:2", "whole number"]),
        ("[network]\nlistenPort = true", ["f.toml:2", "whole number"]),
        ("[network]\nlistenPort = '10s'", ["f.toml:2", "whole number"]),
        ("[network]\nlistenPort = 70000", ["at most 65535"]),
        ("[store]\nmappedFileSizeCommitLog='64MB'", ["'MB'", "did you mean mib?"]),
        ("[store]\nfileReservedTime='90min'", ["whole number of hours"]),
        ("[topics]\nautoCreateTopicEnable='yes'", ["true or false"]),
        ("[topics]\nautoCreateTopicEnable=true\ntraceOn==1", ["f.toml:3", "not TOML"]),
        ("[identity]\nbrokerName=true", ["f.toml:2", "expected a text"]),
        ("[store]\ndeleteWhen='25'", ["f.toml:2", "deleteWhen"]),
    ],
)
def test_wrong_toml_is_explained(tmp_path: Path, text: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text, "f.toml"))
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (
            "/data/n0 # on the new disk",
            "a comment needs a line of its own, and no value has a # behind a blank",
        ),
        ('"/data/n0"', "quotes would be a part of it: leave them out"),
        ("'/data/n0'", "quotes would be a part of it: leave them out"),
    ],
)
def test_path_with_a_comment_or_quotes_is_rejected(tmp_path: Path, value: str, why: str) -> None:
    """The store would be another one, and empty."""
    path = tmp_path / "broker.conf"
    path.write_text(f"storePathRootDir={value}\n")
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    assert str(caught.value) == f"{path}:1: storePathRootDir={value}: {why}"
    path.write_text("storePathRootDir=/data/#0\npeerSecret='sixteen bytes # at least'\n")
    assert load(str(path)).config.store_path_root_dir == "/data/#0"
    path.write_text("storePathRootDir=/data\\new\\\\0\\\n")
    assert load(str(path)).config.store_path_root_dir == "/data\\new\\\\0\\"


TEXTS = [
    (load, option)
    for load, options in (
        (load, broker_config.OPTIONS),
        (namesrv_config.load, namesrv_config.OPTIONS),
        (proxy_config.load, proxy_config.OPTIONS),
    )
    for option in options.values()
    if option.kind == "text" and not option.choices
]


@pytest.mark.parametrize("unfit", ["\x01", "\x02", "\0", "\n", "\u2028", os.fsdecode(b"\xff")])
def test_text_with_a_control_character_is_rejected(unfit: str) -> None:
    """On the wire, in a file's name, or in a line of a file or a log."""
    assert len(TEXTS) > 50
    for load_, option in TEXTS:
        if (option.spread or option.secret) and unfit == "\n":
            continue
        with pytest.raises(ConfigError) as caught:
            load_(None, [], {option.variable: f"a{unfit}b"})
        said = str(caught.value)
        value = "******" if option.secret else f"a{ascii(unfit)[1:-1]}b"
        why = f"no text has such a character ({ascii(unfit)[1:-1]})"
        assert said == f"env {option.variable}: {option.key}={value}: {why}"


def test_list_values_may_span_several_lines() -> None:
    """As YAML, TOML and a secret made by `echo` have it; a path with a line break is a mistake."""
    peers, name_servers = "n0-a:1;\n\tn1-b:1;\r\nn2-c:1\n", "a:9876;\n  b:9876\n"
    result = load(
        None,
        [],
        {
            "RAFTMQ_PEER_SECRET": f"{'s' * 32}\n",
            "RAFTMQ_ENABLE_DLEGER_COMMIT_LOG": "true",
            "RAFTMQ_DLEGER_PEERS": peers,
            "RAFTMQ_NAMESRV_ADDR": name_servers,
            "RAFTMQ_MESSAGE_DELAY_LEVEL": "1s\t5s\n10s\n",
            "RAFTMQ_INNER_CLIENT_AUTHENTICATION_CREDENTIALS": (
                '{"accessKey": "a",\n "secretKey": "s  3"}\n'
            ),
        },
    ).config
    assert result.peer_secret == f"{'s' * 32}\n"  # as the replicas of a version before have it
    assert [(peer.node_id, peer.host) for peer in result.peers] == [
        ("n0", "a"), ("n1", "b"), ("n2", "c")
    ]  # fmt: skip
    assert result.name_servers == ("a:9876", "b:9876")
    assert result.delay_levels_ms == (1_000, 5_000, 10_000)
    assert '"s  3"' in result.inner_client_authentication_credentials
    with pytest.raises(ConfigError, match="no text has such a character at its end"):
        load(None, [], {"RAFTMQ_STORE_PATH_ROOT_DIR": "/data\n"})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"dLegerGroup={'é' * 128}", "is 256 bytes long, the longest is 255"),
        (f"dLegerGroup={'g' * 256}", "is 256 bytes long, the longest is 255"),
        ("brokerIP1=a b", "is no host"),
        ("brokerIP1=a..b", "is no host"),
        (f"bindAddress={'a' * 64}", "is no address"),
        ("httpEnable=true\nhttpBindAddress=a..b", "is no address"),
        ("namesrvAddr=a..b:9876", "is no host:port"),
        (RAFT.replace("127.0.0.1", "a..b"), "names no host"),
    ],
)
def test_unresolvable_or_unencodable_text_is_rejected(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text + "\naclEnable=true\n", "x.conf"))
    assert why in str(caught.value)


def test_every_mistake_has_its_own_line(tmp_path: Path) -> None:
    text = "listenPort=ten\nwarmUp=1\nbrokerName=a\nflushDiskTyp=x\n"
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text, "f.conf"))
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0].rsplit("/", 1)[1] for line in lines] == [
        "f.conf:1", "f.conf:2", "f.conf:4"
    ]  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, "[stor]\na=1\n[networ]\nb=1\n", "f.toml"))
    assert str(caught.value).count("unknown section") == 2
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, "a\n" * (MISTAKES_SHOWN_MAX + 2), "f.conf"))
    lines = str(caught.value).splitlines()
    assert (len(lines), lines[-1]) == (MISTAKES_SHOWN_MAX + 1, "and 2 more")


def test_misspelt_variable_is_rejected_and_a_foreign_one_ignored() -> None:
    with pytest.raises(ConfigError, match="did you mean RAFTMQ_LISTEN_PORT"):
        load(None, (), {"RAFTMQ_LISTENPORT": "1"})
    assert load(None, (), {"RAFTMQ_PORT_10911_TCP_ADDR": "x"}).config == load(None).config


def test_no_two_keys_share_a_variable() -> None:
    for options in EVERY:
        assert len({option.variable for option in options.values()}) == len(options)
    assert broker_config.OPTIONS["dLegerPeers"].variable == "RAFTMQ_DLEGER_PEERS"
    assert broker_config.OPTIONS["brokerIP1"].variable == "RAFTMQ_BROKER_IP1"
    enabled = broker_config.OPTIONS["enableDLegerCommitLog"].variable
    assert enabled == "RAFTMQ_ENABLE_DLEGER_COMMIT_LOG"


def test_every_default_is_within_its_own_range() -> None:
    for options in EVERY:
        for option in options.values():
            assert option.parse(option.default, option.key) == option.default
            assert option.parse(option.text(option.default), option.key) == option.default
            assert option.doc.endswith("."), option.key


def test_shown_configuration_reads_back(tmp_path: Path) -> None:
    result = load(written(tmp_path, GOOD))
    for changed in (False, True):
        text = effective(broker_config.OPTIONS, result.config, result.locations, changed=changed)
        again = load(written(tmp_path, text, "again.toml"))
        assert again.config == result.config
    assert "  # default" not in text  # the last one showed what is changed only


def test_config_commands_show_and_check(tmp_path: Path) -> None:
    def run(command: click.Command, *arguments: str) -> Result:
        return CliRunner(env={"RAFTMQ_LISTEN_PORT": "7"}).invoke(command, arguments)

    path = written(tmp_path, GOOD)
    shown = run(mqbroker, "-c", path, "config", "show")
    assert shown.exit_code == 0
    assert 'brokerName = "broker-x"  # ' + f"{path}:3\n" in shown.stdout
    assert "listenPort = 7  # env RAFTMQ_LISTEN_PORT\n" in shown.stdout
    refused = run(mqbroker, "config", "check", path)  # a start refuses an open Raft port
    assert (refused.exit_code, "set peerSecretFile" in refused.stderr) == (2, True)
    (tmp_path / "secret").write_text("0123456789abcdef0123456789abcdef")
    secret = f'\n[peers]\npeerSecretFile = "{tmp_path}/secret"\n'
    assert run(mqbroker, "config", "check", written(tmp_path, GOOD + secret)).exit_code == 0
    classic = tmp_path / "classic.conf"
    classic.write_text("enableDLegerCommitLog=false\ndLegerGroup=g\n")
    warned = run(mqbroker, "config", "check", str(classic))
    assert warned.exit_code == 0
    assert warned.stderr == f"warning: {classic}:2: dLegerGroup: no effect in this mode\n"
    wrong = run(mqnamesrv, "config", "check", path)
    assert wrong.exit_code == 2
    assert f"mqnamesrv: {path}:2: unknown section [identity]" in wrong.stderr


HEAD = """# Configuration

Every key of the broker, of the name server and of the gRPC proxy, generated from the declarations
(`broker/config.py`, `namesrv/config.py`, `proxy/config.py`) by
`RAFTMQ_REWRITE=1 pytest tests/ops/test_settings.py`.

Sources of settings, in ascending precedence: defaults; the file (`-c`); environment variables;
`--set key=value` and further options of the command line. `mqbroker config show` (with the same
options) prints the values in effect with their sources. `mqbroker config check FILE` rejects, with
status 2, everything that a start would reject before it opens its store. `mqbroker config convert
FILE` prints a file of Apache's broker as a file of ours
([Moving](moving.md#keys-of-brokerconf)). `mqnamesrv` and `mqproxy` have the same commands.
`NAMESRV_ADDR` is the same as `namesrvAddr`, below the file.

A file `*.json` is a JSON object, as Apache's `rmq-proxy.json`. A file `*.toml` is TOML, with the
sections below as tables (keys above all tables are allowed). Any further file is Java properties
without sections, as Apache RocketMQ's `broker.conf`. A number with a unit may be text: `"64MiB"`
(B, KiB, MiB, GiB, TiB), `"5s"` (ms, s, min, h, d), `"75%"`; without a unit it has the unit given
here. A key's environment variable is its name in capitals with underscores: `listenPort` is
`RAFTMQ_LISTEN_PORT`, `dLegerPeers` is `RAFTMQ_DLEGER_PEERS`. Keys marked "Live." may be changed
while the process runs (`PATCH /api/v1/config`).

Texts with a control character, a `#` after a blank, or quotes around the whole value are rejected
in either format, because they are mostly mistakes. Lists, levels and JSON may span several lines in
TOML and in the environment. In properties a backslash is no escape.

```toml
[identity]
brokerName = "broker-a"

[store]
storePathRootDir = "/var/lib/raftmq"
flushDiskType = "SYNC_FLUSH"
mappedFileSizeCommitLog = "1GiB"

[raft]
enableDLegerCommitLog = true
dLegerPeers = ["n0-10.0.0.1:40911", "n1-10.0.0.2:40911", "n2-10.0.0.3:40911"]
dLegerSelfId = "n0"
```

"""


def test_settings_page_equals_the_declared_options() -> None:
    text = (
        f"{HEAD}## Broker\n\n{tables(broker_config.OPTIONS)}\n"
        f"## Name server\n\n{tables(namesrv_config.OPTIONS)}\n"
        f"## gRPC proxy\n\n{tables(proxy_config.OPTIONS)}"
    )
    if os.environ.get("RAFTMQ_REWRITE"):
        DOCUMENT.write_text(text)
    assert DOCUMENT.read_text() == text


def test_settings_page_example_is_valid(tmp_path: Path) -> None:
    example = HEAD.partition("```toml\n")[2].partition("```")[0]
    assert load(written(tmp_path, example)).config.peers[2].host == "10.0.0.3"


@pytest.mark.parametrize(
    ("load", "text", "keys"),
    [
        (load, "httpPort=10911", "httpPort listenPort"),
        (load, "httpPort=10912", "httpPort haListenPort"),
        (load, RAFT + "listenPort=40911", "dLegerPeers listenPort"),
        (load, RAFT + "listenPort=40907", "httpPort dLegerPeers"),  # 4 above, by default
        (load, RAFT + "httpHealthPort=10915", "httpHealthPort httpPort"),
        (load, RAFT + "grpcPort=10911\nnamesrvAddr=127.0.0.1:1", "grpcPort listenPort"),
        (load, RAFT + "grpcPort=10915\nnamesrvAddr=127.0.0.1:1", "httpPort grpcPort"),
        (namesrv_config.load, "httpPort=9876", "httpPort listenPort"),
        (namesrv_config.load, "httpHealthPort=9880", "httpHealthPort httpPort"),
        (proxy_config.load, "httpPort=8081", "httpPort grpcServerPort"),
    ],
)
def test_two_listeners_with_one_port_are_rejected(load, text, keys, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load(written(tmp_path, text, "x.conf"))
    wrong, other = keys.split()
    assert f"{wrong}=" in str(raised.value)
    assert str(raised.value).endswith(f" is that of {other}, too")


@pytest.mark.parametrize(
    "text",
    [
        "listenPort=0\nhttpPort=0",
        "httpPort=10911\nhttpEnable=false",
        RAFT + "httpPort=10912",  # no HA port in a Raft group
        RAFT + "dLegerBindAddress=127.0.0.2\nlistenPort=40911",
    ],
)
def test_ports_on_different_addresses_may_be_equal(text: str, tmp_path: Path) -> None:
    load(written(tmp_path, text, "x.conf"))


def test_file_may_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    for name, text in (("x.conf", "listenPort=7"), ("x.toml", "[network]\nlistenPort = 7")):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8-sig")
        assert load(str(path)).config.listen_port == 7


def test_key_set_twice_is_reported(tmp_path: Path) -> None:
    text = "listenPort=7\nbrokerName=b\nlistenPort=8\n"
    path = written(tmp_path, text, "x.conf")
    again = ["brokerName=c", "brokerName=d"]
    result = load(path, again, {"RAFTMQ_BROKER_NAME": "e"})
    assert result.config.listen_port == 8
    assert result.repeated == {"listenPort": f"{path}:3"}
    checked = CliRunner().invoke(mqbroker, ["config", "check", path])
    assert checked.exit_code == 0
    assert f"{path}:3: listenPort is set twice" in checked.stderr
