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
from pathlib import Path
from typing import Any

from raftmq.dledger.transport.peer_auth import SECRET_SIZE_BYTES_MIN
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
from raftmq.ops.ports import Listener, check_ports, http_port
from raftmq.ops.settings import gather, parse_properties, repeated
from raftmq.ops.tls_options import OFF, PeerTlsOptions
from raftmq.remoting.acl.signature import Credentials, credentials_of
from raftmq.remoting.names import NAME_LENGTH_MAX, address_problem, name_problem
from raftmq.store.index.index_file import ENTRIES_MAX, SLOTS_MAX
from raftmq.web.settings import is_loopback

__all__ = [
    "OPTIONS",
    "BrokerConfig",
    "Loaded",
    "Option",
    "Peer",
    "Setting",
    "build_config",
    "load",
    "load_config",
    "parse_founders",
    "parse_properties",
]

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

    # [identity]
    broker_cluster_name: str = option("identity", "brokerClusterName", "DefaultCluster",
        "The cluster this broker belongs to.", alike=True)
    broker_name: str = option("identity", "brokerName", "broker-a",
        "The broker group's name: what clients see of it.")
    broker_id: int = option("identity", "brokerId", 0,
        "Classic mode: 0 is the master, each slave has a number of its own.", low=0)
    broker_role: str = option("identity", "brokerRole", "ASYNC_MASTER",
        "Classic mode: master that does not wait for slaves, master that does, or slave.",
        choices=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"))
    region_id: str = option("identity", "regionId", "DefaultRegion",
        "MSG_REGION in the answers to sends.", alike=True)

    # [network]
    listen_port: int = option("network", "listenPort", 10911,
        "Where clients connect; 0 takes any free port.", low=0, high=65535)
    bind_address: str = option("network", "bindAddress", LOOPBACK,
        "The address listened on. `brokerIP1` is what clients are told. With `aclEnable` the"
        " default is `0.0.0.0`.")
    broker_ip1: str = option("network", "brokerIP1", "127.0.0.1",
        "The host that clients and name servers are told.")
    advertised_port: int = option("network", "advertisedPort", 0,
        "The port that clients are told, where a proxy stands before `listenPort`; 0: "
        "`listenPort`.", low=0, high=65535)
    grpc_port: int = option("network", "grpcPort", 0,
        "Where RocketMQ 5's gRPC clients connect, to an `mqproxy` that this broker starts, watches"
        " and ends ([mqproxy](proxy.md)); 0: nowhere. Larger clusters run proxies of their own.",
        low=0, high=65535)
    namesrv_addr: str = option("network", "namesrvAddr", "",
        "The name servers, `host:port;host:port` (in TOML a list, too). A proxy of `grpcPort` gets"
        " a change with its next start.", alike=True, spread=True, live=True)
    register_name_server_period: int = option("network", "registerNameServerPeriod", 30_000,
        "Between two registrations.", unit=MS, low=1_000, high=60_000)
    register_broker_timeout_mills: int = option("network", "registerBrokerTimeoutMills", 3_000,
        "A registration that takes longer has failed.", unit=MS, low=10)
    registration_key_file: str = option("network", "registrationKeyFile", "",
        "File of the key that registrations are signed with, the name servers' (its first line;"
        " nobody else may read it); empty: they are not signed ([Security](security.md)).")

    # [store]
    store_path_root_dir: str = option("store", "storePathRootDir", "store",
        "The directory of log, queues and tables.")
    mapped_file_size_commit_log: int = option("store", "mappedFileSizeCommitLog", GIB,
        "A CommitLog segment: alike in all replicas, and never changed.",
        unit=BYTES, low=64 * KIB, high=2 * GIB - 1, alike=True)
    mapped_file_size_consume_queue: int = option("store", "mappedFileSizeConsumeQueue", 6_000_000,
        "A ConsumeQueue file; 20 bytes a message.", unit=BYTES, low=20, high=2 * GIB - 1)
    flush_disk_type: str = option("store", "flushDiskType", "SYNC_FLUSH",
        "SYNC_FLUSH: a message is on disk (of a majority) before its sender is answered. In classic"
        " mode the default is `ASYNC_FLUSH`, as Apache's.",
        choices=("SYNC_FLUSH", "ASYNC_FLUSH"), alike=True)
    flush_interval_commit_log: int = option("store", "flushIntervalCommitLog", 500,
        "ASYNC_FLUSH: between two fdatasyncs.", unit=MS, low=1)
    delete_when: str = option("store", "deleteWhen", "04",
        "Hours of the day at which expired segments go, separated by `;`.", spread=True)
    file_reserved_time: int = option("store", "fileReservedTime", 72,
        "Age at which a segment expires.", unit=HOURS, low=0, alike=True, live=True)
    clean_resource_interval: int = option("store", "cleanResourceInterval", 10_000,
        "Between two looks for expired segments.", unit=MS, low=50)
    disk_max_used_space_ratio: int = option("store", "diskMaxUsedSpaceRatio", 75,
        "Disk use from which on expired segments go at any hour.", unit=PERCENT, low=10, high=95,
        live=True)
    disk_max_used_space_free_bytes: int = option("store", "diskMaxUsedSpaceFreeBytes", 64 * GIB,
        "Expired segments go at any hour only if less than this is free, too. 0: the percentage"
        " alone decides.", unit=BYTES, low=0, live=True)
    clean_file_forcibly_enable: bool = option("store", "cleanFileForciblyEnable", False,
        "Delete the oldest segments although they have not expired, consumed or not, from"
        " diskSpaceCleanForciblyRatio on. false: what has not expired is kept, and a full disk"
        " refuses sends.", live=True)
    disk_space_clean_forcibly_ratio: int = option("store", "diskSpaceCleanForciblyRatio", 85,
        "Disk use from which on expired segments go although a replica or a backup still reads"
        " them; with cleanFileForciblyEnable the oldest go whatever their age.", unit=PERCENT,
        low=10, high=100, live=True)
    disk_space_clean_forcibly_free_bytes: int = option(
        "store", "diskSpaceCleanForciblyFreeBytes", 24 * GIB,
        "They go only if less than this is free, too. 0: the percentage alone decides.",
        unit=BYTES, low=0, live=True)
    disk_space_warning_level_ratio: int = option("store", "diskSpaceWarningLevelRatio", 90,
        "Disk use from which on sends are refused (`[DISK_FULL]`).", unit=PERCENT,
        low=10, high=100, live=True)
    disk_space_warning_free_bytes: int = option("store", "diskSpaceWarningFreeBytes", 16 * GIB,
        "Sends are refused only if less than this is free, too, so that a large disk is not called"
        " full while there is room for many segments. 0: the percentage alone decides.",
        unit=BYTES, low=0, live=True)
    message_index_enable: bool = option("store", "messageIndexEnable", True,
        "Keep the index for queries by key.")
    max_hash_slot_num: int = option("store", "maxHashSlotNum", 5_000_000,
        "Hash slots of an index file.", low=1, high=SLOTS_MAX)
    max_index_num: int = option("store", "maxIndexNum", 20_000_000,
        "Entries of an index file.", low=2, high=ENTRIES_MAX)
    access_message_in_memory_max_ratio: int = option("store", "accessMessageInMemoryMaxRatio", 40,
        "Share of the memory that the log's tail may take to count as hot.",
        unit=PERCENT, low=0, high=100)
    snapshot_interval_ms: int = option("store", "snapshotIntervalMs", 10_000,
        "Between two snapshots of the tables (Raft), or flushes of the queues (classic).",
        unit=MS, low=50)
    flush_consumer_offset_interval: int = option("store", "flushConsumerOffsetInterval", 5_000,
        "Classic mode: between two writings of the tables.", unit=MS, low=100)

    # [topics]
    auto_create_topic_enable: bool = option("topics", "autoCreateTopicEnable", True,
        "A send to an unknown topic creates it.", alike=True)
    trace_topic_enable: bool = option("topics", "traceTopicEnable", False,
        "The leader makes RMQ_SYS_TRACE_TOPIC, with one queue: where sends create no topics,"
        " clients have no other place for their traces of messages.")
    enable_mixed_message_type: bool = option("topics", "enableMixedMessageType", False,
        "Topics may be for all kinds of messages (`message.type` MIXED).", live=True, alike=True)
    enable_topic_message_type_check: bool = option("topics", "enableTopicMessageTypeCheck", False,
        "Refuse a message whose kind is not its topic's `message.type`, as Apache's proxy does.",
        alike=True)
    auto_create_subscription_group: bool = option("topics", "autoCreateSubscriptionGroup", True,
        "An unknown consumer group is created when it is first used.", live=True, alike=True)
    default_topic_queue_nums: int = option("topics", "defaultTopicQueueNums", 8,
        "Queues of a topic that a send creates, at most.", low=1, high=65536, alike=True)
    broker_permission: int = option("topics", "brokerPermission", 6,
        "4: may be read, 2: may be written.", low=0, high=7, alike=True)
    topics_max: int = option("topics", "topicsMax", 200_000,
        "Topics, besides one for each consumer group; above, none is created.", low=1, live=True,
        alike=True)
    groups_max: int = option("topics", "groupsMax", 100_000,
        "Consumer groups; above, none is created, and a heartbeat or pull of an unknown one is"
        " refused (`[BUSY]`).", low=1, live=True, alike=True)

    # [messages]
    max_message_size: int = option("messages", "maxMessageSize", 4 * MIB,
        "A message's body.", unit=BYTES, low=1 * KIB, high=12 * MIB, alike=True)
    waiting_bytes_max: int = option("messages", "waitingBytesMax", 64 * MIB,
        "Sends waiting or under way; above, they are refused (`[BUSY]`).", unit=BYTES, low=16 * KIB)
    wait_time_mills_in_send_queue: int = option("messages", "waitTimeMillsInSendQueue", 1_000,
        "A send that waited for so long for a place in a frame is refused (`[BUSY]`): the disk does"
        " not keep up, and its sender would soon wait no more.", unit=MS, low=10, live=True)
    outcome_timeout_ms: int = option("messages", "outcomeTimeoutMs", 3_000,
        "A send whose fate is open for longer is answered `[OUTCOME_UNKNOWN]`.",
        unit=MS, low=50, live=True)
    message_delay_level: str = option("messages", "messageDelayLevel", STANDARD_LEVELS,
        "How long the messages of delay levels 1, 2, … wait; units s, m, h, d and ms. The same on"
        " all replicas: when a message is due is noted as it is stored. Each less than"
        " `fileReservedTime`. With fewer levels than before what waits on the others stays there.",
        alike=True, spread=True)
    timer_wheel_enable: bool = option("messages", "timerWheelEnable", True,
        "Take timer messages (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS); else such a send"
        " is refused.", alike=True)
    timer_precision_ms: int = option("messages", "timerPrecisionMs", 1,
        "A timer message comes by so much late at most, and with all others of the same slot."
        " Apache's has 1000.", unit=MS, low=1, high=1_000, alike=True)
    timer_max_delay_sec: int = option("messages", "timerMaxDelaySec", 259_200,
        "How far away the time of a timer message may be. It may be more than `fileReservedTime`:"
        " what has waited half of that is stored once more.", low=1, high=31_622_400, alike=True)
    timer_messages_max: int = option("messages", "timerMessagesMax", 1_000_000,
        "So many may wait; a further send is answered `[BUSY]`. Each takes 8 to 14 bytes of memory"
        " on every replica, 48 in the seconds before its time.", low=1, high=100_000_000,
        alike=True)
    recall_message_enable: bool = option("messages", "recallMessageEnable", True,
        "Timer messages that wait can be recalled (370).", live=True, alike=True)
    idempotent_window_ms: int = option("messages", "idempotentWindowMs", 600_000,
        "For so long a send with IDEMPOTENT=true is known and not stored again.",
        unit=MS, low=1, high=86_400_000, live=True, alike=True)
    idempotent_window_max: int = option("messages", "idempotentWindowMax", 20_000,
        "So many of them are known, the newest.", low=1, high=1_000_000, live=True, alike=True)
    pop_inflight_message_threshold: int = option("messages", "popInflightMessageThreshold", 10_000,
        "So many messages of a queue may be popped and not acknowledged by a group; above, it gets"
        " no more of that queue.", low=1, high=1_000_000, live=True, alike=True)
    trace_on: bool = option("messages", "traceOn", True, "TRACE_ON in the answers to sends.")
    long_polling_enable: bool = option("messages", "longPollingEnable", True,
        "Hold a pull that finds nothing for as long as it asks.", live=True)
    short_polling_time_mills: int = option("messages", "shortPollingTimeMills", 1000,
        "Without long polling: how long an empty pull is held.", unit=MS, low=1, live=True)
    max_transfer_count_on_message_in_memory: int = option(
        "messages", "maxTransferCountOnMessageInMemory", 32,
        "Messages of one pull. A consumer that also says how many bytes it takes (`maxMsgBytes`)"
        " gets up to 1,024.", low=1, high=4096, live=True)
    max_transfer_bytes_on_message_in_memory: int = option(
        "messages", "maxTransferBytesOnMessageInMemory", 256 * KIB,
        "Bytes of one pull.", unit=BYTES, low=1 * KIB, high=8 * MIB, live=True)
    max_transfer_count_on_message_in_disk: int = option(
        "messages", "maxTransferCountOnMessageInDisk", 8,
        "Messages of one pull of cold data.", low=1, high=4096)
    max_transfer_bytes_on_message_in_disk: int = option(
        "messages", "maxTransferBytesOnMessageInDisk", 64 * KIB,
        "Bytes of one pull of cold data.", unit=BYTES, low=1 * KIB, high=8 * MIB)
    max_msgs_num_batch: int = option("messages", "maxMsgsNumBatch", 64,
        "Messages of one query by key.", low=1, high=64, live=True)
    enable_property_filter: bool = option("messages", "enablePropertyFilter", False,
        "Filter by SQL92 expressions over properties.", live=True, alike=True)
    filter_support_retry: bool = option("messages", "filterSupportRetry", False,
        "Filter a group's retries by its expression for their original topic.", live=True,
        alike=True)
    lite_pull_message_enable: bool = option("messages", "litePullMessageEnable", True,
        "Serve pulls of LitePullConsumers (code 361).", live=True, alike=True)
    notify_consumer_ids_changed_enable: bool = option(
        "messages", "notifyConsumerIdsChangedEnable", True,
        "Tell a consumer group's members of changes (code 40), unless the group's own"
        " configuration says not to.", live=True, alike=True)
    store_reply_message_enable: bool = option("messages", "storeReplyMessageEnable", True,
        "Store replies to requests in `<cluster>_REPLY_TOPIC` besides passing them on.", live=True,
        alike=True)
    rebalance_lock_max_live_ms: int = option("messages", "rebalanceLockMaxLiveMs", 60_000,
        "A queue's lock that its consumer does not renew ends after so long. Consumers renew every"
        " 20 s and hold a lock for theirs for 30 s: less than twice that lets two in.",
        unit=MS, low=100, alike=True)
    default_query_max_num: int = option("messages", "defaultQueryMaxNum", 32,
        "The same, where the query names no number.", low=1, high=64, live=True)
    reject_inconsistent_subscriptions: bool = option("messages", "rejectInconsistentSubscriptions",
        False, "Refuse the heartbeat of a consumer whose subscriptions are not those of its group's"
        " other consumers (`[INCONSISTENT_SUBSCRIPTIONS]`). They are logged in any case.",
        live=True)

    # [transactions]
    transaction_time_out: int = option("transactions", "transactionTimeOut", 6_000,
        "A half message that has not ended is first checked after so long.", unit=MS, low=1,
        live=True, alike=True)
    transaction_check_interval: int = option("transactions", "transactionCheckInterval", 30_000,
        "Between two checks of a half message.", unit=MS, low=1, live=True, alike=True)
    transaction_check_max: int = option("transactions", "transactionCheckMax", 15,
        "Checks, after which a half message goes to TRANS_CHECK_MAX_TIME_TOPIC.", low=1, live=True,
        alike=True)
    reject_transaction_message: bool = option("transactions", "rejectTransactionMessage", False,
        "Take no transactional messages.", alike=True)

    # [classic]
    slave_read_enable: bool = option("classic", "slaveReadEnable", False,
        "A master or Raft leader sends consumers of cold data to a slave or follower.")
    ha_listen_port: int = option("classic", "haListenPort", 0,
        "Where a master listens for slaves; 0: `listenPort` + 1.", low=0, high=65535)
    ha_accept_unproven_peers: bool = option("classic", "haAcceptUnprovenPeers", False,
        "A master lets in slaves that give no proof, as Apache's cannot: whoever reaches"
        " `haListenPort` then gets every message. A slave asks its master for no proof: it then"
        " stores whatever it is sent from that address.")
    ha_master_address: str = option("classic", "haMasterAddress", "",
        "The master, `host:port`; empty: what a name server says.")
    master_address: str = option("classic", "masterAddress", "",
        "Where a slave asks its master for topics and offsets, and compares the logs before it"
        " follows; empty: what a name server says, which is the way of clients.")
    ha_send_heartbeat_interval: int = option("classic", "haSendHeartbeatInterval", 5_000,
        "Between two signs of life on a quiet link.", unit=MS, low=10)
    ha_housekeeping_interval: int = option("classic", "haHousekeepingInterval", 20_000,
        "A link silent for so long is closed.", unit=MS, low=50)
    ha_transfer_batch_size: int = option("classic", "haTransferBatchSize", 32 * KIB,
        "Log sent to a slave at once.", unit=BYTES, low=1, high=1 * MIB)
    ha_slave_fallbehind_max: int = option("classic", "haSlaveFallbehindMax", 256 * MIB,
        "A slave further behind is not waited for.", unit=BYTES, low=0)
    slave_timeout: int = option("classic", "slaveTimeout", 3_000,
        "SYNC_MASTER: how long a sender waits for a slave.", unit=MS, low=1)
    sync_flush_timeout: int = option("classic", "syncFlushTimeout", 5_000,
        "SYNC_FLUSH: how long a sender waits for the disk.", unit=MS, low=1)
    sync_from_last_file: bool = option("classic", "syncFromLastFile", False,
        "A new slave begins with the last segment.")
    slave_sync_metadata_interval_ms: int = option("classic", "slaveSyncMetadataIntervalMs", 60_000,
        "Between two copies of the master's tables.", unit=MS, low=20)

    # [raft]
    enable_dleger_commit_log: bool = option("raft", "enableDLegerCommitLog", False,
        "Raft mode: the broker group is a Raft group. Else classic master and slaves.")
    dleger_group: str = option("raft", "dLegerGroup", "", "The Raft group; empty: `brokerName`.")
    dleger_peers: str = option("raft", "dLegerPeers", "",
        "All replicas, `n0-host:port;n1-host:port` (in TOML a list, too).", spread=True)
    dleger_self_id: str = option("raft", "dLegerSelfId", "n0", "Which of the peers this is.")
    dleger_bind_address: str = option("raft", "dLegerBindAddress", "",
        "The address listened on for peers; empty: the host of this replica's entry in"
        " `dLegerPeers`. `0.0.0.0` where that host's address may change, as a container's does.")
    raft_join: bool = option("raft", "raftJoin", False,
        "This replica joins a group that is there (`dLegerPeers`: its members and this one): it"
        " waits until it is added, and founds nothing.")
    preferred_leader_id: str = option("raft", "preferredLeaderId", "",
        "Which of the peers should lead when it can, in a group that was never told; from then on"
        " the group itself knows (docs/http-api.md).")
    heartbeat_interval_ms: int = option("raft", "heartbeatIntervalMs", 75,
        "A leader's heartbeats.", unit=MS, low=5, alike=True)
    election_timeout_min_ms: int = option("raft", "electionTimeoutMinMs", 300,
        "A follower that hears no leader for so long (up to the maximum, drawn) asks for votes.",
        unit=MS, low=20, alike=True)
    election_timeout_max_ms: int = option("raft", "electionTimeoutMaxMs", 600,
        "See the minimum.", unit=MS, low=30, alike=True)
    frame_size_max: int = option("raft", "frameSizeMax", 1 * MIB,
        "A frame; one larger message has a frame of its own.",
        unit=BYTES, low=4 * KIB, high=16 * MIB)

    raft_catch_up_bytes_per_s: int = option("raft", "raftCatchUpBytesPerS", 64 * MIB,
        "What a leader sends, at most, of its old log to all replicas that are far behind together;"
        " more than what is written, or they never catch up. 0: no limit.", unit=BYTES, low=0)

    # [peers]
    peer_secret_file: str = option("peers", "peerSecretFile", "",
        "The file that holds the secret by which the brokers of a group know each other, on the"
        " Raft and the HA port; the same on all of them, for nobody else to read"
        " ([Security](security.md)). Without, these ports listen on loopback only.")
    peer_secret: str = option("peers", "peerSecret", "",
        "The same secret, not in a file. Never shown.", secret=True)

    # [acl]
    acl_enable: bool = option("acl", "aclEnable", False,
        "Ask every request for an account that may do what it wants ([Security](security.md)).",
        alike=True)
    acl_file: str = option("acl", "aclFile", "conf/plain_acl.yml",
        "The accounts, in the form of Apache's plain_acl.yml. In a Raft group only the first: what"
        " is changed from then on is the group's.")
    acl_file_wins: bool = option("acl", "aclFileWins", False,
        "A replica of a Raft group that comes to lead puts its file in the place of the group's"
        " accounts, once a start: for who has locked himself out.")
    inner_client_authentication_credentials: str = option(
        "acl", "innerClientAuthenticationCredentials", "",
        "What this node signs its own requests to name servers and brokers with:"
        ' `{"accessKey":"…","secretKey":"…"}`, an admin\'s. Never shown.', secret=True, spread=True)

    # [http]
    http_enable: bool = option("http", "httpEnable", True, "Serve the HTTP API and `/metrics`.")
    http_bind_address: str = option("http", "httpBindAddress", "127.0.0.1",
        "The address listened on. One that is not loopback needs `httpTokensFile`.")
    http_port: int = option("http", "httpPort", -1,
        "The port; -1: `listenPort` + 4, 0: any free one.", low=-1, high=65535)
    http_advertised_address: str = option("http", "httpAdvertisedAddress", "",
        "The `host:port` that others are told; empty: `brokerIP1` and the port listened on.")
    http_tokens_file: str = option("http", "httpTokensFile", "",
        "JSON file of tokens and roles, read again within 10 s of a change; empty: every loopback"
        " caller is admin.")
    http_health_port: int = option("http", "httpHealthPort", 0,
        "Serve `/health/live` and `/health/ready` at this port of 127.0.0.1, too, without TLS: what"
        " looks after the process on its own machine needs no certificate; 0: nowhere.",
        low=0, high=65535)

    # [log]
    log_format: str = option("log", "logFormat", "text",
        "Events as text, or as JSON, one a line.", choices=("text", "json"))
    log_level: str = option("log", "logLevel", "INFO",
        "The least severe events written.",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"), live=True)

    log_peer_lines_per_s: int = option("log", "logPeerLinesPerS", 2,
        "Lines a second about what peers did wrong, on average; what is more is counted.", low=1)

    # [metrics]
    metrics_series_max: int = option("metrics", "metricsSeriesMax", 2_000,
        "Series of consumer lag in `/metrics`: the (topic, group) pairs furthest behind; the rest"
        " is counted.", low=0, high=100_000, live=True)
    history_period_ms: int = option("metrics", "historyPeriodMs", 15_000,
        "Between two samples of the figures over time (`/api/v1/history`). 0: none are kept.",
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
        lines = [f"{key}={o.text(getattr(self, o.name))}" for key, o in sorted(OPTIONS.items())]
        return "\n".join(lines) + "\n"


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


def load_config(path: str | None, overrides: Sequence[str] = ()) -> BrokerConfig:
    """Load the configuration without environment. Raises ConfigError."""
    return load(path, overrides).config


def build_config(settings: Iterable[Setting]) -> BrokerConfig:
    """Turn settings into a checked BrokerConfig. Raises ConfigError."""
    return _build(settings).config


def _build(settings: Iterable[Setting]) -> Loaded[BrokerConfig]:
    parted = separate(OPTIONS, tuple(settings), APACHE_KEYS)
    values, places = parse_settings(OPTIONS, parted.own, parted.refused)

    def default(place: str, defaults: Mapping[str, object]) -> None:
        for name in defaults.keys() - values.keys():
            values[name] = defaults[name]
            places[name] = place

    if not values.get("enable_dleger_commit_log"):
        default("default in classic mode", CLASSIC)
    if values.get("acl_enable"):
        default("default with aclEnable", {"bind_address": EVERYWHERE})
    config = BrokerConfig(**values)
    _check_together(config, places)
    if "bind_address" not in places and not is_loopback(config.broker_ip1):
        raise ConfigError(
            f"{places['broker_ip1']}: brokerIP1={config.broker_ip1}: nobody would listen there:"
            " without accounts (aclEnable) and without bindAddress only loopback is listened on;"
            f" set aclEnable=true, or bindAddress={EVERYWHERE} if everybody who reaches this"
            " machine may do everything"
        )
    keys = {key: places[OPTIONS[key].name] for key in config.without_effect()}
    unused = [f"{place}: {key}: no effect in this mode" for key, place in keys.items()]
    warnings = (*unused, *parted.otherwise)
    return Loaded(config, places, warnings=warnings, not_needed=parted.not_needed)


@dataclass(frozen=True, slots=True)
class Wanted:
    """New values by key, split into live keys and keys that need a restart."""

    live: dict[str, Any]
    fixed: dict[str, Any]


def parse_live(changes: Mapping[str, object]) -> Wanted:
    """Parse changes of keys. Raises ConfigError for an unknown key or a wrong value."""
    found = Wanted({}, {})
    for key, value in changes.items():
        setting = Setting(key, value, "change")
        values, _ = parse_settings(OPTIONS, [setting])
        declared = find(OPTIONS, setting)
        assert declared is not None, key
        kind = found.live if declared.live else found.fixed
        kind[declared.key] = values[declared.name]
    return found


def shown_changes(changes: Mapping[str, object]) -> dict[str, object]:
    """Return changes of keys for display, without values of secrets or of unknown keys, which may
    be misspelt secrets."""
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
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        match = re.fullmatch(r"([A-Za-z0-9_]+)[-=](\[[^\]]+\]|[^:\s]+):(\d{1,5})", part)
        if match is None or not 0 < int(match[3]) < 65536:
            raise ValueError(f"{part!r} is not id-host:port")
        try:
            match[2].encode("idna")  # as it is resolved
        except UnicodeError as error:
            raise ValueError(f"{part!r} names no host: {error}") from error
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
    """Yield the listeners of this broker and of its proxy."""
    bind, listen_port = config.bind_address, config.listen_port
    yield Listener("listen_port", bind, listen_port)
    if config.is_classic:
        yield Listener("ha_listen_port", bind, config.ha_port)
    for peer in () if config.is_classic else config.peers:
        if peer.node_id == config.dleger_self_id:
            yield Listener("dleger_peers", config.dleger_bind_address or peer.host, peer.port)
    yield Listener("grpc_port", bind, config.grpc_port)
    if config.http_enable:
        http = http_port(config.http_port, listen_port)
        yield Listener("http_port", config.http_bind_address, http)
        yield Listener("http_health_port", LOOPBACK, config.http_health_port)


def _check_together(config: BrokerConfig, places: dict[str, str]) -> None:
    """Check values that depend on each other. Raises ConfigError."""

    def fail(name: str, why: str) -> None:
        raise wrong_value(OPTIONS, config, places, name, why)

    for name in ("broker_name", "broker_cluster_name"):
        if problem := name_problem("name", getattr(config, name)):
            fail(name, problem)
    for name in ("region_id", "dleger_group"):
        if (size := len(getattr(config, name).encode())) > NAME_LENGTH_MAX:
            fail(name, f"is {size} bytes long, the longest is {NAME_LENGTH_MAX}")
    if address_problem("address", f"{config.broker_ip1}:1"):
        fail("broker_ip1", "is no host")
    for name, addresses in (
        ("namesrv_addr", config.name_servers),
        ("ha_master_address", (config.ha_master_address,)),
        ("master_address", (config.master_address,)),
        ("http_advertised_address", (config.http_advertised_address,)),
    ):
        for address in filter(None, addresses):
            if problem := address_problem("address", address):
                fail(name, problem)
    try:
        peers = config.peers
    except ValueError as error:
        fail("dleger_peers", f"{error}; expected n0-host:port;n1-host:port")
        raise AssertionError("unreachable") from error
    if "enable_dleger_commit_log" not in places:
        for name in ("dleger_peers", "dleger_self_id", "dleger_group"):
            if name in places:
                fail(
                    name,
                    "is of a Raft group, and enableDLegerCommitLog is not set: true for a replica"
                    " of the group, false for a classic broker",
                )
    if config.enable_dleger_commit_log:
        ids = [peer.node_id for peer in peers]
        if not ids:
            fail("dleger_peers", "enableDLegerCommitLog needs the peers, e.g. n0-127.0.0.1:40911")
        if config.dleger_self_id not in ids:
            near = nearest(config.dleger_self_id, ids)
            fail("dleger_self_id", f"not among the peers {', '.join(ids)}{near}")
        if config.preferred_leader_id and config.preferred_leader_id not in ids:
            near = nearest(config.preferred_leader_id, ids)
            fail("preferred_leader_id", f"not among the peers {', '.join(ids)}{near}")
        if config.raft_join and len(ids) == 1:
            fail("raft_join", "dLegerPeers must name the group's members, too")
    try:
        assert config.inner_credentials is None or config.inner_credentials.access_key
    except ValueError as error:
        fail("inner_client_authentication_credentials", str(error))
    if config.grpc_port and not config.namesrv_addr:
        fail("grpc_port", "needs namesrvAddr: a proxy learns from name servers where topics are")
    if config.grpc_port and config.acl_enable and config.inner_credentials is None:
        fail("grpc_port", "with accounts it needs innerClientAuthenticationCredentials")
    if (wrong := config.wrong_tls()) is not None:
        fail(*wrong)
    if config.raft_tls_mode != OFF and config.is_classic:
        fail("raft_tls_mode", "there is no Raft group: enableDLegerCommitLog is not set")
    if config.peer_secret and config.peer_secret_file:
        fail("peer_secret_file", "peerSecret is set, too: one of them")
    if config.peer_secret and len(config.peer_secret.encode()) < SECRET_SIZE_BYTES_MIN:
        fail("peer_secret", f"must have at least {SECRET_SIZE_BYTES_MIN} bytes")
    try:
        parse_delay_levels(config.message_delay_level)
    except ValueError as error:
        fail("message_delay_level", str(error))
    if config.is_slave and config.broker_id == 0:
        fail("broker_id", "0 is the master's; a SLAVE needs a brokerId of its own, e.g. 1")
    if config.is_classic and not config.is_slave and config.broker_id != 0:
        fail("broker_id", f"a master's brokerId is 0, and brokerRole is {config.broker_role}")
    check_ports(OPTIONS, config, places, _listeners(config))
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


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the levels in ms, level 1 first. Raises ValueError with the reason."""
    levels: list[int] = []
    for part in text.split():
        found = _LEVEL.fullmatch(part)
        if found is None:
            raise ValueError(f"{part!r} is no time such as 10s, 5m, 2h or 1d")
        delay_ms = int(found[1]) * _UNITS_MS[found[2]]
        if delay_ms > DELAY_MS_MAX:
            raise ValueError(f"{part!r} is longer than a year")
        levels.append(delay_ms)
    if not 0 < len(levels) <= LEVELS_MAX:
        raise ValueError(f"these are {len(levels)} levels, there may be 1 to {LEVELS_MAX}")
    return tuple(levels)
