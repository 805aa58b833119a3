"""The settings that a store's files depend on, named in a backup and used by a restore."""

from __future__ import annotations

from collections.abc import Mapping

from raftmq.ops.options import Setting
from raftmq.store.config import StoreConfig

from ..config import OPTIONS, BrokerConfig, build_config
from ..construction import store_config

KEYS = tuple(
    key
    for key in (
        "mappedFileSizeCommitLog",
        "mappedFileSizeConsumeQueue",
        "maxMessageSize",
        "messageDelayLevel",
    )
    if key in OPTIONS
)
# They complete a Raft replica's configuration, without effect on the store.
_ANY_REPLICA = {
    "enableDLegerCommitLog": "true",
    "dLegerPeers": "n0-127.0.0.1:1",
    "dLegerSelfId": "n0",
}


def settings_of(config: BrokerConfig) -> dict[str, str]:
    return {key: OPTIONS[key].text(getattr(config, OPTIONS[key].name)) for key in KEYS}


def store_config_of(settings: Mapping[str, str]) -> StoreConfig:
    """Return the store's configuration for these settings. Raises ConfigError."""
    values = {**_ANY_REPLICA, **settings}
    given = [Setting(key, value, "the backup") for key, value in values.items()]
    return store_config(build_config(given))


def notable(settings: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value
        for key, value in settings.items()
        if key not in OPTIONS or value != OPTIONS[key].text(OPTIONS[key].default)
    }
