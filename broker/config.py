"""Configuration of a broker: Apache RocketMQ's broker.conf keys where they exist, and our own.

`load` builds one frozen object per process. Files, environment and command line are parsed
(ops.settings) and checked (ops.options) by the declarations below, and docs/configuration.md is
generated from them.

Sections are TOML's tables; broker.conf in Apache's format has the same keys without sections. Live
keys may change while the broker runs (`change_live`), so code reads them at each use. Files are not
reloaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from raftmq.dledger.transport.peer_auth import SECRET_SIZE_BYTES_MIN
from raftmq.ops.config_dump import properties
from raftmq.ops.foreign_keys import separate
from raftmq.ops.options import (
    BYTES,
    HOURS,
    MASKED,
    MS,
    PERCENT,
    ConfigError,
    Loaded,
    Option,
    Setting,
    find,
    nearest,
    option,
    options_of,
    parse_settings,
    wrong_value,
)
from raftmq.ops.ports import Listener, check_ports
from raftmq.ops.server_options import OFF, PeerTlsOptions
from raftmq.ops.settings import gather, repeated
from raftmq.remoting.acl.signature import Credentials, credentials_of
from raftmq.remoting.names import NAME_LENGTH_MAX, address_map, address_problem, name_problem
from raftmq.store.index.index_limits import ENTRIES_MAX, SLOTS_MAX
from raftmq.web.settings import is_loopback

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"
KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
# Apache's messageDelayLevel; level 1 is the first.
STANDARD_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LEVELS_MAX = 128
DELAY_MS_MAX = 366 * 86_400_000
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}  # ms is our own
_LEVEL = re.compile(r"(\d{1,15})(ms|s|m|h|d)")


@dataclass(frozen=True, slots=True)
class Peer:
    """A replica's id and the address of its Raft listener."""

    node_id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BrokerConfig(PeerTlsOptions):
    """All settings of a broker process, with their units in the declarations."""

    # fmt: off

    broker_cluster_name: str = option("identity", "brokerClusterName", "DefaultCluster",
        "Cluster of the broker.", alike=True)
    broker_name: str = option("identity", "brokerName", "broker-a",
        "Name of the broker group, as clients see it.")
    broker_id: int = option("identity", "brokerId", 0,
        "Classic mode: 0 for the master, a unique positive number for each slave.", low=0)
    broker_role: str = option("identity", "brokerRole", "ASYNC_MASTER",
        "Classic mode: master without or with waiting for a slave, or slave.",
        choices=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"))
    broker_zone: str = option("identity", "brokerZone", "",
        "Availability zone or rack of this replica, over which `mqadmin balanceLeaders` spreads "
        "leaders; empty: each machine is a zone.")

    listen_port: int = option("network", "listenPort", 10911,
        "Port for clients; 0: any free port.", low=0, high=65535)
    bind_address: str = option("network", "bindAddress", LOOPBACK,
        "Listening address. Clients get `brokerIP1`. With `aclEnable` the default is `0.0.0.0`.")
    broker_ip1: str = option("network", "brokerIP1", "127.0.0.1",
        "Host in the addresses for clients and name servers.")
    advertised_port: int = option("network", "advertisedPort", 0,
        "Port for clients with a proxy before `listenPort`; 0: `listenPort`.", low=0, high=65535)
    grpc_port: int = option("network", "grpcPort", 0,
        "Port of an `mqproxy` for RocketMQ 5's gRPC clients, which this broker starts, watches "
        "and ends ([mqproxy](proxy.md)); 0: none. Larger clusters run separate proxies.",
        low=0, high=65535)
    namesrv_addr: str = option("network", "namesrvAddr", "",
        "Name servers, `host:port;host:port` (in TOML also a list). A proxy of `grpcPort` uses a "
        "change after its next start.", alike=True, spread=True, live=True)
    broker_address_map: str = option("network", "brokerAddressMap", "",
        "Reachable addresses of the other broker groups, if they differ from the advertised ones, "
        "as in a container: `127.0.0.1:10911=broker-a0:10911;…`.", spread=True)
    register_name_server_period: int = option("network", "registerNameServerPeriod", 30_000,
        "Interval of registrations.", unit=MS, low=1_000, high=60_000)
    registration_key_file: str = option("network", "registrationKeyFile", "",
        "File with the key of the name servers for signed registrations (first line; private); "
        "empty: registrations are not signed ([Security](security.md)).")

    store_path_root_dir: str = option("store", "storePathRootDir", "store",
        "Directory of log, queues and tables.")
    mapped_file_size_commit_log: int = option("store", "mappedFileSizeCommitLog", GIB,
        "Size of a CommitLog segment; equal on all replicas, and never changed.",
        unit=BYTES, low=64 * KIB, high=2 * GIB - 1, alike=True)
    mapped_file_size_consume_queue: int = option("store", "mappedFileSizeConsumeQueue", 6_000_000,
        "Size of a ConsumeQueue file; 20 bytes per message.", unit=BYTES, low=20, high=2 * GIB - 1)
    flush_disk_type: str = option("store", "flushDiskType", "SYNC_FLUSH",
        "SYNC_FLUSH: a message is on disk (of a majority) before the answer. In classic mode the "
        "default is `ASYNC_FLUSH`, as Apache's.",
        choices=("SYNC_FLUSH", "ASYNC_FLUSH"), alike=True)
    flush_interval_commit_log: int = option("store", "flushIntervalCommitLog", 500,
        "ASYNC_FLUSH: interval of fdatasync.", unit=MS, low=1)
    delete_when: str = option("store", "deleteWhen", "04",
        "Hours of the day at which expired segments are deleted, separated by `;`.", spread=True)
    file_reserved_time: int = option("store", "fileReservedTime", 72,
        "Age at which a segment expires.", unit=HOURS, low=0, alike=True, live=True)
    disk_max_used_space_ratio: int = option("store", "diskMaxUsedSpaceRatio", 75,
        "Disk use above which expired segments are deleted at any hour.",
        unit=PERCENT, low=10, high=95,
        live=True)
    clean_file_forcibly_enable: bool = option("store", "cleanFileForciblyEnable", False,
        "Delete the oldest segments above diskSpaceCleanForciblyRatio, expired or not, consumed "
        "or not. false: keep unexpired segments; a full disk rejects sends.", live=True)
    disk_space_clean_forcibly_ratio: int = option("store", "diskSpaceCleanForciblyRatio", 85,
        "Disk use above which expired segments are deleted even if a replica or a backup still "
        "reads them; with cleanFileForciblyEnable the oldest of any age.", unit=PERCENT,
        low=10, high=100, live=True)
    disk_space_warning_level_ratio: int = option("store", "diskSpaceWarningLevelRatio", 90,
        "Disk use above which sends are rejected (`[DISK_FULL]`).", unit=PERCENT,
        low=10, high=100, live=True)
    message_index_enable: bool = option("store", "messageIndexEnable", True,
        "Maintain the index for queries by key.")
    max_hash_slot_num: int = option("store", "maxHashSlotNum", 5_000_000,
        "Hash slots per index file.", low=1, high=SLOTS_MAX)
    max_index_num: int = option("store", "maxIndexNum", 20_000_000,
        "Entries per index file.", low=2, high=ENTRIES_MAX)
    access_message_in_memory_max_ratio: int = option("store", "accessMessageInMemoryMaxRatio", 40,
        "Share of the memory in which the log's tail counts as hot.",
        unit=PERCENT, low=0, high=100)

    auto_create_topic_enable: bool = option("topics", "autoCreateTopicEnable", True,
        "A send to an unknown topic creates it.", alike=True)
    trace_topic_enable: bool = option("topics", "traceTopicEnable", False,
        "The leader creates RMQ_SYS_TRACE_TOPIC, with a single queue, for clients' message traces "
        "if sends create no topics.")
    enable_mixed_message_type: bool = option("topics", "enableMixedMessageType", False,
        "Allow topics for all message types (`message.type` MIXED).", live=True, alike=True)
    enable_topic_message_type_check: bool = option("topics", "enableTopicMessageTypeCheck", False,
        "Reject a message whose type differs from its topic's `message.type`, as Apache's proxy "
        "does.",
        alike=True)
    auto_create_subscription_group: bool = option("topics", "autoCreateSubscriptionGroup", True,
        "The first use of an unknown consumer group creates it.", live=True, alike=True)
    default_topic_queue_nums: int = option("topics", "defaultTopicQueueNums", 8,
        "Maximum number of queues of a topic that a send creates.", low=1, high=65536, alike=True)
    broker_permission: int = option("topics", "brokerPermission", 6,
        "4: readable, 2: writable.", low=0, high=7, alike=True)
    topics_max: int = option("topics", "topicsMax", 200_000,
        "Topics, besides a retry topic per consumer group; above, none is created.",
        low=1, live=True,
        alike=True)
    groups_max: int = option("topics", "groupsMax", 100_000,
        "Consumer groups; above, none is created, and a heartbeat or pull of an unknown group is "
        "rejected (`[BUSY]`).", low=1, live=True, alike=True)

    max_message_size: int = option("messages", "maxMessageSize", 4 * MIB,
        "Size of a message's body.", unit=BYTES, low=1 * KIB, high=12 * MIB, alike=True)
    waiting_bytes_max: int = option("messages", "waitingBytesMax", 64 * MIB,
        "Waiting and running sends; above, they are rejected (`[BUSY]`).", unit=BYTES, low=16 * KIB)
    wait_time_mills_in_send_queue: int = option("messages", "waitTimeMillsInSendQueue", 1_000,
        "Time after which a waiting send is rejected (`[BUSY]`), because the disk is too slow and "
        "its sender would soon time out.", unit=MS, low=10, live=True)
    message_delay_level: str = option("messages", "messageDelayLevel", STANDARD_LEVELS,
        "Delays of levels 1, 2, …; units s, m, h, d and ms. Equal on all replicas, because the "
        "due time is stored with the message. Each below `fileReservedTime`. After a removal of "
        "levels their waiting messages stay there.",
        alike=True, spread=True)
    timer_wheel_enable: bool = option("messages", "timerWheelEnable", True,
        "Accept timer messages (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS); otherwise "
        "such sends are rejected.", alike=True)
    timer_max_delay_sec: int = option("messages", "timerMaxDelaySec", 259_200,
        "Maximum delay of a timer message. It may exceed `fileReservedTime`: a message is stored "
        "again after half of that.", low=1, high=31_622_400, alike=True)
    timer_messages_max: int = option("messages", "timerMessagesMax", 1_000_000,
        "Waiting timer messages; above, a send is answered `[BUSY]`. Each needs 8 to 14 bytes of "
        "memory on every replica, 48 shortly before its time.", low=1, high=100_000_000,
        alike=True)
    recall_message_enable: bool = option("messages", "recallMessageEnable", True,
        "Allow the recall of waiting timer messages (370).", live=True, alike=True)
    idempotent_window_ms: int = option("messages", "idempotentWindowMs", 600_000,
        "Time in which a repeated send with IDEMPOTENT=true is detected.",
        unit=MS, low=1, high=86_400_000, live=True, alike=True)
    idempotent_window_max: int = option("messages", "idempotentWindowMax", 20_000,
        "Number of newest sends with IDEMPOTENT=true that are detected.",
        low=1, high=1_000_000, live=True, alike=True)
    pop_inflight_message_threshold: int = option("messages", "popInflightMessageThreshold", 10_000,
        "Unacknowledged popped messages of a queue per group; above, the queue delivers no more.",
        low=1, high=1_000_000, live=True, alike=True)
    trace_on: bool = option("messages", "traceOn", True, "TRACE_ON in the answers to sends.")
    long_polling_enable: bool = option("messages", "longPollingEnable", True,
        "Hold an empty pull for the time that it requests.", live=True)
    short_polling_time_mills: int = option("messages", "shortPollingTimeMills", 1000,
        "Hold time of an empty pull without long polling.", unit=MS, low=1, live=True)
    max_transfer_count_on_message_in_memory: int = option(
        "messages", "maxTransferCountOnMessageInMemory", 32,
        "Messages per pull. A pull with a byte limit (`maxMsgBytes`) gets up to 1,024.",
        low=1, high=4096, live=True)
    max_transfer_bytes_on_message_in_memory: int = option(
        "messages", "maxTransferBytesOnMessageInMemory", 256 * KIB,
        "Bytes per pull.", unit=BYTES, low=1 * KIB, high=8 * MIB, live=True)
    max_transfer_count_on_message_in_disk: int = option(
        "messages", "maxTransferCountOnMessageInDisk", 8,
        "Messages per pull of cold data.", low=1, high=4096)
    max_transfer_bytes_on_message_in_disk: int = option(
        "messages", "maxTransferBytesOnMessageInDisk", 64 * KIB,
        "Bytes per pull of cold data.", unit=BYTES, low=1 * KIB, high=8 * MIB)
    enable_property_filter: bool = option("messages", "enablePropertyFilter", False,
        "Filter by SQL92 expressions over properties.", live=True, alike=True)
    filter_support_retry: bool = option("messages", "filterSupportRetry", False,
        "Filter a group's retries by its expression for their original topic.", live=True,
        alike=True)
    notify_consumer_ids_changed_enable: bool = option(
        "messages", "notifyConsumerIdsChangedEnable", True,
        "Notify a consumer group's members of changes (code 40), unless the group's own "
        "configuration disables it.", live=True, alike=True)
    store_reply_message_enable: bool = option("messages", "storeReplyMessageEnable", True,
        "Store replies to requests in `<cluster>_REPLY_TOPIC` besides forwarding them.", live=True,
        alike=True)
    reject_inconsistent_subscriptions: bool = option("messages", "rejectInconsistentSubscriptions",
        False,
        "Reject the heartbeat of a consumer with different subscriptions than its group "
        "(`[INCONSISTENT_SUBSCRIPTIONS]`). They are logged in any case.",
        live=True)

    transaction_time_out: int = option("transactions", "transactionTimeOut", 6_000,
        "Age of a half message at its first check.", unit=MS, low=1,
        live=True, alike=True)
    transaction_check_interval: int = option("transactions", "transactionCheckInterval", 30_000,
        "Interval of checks of a half message.", unit=MS, low=1, live=True, alike=True)
    transaction_check_max: int = option("transactions", "transactionCheckMax", 15,
        "Checks after which a half message is moved to TRANS_CHECK_MAX_TIME_TOPIC.",
        low=1, live=True,
        alike=True)
    reject_transaction_message: bool = option("transactions", "rejectTransactionMessage", False,
        "Reject transactional messages.", alike=True)

    slave_read_enable: bool = option("classic", "slaveReadEnable", False,
        "A master or Raft leader sends consumers of cold data to a slave or follower.")
    ha_listen_port: int = option("classic", "haListenPort", 0,
        "A master's port for slaves; 0: `listenPort` + 1.", low=0, high=65535)
    ha_accept_unproven_peers: bool = option("classic", "haAcceptUnprovenPeers", False,
        "A master lets in slaves that give no proof, as Apache's cannot: whoever reaches"
        " `haListenPort` then gets every message. A slave asks its master for no proof: it then"
        " stores whatever it is sent from that address.")
    ha_master_address: str = option("classic", "haMasterAddress", "",
        "The master, `host:port`; empty: from a name server.")
    master_address: str = option("classic", "masterAddress", "",
        "The master's address for requests, by which a slave copies topics and offsets and "
        "compares the logs; empty: from a name server.")
    ha_slave_fallbehind_max: int = option("classic", "haSlaveFallbehindMax", 256 * MIB,
        "Lag above which a master does not wait for a slave.", unit=BYTES, low=0)
    slave_timeout: int = option("classic", "slaveTimeout", 3_000,
        "SYNC_MASTER: maximum wait of a send for a slave.", unit=MS, low=1)
    sync_from_last_file: bool = option("classic", "syncFromLastFile", False,
        "A new slave starts with the last segment.")
    slave_sync_metadata_interval_ms: int = option("classic", "slaveSyncMetadataIntervalMs", 60_000,
        "Interval of copies of the master's tables.", unit=MS, low=20)

    enable_dleger_commit_log: bool = option("raft", "enableDLegerCommitLog", False,
        "Raft mode: the broker group is a Raft group. Otherwise classic master and slaves.")
    dleger_group: str = option("raft", "dLegerGroup", "",
        "Name of the Raft group; empty: `brokerName`.")
    dleger_peers: str = option("raft", "dLegerPeers", "",
        "All replicas, `n0-host:port;n1-host:port` (in TOML also a list).", spread=True)
    dleger_self_id: str = option("raft", "dLegerSelfId", "n0",
        "Id of this replica among the peers.")
    dleger_bind_address: str = option("raft", "dLegerBindAddress", "",
        "Listening address for peers; empty: the host of this replica in `dLegerPeers`. Use "
        "`0.0.0.0` if that host's address may change, as a container's does.")
    raft_join: bool = option("raft", "raftJoin", False,
        "This replica joins an existing group (`dLegerPeers` has its members and this replica): "
        "it waits until it is added, and founds no group.")
    join_cluster: bool = option("raft", "joinCluster", True,
        "Adopt the topics and consumer groups of the other broker groups in `brokerClusterName`: "
        "all of them before a new group registers, later those that are created.", alike=True)
    drain_grace_ms: int = option("raft", "drainGraceMs", 60_000,
        "Time in which a draining group still takes sends, for producers with an older route.",
        unit=MS, low=0, live=True, alike=True)
    preferred_leader_id: str = option("raft", "preferredLeaderId", "",
        "Initial preferred leader of a group without a recorded preference (docs/http-api.md).")
    heartbeat_interval_ms: int = option("raft", "heartbeatIntervalMs", 75,
        "Interval of a leader's heartbeats.", unit=MS, low=5, alike=True)
    election_timeout_min_ms: int = option("raft", "electionTimeoutMinMs", 300,
        "Minimum of the random time without a leader after which a follower asks for votes.",
        unit=MS, low=20, alike=True)
    election_timeout_max_ms: int = option("raft", "electionTimeoutMaxMs", 600,
        "Maximum of that time.", unit=MS, low=30, alike=True)
    frame_size_max: int = option("raft", "frameSizeMax", 1 * MIB,
        "Size of a frame; a larger message has a frame of its own.",
        unit=BYTES, low=4 * KIB, high=16 * MIB)

    raft_catch_up_bytes_per_s: int = option("raft", "raftCatchUpBytesPerS", 64 * MIB,
        "Maximum rate of a leader's old log to all replicas that are far behind, which must "
        "exceed the write rate. 0: no limit.", unit=BYTES, low=0)

    peer_secret_file: str = option("peers", "peerSecretFile", "",
        "File with the secret of the group's brokers for the Raft and the HA port; equal on all "
        "of them, and private ([Security](security.md)). Without a secret these ports listen on "
        "loopback only.")
    peer_secret: str = option("peers", "peerSecret", "",
        "The same secret as a value. Never shown.", secret=True)

    acl_enable: bool = option("acl", "aclEnable", False,
        "Require an account with the necessary rights for every request "
        "([Security](security.md)).",
        alike=True)
    acl_file: str = option("acl", "aclFile", "conf/plain_acl.yml",
        "Accounts, in the format of Apache's plain_acl.yml. In a Raft group only the initial "
        "accounts.")
    acl_file_wins: bool = option("acl", "aclFileWins", False,
        "At its first leadership after a start, a replica of a Raft group replaces the group's "
        "accounts by its file. For lost administrators.")
    inner_client_authentication_credentials: str = option(
        "acl", "innerClientAuthenticationCredentials", "",
        'Admin\'s account with which this node signs its own requests to name servers and brokers: '
        '`{"accessKey":"…","secretKey":"…"}`. Never shown.', secret=True, spread=True)

    http_advertised_address: str = option("http", "httpAdvertisedAddress", "",
        "`host:port` for name servers and replicas; empty: `brokerIP1` and the port.")

    log_level: str = option("log", "logLevel", "INFO",
        "Lowest severity of logged events.",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"), live=True)

    metrics_series_max: int = option("metrics", "metricsSeriesMax", 2_000,
        "Series of consumer lag in `/metrics`, for the (topic, group) pairs with the largest lag; "
        "the rest is counted.", low=0, high=100_000, live=True)
    history_period_ms: int = option("metrics", "historyPeriodMs", 15_000,
        "Interval of samples of the figures over time (`/api/v1/history`). 0: no samples.",
        unit=MS, low=0)
    # fmt: on

    @property
    def inner_credentials(self) -> Credentials | None:
        """This node's own credentials. Raises ValueError; its text does not reveal them."""
        return credentials_of(self.inner_client_authentication_credentials)

    @property
    def is_classic(self) -> bool:
        """True for master/slave mode, False for a Raft group."""
        return not self.enable_dleger_commit_log

    @property
    def is_slave(self) -> bool:
        return self.is_classic and self.broker_role == "SLAVE"

    def without_effect(self) -> tuple[str, ...]:
        """Return the keys set here that have no effect in this mode."""
        raft_only = (
            ("dLegerGroup", self.dleger_group, ""),
            ("dLegerPeers", self.dleger_peers, ""),
            ("dLegerSelfId", self.dleger_self_id, "n0"),
            ("raftJoin", self.raft_join, False),
            ("preferredLeaderId", self.preferred_leader_id, ""),
        )
        classic_only = (
            ("brokerId", self.broker_id, 0),
            ("brokerRole", self.broker_role, "ASYNC_MASTER"),
            ("haMasterAddress", self.ha_master_address, ""),
            ("haListenPort", self.ha_listen_port, 0),
        )
        keys = raft_only if self.is_classic else classic_only
        return tuple(name for name, value, unset in keys if value != unset)

    @property
    def address(self) -> str:
        """The advertised client address, of brokerIP1 and of advertisedPort or listenPort."""
        return f"{self.broker_ip1}:{self.advertised_port or self.listen_port}"

    @property
    def name_servers(self) -> tuple[str, ...]:
        return tuple(part for part in re.split(r"[;,\s]+", self.namesrv_addr) if part)

    @property
    def peers(self) -> tuple[Peer, ...]:
        return (parse_peers if self.raft_join else parse_founders)(self.dleger_peers)

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        return parse_delay_levels(self.message_delay_level)

    @property
    def group_name(self) -> str:
        """The name of the Raft group and broker group (dLegerGroup, or else brokerName)."""
        return self.dleger_group or self.broker_name

    @property
    def ha_port(self) -> int:
        """The port where a classic master listens for slaves; 0 means any, as with listenPort."""
        return self.ha_listen_port or (self.listen_port and self.listen_port + 1)

    @property
    def node_name(self) -> str:
        """This broker's name within its broker name (brokerId or dLegerSelfId)."""
        return str(self.broker_id) if self.is_classic else self.dleger_self_id

    def registration_id(self, leader: bool) -> int:
        """Return the brokerId to register: 0 for a leader or master, and a slave's own brokerId.
        Another replica has 1 + its ordinal in the peers, unless the group's configuration differs.
        """
        if leader:
            return 0
        if self.is_classic:
            return self.broker_id
        ids = [peer.node_id for peer in self.peers]
        return 1 + ids.index(self.dleger_self_id)

    def alike(self) -> dict[str, str]:
        """Return by key the settings that should be equal on all replicas, as normalized text."""
        texts = {key: o.text(getattr(self, o.name)) for key, o in OPTIONS.items() if o.alike}
        return texts | {
            "namesrvAddr": ";".join(sorted(set(self.name_servers))),
            "messageDelayLevel": " ".join(f"{ms}ms" for ms in self.delay_levels_ms),
        }

    def properties_text(self) -> str:
        """Return the configuration as Apache's properties text (GET_BROKER_CONFIG, 26)."""
        return properties(OPTIONS, self)


# Defaults of classic mode, as in Apache's.
CLASSIC = {"flush_disk_type": "ASYNC_FLUSH"}

OPTIONS: dict[str, Option] = options_of(BrokerConfig)
APACHE_KEYS = Path(__file__).with_name("apache_keys.toml")


def load(
    path: str | None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Loaded[BrokerConfig]:
    """Load defaults, the file at `path` (TOML or broker.conf), RAFTMQ_ variables and `--set
    key=value` overrides, in rising priority.

    Raises ConfigError, also for an unreadable file."""
    settings = gather(OPTIONS, path, overrides, environment)
    return replace(_build(settings), repeated=repeated(OPTIONS, settings))


def build_config(settings: Iterable[Setting]) -> BrokerConfig:
    """Turn settings into a checked BrokerConfig. Raises ConfigError."""
    return _build(settings).config


def _build(settings: Iterable[Setting]) -> Loaded[BrokerConfig]:
    parted = separate(OPTIONS, tuple(settings), APACHE_KEYS)
    values, locations = parse_settings(OPTIONS, parted.own, parted.refused)

    def default(location: str, defaults: Mapping[str, object]) -> None:
        for name in defaults.keys() - values.keys():
            values[name] = defaults[name]
            locations[name] = location

    if not values.get("enable_dleger_commit_log"):
        default("default in classic mode", CLASSIC)
    if values.get("acl_enable"):
        default("default with aclEnable", {"bind_address": EVERYWHERE})
    config = BrokerConfig(**values)
    _check_together(config, locations)
    if "bind_address" not in locations and not is_loopback(config.broker_ip1):
        raise ConfigError(
            f"{locations['broker_ip1']}: brokerIP1={config.broker_ip1}: nobody would listen there:"
            " without accounts (aclEnable) and without bindAddress only loopback is listened on;"
            f" set aclEnable=true, or bindAddress={EVERYWHERE} if everybody who reaches this"
            " machine may do everything"
        )
    keys = {key: locations[OPTIONS[key].name] for key in config.without_effect()}
    unused = [f"{location}: {key}: no effect in this mode" for key, location in keys.items()]
    warnings = (*unused, *parted.otherwise)
    return Loaded(config, locations, warnings=warnings, not_needed=parted.not_needed)


@dataclass(frozen=True, slots=True)
class SettingChanges:
    """New values by key, split into live keys and keys that need a restart."""

    live: dict[str, Any]
    fixed: dict[str, Any]


def parse_live(changes: Mapping[str, object]) -> SettingChanges:
    """Parse changes of keys. Raises ConfigError for an unknown key or a wrong value."""
    result = SettingChanges({}, {})
    for key, value in changes.items():
        setting = Setting(key, value, "change")
        values, _ = parse_settings(OPTIONS, [setting])
        declared = find(OPTIONS, setting)
        assert declared is not None, key
        kind = result.live if declared.live else result.fixed
        kind[declared.key] = values[declared.name]
    return result


def shown_changes(changes: Mapping[str, object]) -> dict[str, object]:
    """Return changes for display, without secrets or unknown keys, perhaps misspelt secrets."""
    shown: dict[str, object] = {}
    for key, value in changes.items():
        declared = find(OPTIONS, Setting(key, value, "change"))
        shown[key] = MASKED if declared is None else declared.shown(value)
    return shown


def change_live(config: BrokerConfig, values: Mapping[str, Any]) -> None:
    """Change the configuration in effect, all of `values` or nothing. No other function changes a
    configuration. Raises ConfigError if the values conflict."""
    named = {OPTIONS[key].name: value for key, value in values.items()}
    assert all(OPTIONS[key].live for key in values), values
    _check_together(replace(config, **named), dict.fromkeys(named, "change"))
    for name, value in named.items():
        object.__setattr__(config, name, value)


def parse_peers(text: str) -> tuple[Peer, ...]:
    """Parse `n0-host:port;n1-host:port` (Apache) or `n0=host:port`. An id contains no '-' and no
    '='.

    Raises ValueError with the offending entry."""
    peers: list[Peer] = []
    for entry in filter(None, (piece.strip() for piece in text.split(";"))):
        match = re.fullmatch(r"([A-Za-z0-9_]+)[-=](\[[^\]]+\]|[^:\s]+):(\d{1,5})", entry)
        if match is None or not 0 < int(match[3]) < 65536:
            raise ValueError(f"{entry!r} is not id-host:port")
        try:
            match[2].encode("idna")  # as it is resolved
        except UnicodeError as error:
            raise ValueError(f"{entry!r} names no host: {error}") from error
        peer = Peer(match[1], match[2].strip("[]"), int(match[3]))
        if peer.node_id in {other.node_id for other in peers}:
            raise ValueError(f"peer id {peer.node_id!r} appears twice")
        peers.append(peer)
    return tuple(peers)


def parse_founders(text: str) -> tuple[Peer, ...]:
    """Parse the peers of a new group, with different addresses. (A joining replica may replace a
    lost member at its address.) Raises ValueError."""
    peers, ids = parse_peers(text), dict[tuple[str, int], str]()
    for peer in peers:
        other = ids.setdefault((peer.host.lower(), peer.port), peer.node_id)
        if other != peer.node_id:
            where = f"{peer.host}:{peer.port}"
            raise ValueError(f"peers {other} and {peer.node_id} have the same address {where}")
    return peers


def _listeners(config: BrokerConfig) -> Iterator[Listener]:
    bind, listen_port = config.bind_address, config.listen_port
    yield Listener("listen_port", bind, listen_port)
    if config.is_classic:
        yield Listener("ha_listen_port", bind, config.ha_port)
    for peer in () if config.is_classic else config.peers:
        if peer.node_id == config.dleger_self_id:
            yield Listener("dleger_peers", config.dleger_bind_address or peer.host, peer.port)
    yield Listener("grpc_port", bind, config.grpc_port)
    yield from config.http_listeners(config.listen_port)


def _check_together(config: BrokerConfig, locations: dict[str, str]) -> None:
    """Check combinations of values. Raises ConfigError for the first invalid field."""
    for name, reason in chain(
        _wrong_names(config),
        _wrong_group(config, locations),
        _wrong_access(config),
        _wrong_limits(config),
    ):
        raise wrong_value(OPTIONS, config, locations, name, reason)
    check_ports(OPTIONS, config, locations, _listeners(config))


# Invalid fields of a configuration, each with the reason. A check assumes that all checks before it
# have passed, so only the first of them is certain.
Problems = Iterator[tuple[str, str]]


def _wrong_names(config: BrokerConfig) -> Problems:
    for name in ("broker_name", "broker_cluster_name"):
        if problem := name_problem("name", getattr(config, name)):
            yield name, problem
    if config.broker_zone and (problem := name_problem("zone", config.broker_zone)):
        yield "broker_zone", problem
    if (size := len(config.dleger_group.encode())) > NAME_LENGTH_MAX:
        yield "dleger_group", f"is {size} bytes long, the longest is {NAME_LENGTH_MAX}"
    if address_problem("address", f"{config.broker_ip1}:1"):
        yield "broker_ip1", "is no host"
    for name, addresses in (
        ("namesrv_addr", config.name_servers),
        ("ha_master_address", (config.ha_master_address,)),
        ("master_address", (config.master_address,)),
        ("http_advertised_address", (config.http_advertised_address,)),
    ):
        for address in filter(None, addresses):
            if problem := address_problem("address", address):
                yield name, problem
    try:
        address_map(config.broker_address_map)
    except ValueError as error:
        yield "broker_address_map", str(error)


def _wrong_group(config: BrokerConfig, locations: Mapping[str, str]) -> Problems:
    try:
        ids = [peer.node_id for peer in config.peers]
    except ValueError as error:
        yield "dleger_peers", f"{error}; expected n0-host:port;n1-host:port"
        return
    if "enable_dleger_commit_log" not in locations:
        for name in ("dleger_peers", "dleger_self_id", "dleger_group"):
            if name in locations:
                yield (
                    name,
                    "is of a Raft group, and enableDLegerCommitLog is not set: true for a replica"
                    " of the group, false for a classic broker",
                )
    if config.enable_dleger_commit_log:
        if not ids:
            yield "dleger_peers", "enableDLegerCommitLog needs the peers, e.g. n0-127.0.0.1:40911"
        if config.dleger_self_id not in ids:
            near = nearest(config.dleger_self_id, ids)
            yield "dleger_self_id", f"not among the peers {', '.join(ids)}{near}"
        if config.preferred_leader_id and config.preferred_leader_id not in ids:
            near = nearest(config.preferred_leader_id, ids)
            yield "preferred_leader_id", f"not among the peers {', '.join(ids)}{near}"
        if config.raft_join and len(ids) == 1:
            yield "raft_join", "dLegerPeers must name the group's members, too"
    if config.is_slave and config.broker_id == 0:
        yield "broker_id", "0 is the master's; a SLAVE needs a brokerId of its own, e.g. 1"
    if config.is_classic and not config.is_slave and config.broker_id != 0:
        yield "broker_id", f"a master's brokerId is 0, and brokerRole is {config.broker_role}"


def _wrong_access(config: BrokerConfig) -> Problems:
    try:
        credentials = config.inner_credentials
    except ValueError as error:
        yield "inner_client_authentication_credentials", str(error)
        return
    if config.grpc_port and not config.namesrv_addr:
        yield "grpc_port", "needs namesrvAddr: a proxy learns from name servers where topics are"
    if config.grpc_port and config.acl_enable and credentials is None:
        yield "grpc_port", "with accounts it needs innerClientAuthenticationCredentials"
    if (wrong := config.wrong_tls()) is not None:
        yield wrong
    if config.raft_tls_mode != OFF and config.is_classic:
        yield "raft_tls_mode", "there is no Raft group: enableDLegerCommitLog is not set"
    if config.peer_secret and config.peer_secret_file:
        yield "peer_secret_file", "peerSecret is set, too: one of them"
    if config.peer_secret and len(config.peer_secret.encode()) < SECRET_SIZE_BYTES_MIN:
        yield "peer_secret", f"must have at least {SECRET_SIZE_BYTES_MIN} bytes"


def _wrong_limits(config: BrokerConfig) -> Problems:
    if config.ha_port > 65535:
        yield "listen_port", "haListenPort would be one more: set it"
    try:
        parse_delay_levels(config.message_delay_level)
    except ValueError as error:
        yield "message_delay_level", str(error)
    if config.election_timeout_max_ms <= config.election_timeout_min_ms:
        yield "election_timeout_max_ms", "must be above electionTimeoutMinMs"
    if config.heartbeat_interval_ms * 2 > config.election_timeout_min_ms:
        yield "heartbeat_interval_ms", "must be at most half of electionTimeoutMinMs"
    if config.mapped_file_size_consume_queue % 20:
        yield "mapped_file_size_consume_queue", "must be a multiple of 20, the size of a unit"
    if config.mapped_file_size_commit_log < config.max_message_size + 128 * KIB:
        yield "mapped_file_size_commit_log", "a segment must hold maxMessageSize + 128 KiB"
    if not re.fullmatch(r"([01]?\d|2[0-3])(;([01]?\d|2[0-3]))*", config.delete_when):
        yield "delete_when", "expected hours of the day separated by ';', e.g. 04"


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the levels in ms, level 1 first. Raises ValueError with the reason."""
    levels: list[int] = []
    for level in text.split():
        match = _LEVEL.fullmatch(level)
        if match is None:
            raise ValueError(f"{level!r} is no time such as 10s, 5m, 2h or 1d")
        delay_ms = int(match[1]) * _UNITS_MS[match[2]]
        if delay_ms > DELAY_MS_MAX:
            raise ValueError(f"{level!r} is longer than a year")
        levels.append(delay_ms)
    if not 0 < len(levels) <= LEVELS_MAX:
        raise ValueError(f"these are {len(levels)} levels, there may be 1 to {LEVELS_MAX}")
    return tuple(levels)
