"""Parts of a broker that follow from its configuration alone."""

from __future__ import annotations

from raftmq.dledger.transport import inbound as incoming
from raftmq.dledger.transport import peer_auth as gate
from raftmq.ops.descriptors import Ports
from raftmq.ops.ports import http_port
from raftmq.remoting.codec import FRAME_SIZE_BYTES_MAX
from raftmq.remoting.process_tls import LINK_LIMITS
from raftmq.remoting.tls import TlsMode
from raftmq.store.commitlog.group_flusher import FlushMode
from raftmq.store.config import StoreConfig, StoreMode, hot_span_bytes
from raftmq.store.disk import DiskMark
from raftmq.store.frame import HEADER_SIZE_BYTES
from raftmq.store.index.index_limits import IndexLimits
from raftmq.store.record import BLANK_SIZE_BYTES
from raftmq.store.retention import RetentionPolicy
from raftmq.web.settings import WebSettings

from .config import BrokerConfig
from .messages.send_request import SendRules
from .replication.ha.master import SLAVES_MAX
from .tables.topics import (
    DEFAULT_TOPIC,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    TopicConfig,
)

# A percentage of disk use has an effect only if less than this is free, because ten percent of a
# large disk last for days. The mark at which sends are rejected has its own (broker.disk_space).
FILLING_FREE_BYTES = 64 << 30
CROWDED_FREE_BYTES = 24 << 30


def store_config(config: BrokerConfig) -> StoreConfig:
    return StoreConfig(
        mode=StoreMode.CLASSIC if config.is_classic else StoreMode.RAFT,
        hot_span_bytes=hot_span_bytes(config.access_message_in_memory_max_ratio / 100),
        segment_size_bytes=config.mapped_file_size_commit_log,
        entries_per_file=config.mapped_file_size_consume_queue // 20,
        index_enable=config.message_index_enable,
        index_limits=IndexLimits(config.max_hash_slot_num, config.max_index_num),
        cold_count_max=config.max_transfer_count_on_message_in_disk,
        delay_levels_ms=config.delay_levels_ms,
        cold_bytes_max=config.max_transfer_bytes_on_message_in_disk,
        zero_ahead=FlushMode(config.flush_disk_type) is FlushMode.SYNC,
    )


def retention_policy(config: BrokerConfig) -> RetentionPolicy:
    """Return the policy of the current settings, which may change while the broker runs."""
    return RetentionPolicy(
        reserved_hours=config.file_reserved_time,
        delete_when=frozenset(int(hour) for hour in config.delete_when.split(";")),
        filling=DiskMark(config.disk_max_used_space_ratio, FILLING_FREE_BYTES),
        crowded=DiskMark(config.disk_space_clean_forcibly_ratio, CROWDED_FREE_BYTES),
        forced=config.clean_file_forcibly_enable,
    )


def topics_of_names(config: BrokerConfig) -> list[TopicConfig]:
    """Return the topics named after the cluster and the broker group. Apache's tools find brokers
    by their routes, and measure a broker by sends to them."""
    perm = PERM_INHERIT | PERM_READ | PERM_WRITE
    return [
        TopicConfig(config.broker_cluster_name, perm=perm),
        TopicConfig(config.broker_name, 1, 1, perm),
    ]


def send_rules(config: BrokerConfig, store_host: bytes) -> SendRules:
    return SendRules(
        cluster=config.broker_cluster_name,
        trace_on=config.trace_on,
        store_host=store_host,
        message_size_max=config.max_message_size,
        record_bytes_max=min(
            FRAME_SIZE_BYTES_MAX,
            config.mapped_file_size_commit_log - HEADER_SIZE_BYTES - BLANK_SIZE_BYTES,
        ),
    )


def ports_of(config: BrokerConfig) -> Ports:
    """Return the ports besides the clients', for the shares of descriptors."""
    http = int(config.http_enable) * (2 if config.http_health_port else 1)
    tls = 0
    if config.tls_server_mode != TlsMode.DISABLED:
        tls += 2 if config.is_classic else 1  # for clients and for slaves
        tls += 1  # the VIP port
    if config.http_enable and config.http_tls_mode != TlsMode.DISABLED:
        tls += 1
    peers = gate.HANDSHAKING_MAX if config.peer_secret or config.peer_secret_file else 0
    if config.is_classic:
        peers += SLAVES_MAX
    else:
        peers += incoming.HANDSHAKING_MAX + incoming.STRANGERS_MAX
        peers += LINK_LIMITS.arriving_max * (config.raft_tls_mode != TlsMode.DISABLED)
    return Ports(http, tls, peers)


def template_topic(config: BrokerConfig) -> TopicConfig | None:
    """Return the template for topics created by sends, or None if sends create no topics."""
    if not config.auto_create_topic_enable:
        return None
    count = config.default_topic_queue_nums
    return TopicConfig(DEFAULT_TOPIC, count, count, config.broker_permission | PERM_INHERIT)


def web_settings(config: BrokerConfig, listen_port: int) -> WebSettings:
    """Return the web server's settings. `listen_port` is the bound port."""
    port = http_port(config.http_port, config.listen_port and listen_port)
    return WebSettings(
        enabled=config.http_enable,
        bind_address=config.http_bind_address,
        port=port,
        advertised=config.http_advertised_address,
        tokens_file=config.http_tokens_file,
        health_port=config.http_health_port,
    )
