"""The broker's configuration: Apache RocketMQ's broker.conf keys where they exist, and ours.

One frozen object per process, built at the edge by `load_config` and handed down. The file format
is Java properties as far as broker.conf files use them: `key=value` lines, `#` and `!` comments,
blank lines, white space around key and value ignored, later lines win. A wrong key or value is an
error that names itself, its place (`file:line` or `--set`) and the nearest right one; nothing is
skipped in silence. Not done here: reading environment variables, reloading.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def _option(
    key: str,
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field with its key in broker.conf and the values it may have."""
    metadata = {"key": key, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Peer:
    """One replica of the group: its id and the address of its Raft listener."""

    node_id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Everything a broker process can be told. Units are the last word of a name or its comment."""

    # Apache's keys
    broker_cluster_name: str = _option("brokerClusterName", "DefaultCluster")
    broker_name: str = _option("brokerName", "broker-a")
    broker_id: int = _option("brokerId", 0, low=0)
    broker_role: str = _option(
        "brokerRole", "ASYNC_MASTER", choices=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")
    )
    listen_port: int = _option("listenPort", 10911, low=0, high=65535)
    bind_address: str = _option("bindAddress", "0.0.0.0")  # brokerIP1 is what clients are told
    namesrv_addr: str = _option("namesrvAddr", "")  # host:port;host:port
    broker_ip1: str = _option("brokerIP1", "127.0.0.1")
    store_path_root_dir: str = _option("storePathRootDir", "store")
    mapped_file_size_commit_log: int = _option(
        "mappedFileSizeCommitLog", GIB, low=64 * KIB, high=2 * GIB - 1
    )  # bytes
    mapped_file_size_consume_queue: int = _option(
        "mappedFileSizeConsumeQueue", 6_000_000, low=20, high=2 * GIB - 1
    )  # bytes; 20 per unit
    flush_disk_type: str = _option(
        "flushDiskType", "ASYNC_FLUSH", choices=("SYNC_FLUSH", "ASYNC_FLUSH")
    )
    flush_interval_commit_log: int = _option("flushIntervalCommitLog", 500, low=1)  # ms
    auto_create_topic_enable: bool = _option("autoCreateTopicEnable", True)
    auto_create_subscription_group: bool = _option("autoCreateSubscriptionGroup", True)
    default_topic_queue_nums: int = _option("defaultTopicQueueNums", 8, low=1, high=65536)
    broker_permission: int = _option("brokerPermission", 6, low=0, high=7)
    delete_when: str = _option("deleteWhen", "04")  # hours, separated by ';'
    file_reserved_time: int = _option("fileReservedTime", 72, low=1)  # hours
    disk_max_used_space_ratio: int = _option("diskMaxUsedSpaceRatio", 75, low=10, high=95)
    disk_space_warning_level_ratio: int = _option(
        "diskSpaceWarningLevelRatio", 90, low=10, high=100
    )  # percent used, from which on sends are refused
    max_message_size: int = _option("maxMessageSize", 4 * MIB, low=1 * KIB, high=12 * MIB)
    long_polling_enable: bool = _option("longPollingEnable", True)
    short_polling_time_mills: int = _option("shortPollingTimeMills", 1000, low=1)
    max_transfer_count_on_message_in_memory: int = _option(
        "maxTransferCountOnMessageInMemory", 32, low=1, high=4096
    )
    max_transfer_bytes_on_message_in_memory: int = _option(
        "maxTransferBytesOnMessageInMemory", 256 * KIB, low=1 * KIB, high=8 * MIB
    )
    max_transfer_count_on_message_in_disk: int = _option(
        "maxTransferCountOnMessageInDisk", 8, low=1, high=4096
    )
    max_transfer_bytes_on_message_in_disk: int = _option(
        "maxTransferBytesOnMessageInDisk", 64 * KIB, low=1 * KIB, high=8 * MIB
    )
    message_index_enable: bool = _option("messageIndexEnable", True)
    max_hash_slot_num: int = _option("maxHashSlotNum", 5_000_000, low=1, high=100_000_000)
    max_index_num: int = _option("maxIndexNum", 20_000_000, low=2, high=50_000_000)
    max_msgs_num_batch: int = _option("maxMsgsNumBatch", 64, low=1, high=64)  # of a query by key
    default_query_max_num: int = _option("defaultQueryMaxNum", 32, low=1, high=64)
    slave_read_enable: bool = _option("slaveReadEnable", False)
    access_message_in_memory_max_ratio: int = _option(
        "accessMessageInMemoryMaxRatio", 40, low=0, high=100
    )  # percent of the memory that the log's tail may take to count as hot
    ha_listen_port: int = _option("haListenPort", 0, low=0, high=65535)  # 0: listenPort + 1
    ha_master_address: str = _option("haMasterAddress", "")  # "": what a name server says
    ha_send_heartbeat_interval: int = _option("haSendHeartbeatInterval", 5_000, low=10)
    ha_housekeeping_interval: int = _option("haHousekeepingInterval", 20_000, low=50)
    ha_transfer_batch_size: int = _option("haTransferBatchSize", 32 * KIB, low=1, high=1 * MIB)
    ha_slave_fallbehind_max: int = _option("haSlaveFallbehindMax", 256 * MIB, low=0)  # bytes
    slave_timeout: int = _option("slaveTimeout", 3_000, low=1)  # ms
    sync_flush_timeout: int = _option("syncFlushTimeout", 5_000, low=1)  # ms
    sync_from_last_file: bool = _option("syncFromLastFile", False)
    register_name_server_period: int = _option(
        "registerNameServerPeriod", 30_000, low=1_000, high=60_000
    )  # ms
    register_broker_timeout_mills: int = _option("registerBrokerTimeoutMills", 3_000, low=10)
    flush_consumer_offset_interval: int = _option("flushConsumerOffsetInterval", 5_000, low=100)
    region_id: str = _option("regionId", "DefaultRegion")
    trace_on: bool = _option("traceOn", True)
    enable_dleger_commit_log: bool = _option("enableDLegerCommitLog", False)
    dleger_group: str = _option("dLegerGroup", "")
    dleger_peers: str = _option("dLegerPeers", "")  # n0-host:port;n1-host:port, or n0=host:port
    dleger_self_id: str = _option("dLegerSelfId", "n0")
    preferred_leader_id: str = _option("preferredLeaderId", "")

    # ours
    advertised_port: int = _option(
        "advertisedPort", 0, low=0, high=65535
    )  # what clients are told instead of listenPort, where a proxy stands before it; 0: listenPort
    engine: str = _option("engine", "dledger", choices=("dledger", "pysyncobj"))
    heartbeat_interval_ms: int = _option("heartbeatIntervalMs", 75, low=5)
    election_timeout_min_ms: int = _option("electionTimeoutMinMs", 300, low=20)
    election_timeout_max_ms: int = _option("electionTimeoutMaxMs", 600, low=30)
    frames_in_flight_max: int = _option("framesInFlightMax", 8, low=1, high=1024)
    frame_size_max: int = _option("frameSizeMax", 1 * MIB, low=4 * KIB, high=16 * MIB)  # bytes
    waiting_bytes_max: int = _option("waitingBytesMax", 64 * MIB, low=16 * KIB)
    outcome_timeout_ms: int = _option("outcomeTimeoutMs", 3_000, low=50)
    offset_commit_interval_ms: int = _option("offsetCommitIntervalMs", 150, low=1, high=5_000)
    held_pulls_max: int = _option("heldPullsMax", 100_000, low=0)
    clients_max: int = _option("clientsMax", 50_000, low=1)
    client_expiry_ms: int = _option("clientExpiryMs", 120_000, low=100)
    topics_max: int = _option("topicsMax", 200_000, low=1)
    slave_sync_metadata_interval_ms: int = _option("slaveSyncMetadataIntervalMs", 60_000, low=20)
    ha_connections_max: int = _option("haConnectionsMax", 16, low=1)
    snapshot_interval_ms: int = _option("snapshotIntervalMs", 10_000, low=50)
    write_buffer_bytes_max: int = _option("writeBufferBytesMax", 64 * MIB, low=64 * KIB)

    @property
    def is_classic(self) -> bool:
        """Master and slaves; else a Raft group."""
        return not self.enable_dleger_commit_log

    @property
    def is_slave(self) -> bool:
        return self.is_classic and self.broker_role == "SLAVE"

    def without_effect(self) -> tuple[str, ...]:
        """Apache's keys that were set here and that this mode does not act on."""
        raft_only = (
            ("dLegerGroup", self.dleger_group, ""),
            ("dLegerPeers", self.dleger_peers, ""),
            ("dLegerSelfId", self.dleger_self_id, "n0"),
            ("engine", self.engine, "dledger"),
        )
        classic_only = (
            ("brokerId", self.broker_id, 0),
            ("brokerRole", self.broker_role, "ASYNC_MASTER"),
            ("haMasterAddress", self.ha_master_address, ""),
            ("haListenPort", self.ha_listen_port, 0),
            ("slaveReadEnable", self.slave_read_enable, False),
        )
        other_mode = raft_only if self.is_classic else classic_only
        keys = (*other_mode, ("preferredLeaderId", self.preferred_leader_id, ""))
        return tuple(name for name, value, unset in keys if value != unset)

    @property
    def address(self) -> str:
        """What clients and name servers are told: brokerIP1 and advertisedPort or listenPort."""
        return f"{self.broker_ip1}:{self.advertised_port or self.listen_port}"

    @property
    def name_servers(self) -> tuple[str, ...]:
        return tuple(part for part in re.split(r"[;,\s]+", self.namesrv_addr) if part)

    @property
    def peers(self) -> tuple[Peer, ...]:
        return parse_peers(self.dleger_peers)

    @property
    def group_name(self) -> str:
        """The Raft group is the broker group: dLegerGroup, or brokerName where that is not set."""
        return self.dleger_group or self.broker_name

    @property
    def ha_port(self) -> int:
        """Where a classic master listens for slaves; 0: any, as listenPort."""
        return self.ha_listen_port or (self.listen_port and self.listen_port + 1)

    @property
    def node_name(self) -> str:
        """This broker among those of its broker name."""
        return str(self.broker_id) if self.is_classic else self.dleger_self_id

    def registration_id(self, leader: bool) -> int:
        """0 for the leader or master. Others: a slave's brokerId; 1 + the ordinal in the peers."""
        if leader:
            return 0
        if self.is_classic:
            return self.broker_id
        ids = [peer.node_id for peer in self.peers]
        return 1 + ids.index(self.dleger_self_id)

    def properties_text(self) -> str:
        """The configuration as Apache's properties text (GET_BROKER_CONFIG, 26)."""
        lines = [f"{key}={_text(getattr(self, f.name))}" for key, f in sorted(OPTIONS.items())]
        return "\n".join(lines) + "\n"


# Defaults with engine=pysyncobj: it sends an entry above 64 KiB in pieces, and raises an exception
# over each of them but the last (docs/pysyncobj.md, fault 7).
PYSYNCOBJ_SIZES = {"frame_size_max": 32 * KIB}

OPTIONS: dict[str, dataclasses.Field[Any]] = {
    f.metadata["key"]: f for f in dataclasses.fields(BrokerConfig)
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One `key=value` as written, and where."""

    key: str
    value: str
    place: str


def load_config(path: str | None, overrides: Sequence[str] = ()) -> BrokerConfig:
    """Read broker.conf at `path` (none: the defaults) and lay `--set key=value` overrides over it.

    Raises ConfigError; an unreadable file is one too.
    """
    settings: list[Setting] = []
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read configuration file {path}: {error}") from error
        settings += parse_properties(text, path)
    for override in overrides:
        settings += parse_properties(override, "--set")
    return build_config(settings)


def parse_properties(text: str, source: str) -> list[Setting]:
    """Split properties text into settings. Raises ConfigError for a line that is none."""
    settings = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        place = source if source == "--set" else f"{source}:{number}"
        key, equals, value = stripped.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{place}: expected key=value, found {stripped!r}")
        settings.append(Setting(key.strip(), value.strip(), place))
    return settings


def build_config(settings: Iterable[Setting]) -> BrokerConfig:
    """Turn settings into a checked BrokerConfig. Raises ConfigError."""
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for setting in settings:
        option = OPTIONS.get(setting.key)
        if option is None:
            raise ConfigError(f"{setting.place}: {_unknown_key(setting.key)}")
        values[option.name] = _parse_value(setting, option)
        places[option.name] = setting.place
    if values.get("engine") == "pysyncobj":
        values = PYSYNCOBJ_SIZES | values
    config = BrokerConfig(**values)
    _check_together(config, places)
    return config


def parse_peers(text: str) -> tuple[Peer, ...]:
    """`n0-host:port;n1-host:port` (Apache) or `n0=host:port`; an id has no '-' and no '='.

    Raises ValueError with the offending part.
    """
    peers: list[Peer] = []
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        match = re.fullmatch(r"([A-Za-z0-9_]+)[-=](\[[^\]]+\]|[^:\s]+):(\d{1,5})", part)
        if match is None or not 0 < int(match[3]) < 65536:
            raise ValueError(f"{part!r} is not id-host:port")
        peer = Peer(match[1], match[2].strip("[]"), int(match[3]))
        if peer.node_id in {other.node_id for other in peers}:
            raise ValueError(f"peer id {peer.node_id!r} appears twice")
        peers.append(peer)
    return tuple(peers)


def _parse_value(setting: Setting, option: dataclasses.Field[Any]) -> Any:
    meta = option.metadata
    what = f"{setting.place}: {setting.key}={setting.value}"
    if isinstance(option.default, bool):
        if setting.value.lower() not in ("true", "false"):
            near = _nearest(setting.value.lower(), ("true", "false"))
            raise ConfigError(f"{what}: expected true or false{near}")
        return setting.value.lower() == "true"
    if isinstance(option.default, int):
        try:
            number = int(setting.value)
        except ValueError:
            raise ConfigError(f"{what}: expected a whole number, e.g. {option.default}") from None
        for bound, name, wrong in (
            (meta["low"], "at least", meta["low"] is not None and number < (meta["low"] or 0)),
            (meta["high"], "at most", meta["high"] is not None and number > (meta["high"] or 0)),
        ):
            if wrong:
                raise ConfigError(f"{what}: must be {name} {bound}; nearest right value: {bound}")
        return number
    choices = meta["choices"]
    if choices and setting.value not in choices:
        near = _nearest(setting.value.upper(), choices)
        raise ConfigError(f"{what}: expected one of {', '.join(choices)}{near}")
    return setting.value


def _check_together(config: BrokerConfig, places: dict[str, str]) -> None:
    """What one value must be given another."""

    def fail(name: str, why: str) -> None:
        key = next(key for key, option in OPTIONS.items() if option.name == name)
        place = places.get(name, "default")
        raise ConfigError(f"{place}: {key}={_text(getattr(config, name))}: {why}")

    try:
        peers = config.peers
    except ValueError as error:
        fail("dleger_peers", f"{error}; expected n0-host:port;n1-host:port")
        raise AssertionError("unreachable") from error
    if config.enable_dleger_commit_log:
        ids = [peer.node_id for peer in peers]
        if not ids:
            fail("dleger_peers", "enableDLegerCommitLog needs the peers, e.g. n0-127.0.0.1:40911")
        if config.dleger_self_id not in ids:
            near = _nearest(config.dleger_self_id, ids)
            fail("dleger_self_id", f"not among the peers {', '.join(ids)}{near}")
        if config.preferred_leader_id and config.preferred_leader_id not in ids:
            near = _nearest(config.preferred_leader_id, ids)
            fail("preferred_leader_id", f"not among the peers {', '.join(ids)}{near}")
    if config.is_slave and config.broker_id == 0:
        fail("broker_id", "0 is the master's; a SLAVE needs a brokerId of its own, e.g. 1")
    if config.is_classic and not config.is_slave and config.broker_id != 0:
        fail("broker_id", f"a master's brokerId is 0, and brokerRole is {config.broker_role}")
    if config.is_classic and config.ha_port == config.listen_port > 0:
        fail("ha_listen_port", "is listenPort, too")
    if config.ha_port > 65535:
        fail("listen_port", "haListenPort would be one more: set it")
    if config.election_timeout_max_ms <= config.election_timeout_min_ms:
        fail("election_timeout_max_ms", "must be above electionTimeoutMinMs")
    if config.heartbeat_interval_ms * 2 > config.election_timeout_min_ms:
        fail("heartbeat_interval_ms", "must be at most half of electionTimeoutMinMs")
    if config.mapped_file_size_consume_queue % 20:
        fail("mapped_file_size_consume_queue", "must be a multiple of 20, the size of a unit")
    if config.mapped_file_size_commit_log < config.max_message_size + 128 * KIB:
        fail("mapped_file_size_commit_log", "a segment must hold maxMessageSize + 128 KiB")
    if not re.fullmatch(r"([01]?\d|2[0-3])(;([01]?\d|2[0-3]))*", config.delete_when):
        fail("delete_when", "expected hours of the day separated by ';', e.g. 04")


def _unknown_key(key: str) -> str:
    lower = {name.lower(): name for name in OPTIONS}
    matches = difflib.get_close_matches(key.lower(), lower, n=1, cutoff=0.6)
    hint = f"; did you mean {lower[matches[0]]}?" if matches else ""
    return f"unknown key {key!r}{hint}"


def _nearest(value: str, choices: Sequence[str]) -> str:
    matches = difflib.get_close_matches(value, choices, n=1, cutoff=0.4)
    return f"; did you mean {matches[0]}?" if matches else ""


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
