"""Modules without input and output whose docstrings do not mention it, by folder.

They must stay pure: bytes, messages and ticks in, decisions out.
"""

PURE_MODULES = {
    "dledger/node": "refusals",
    "dledger/raft": (
        "append_throttle clock config configuration core election election_timeout errors "
        "follower leader leader_placement log_index membership messages pace progress quorum "
        "raft_log read_index ready recovery repair snapshot_install term_and_vote tracker"
    ),
    "dledger/transport": "peer_info_message wire",
    "mqadmin": "command commands durations message_format",
    "namesrv/http": "cluster_token differences directory failovers inputs "
    "merging seen tracing views",
    "namesrv": "kv routes views watchers",
    "proxy": "caller config endpoints message_conversion routes status_codes validation",
    "ops": "config_dump page",
    "spark": "offset_ranges pushdown rows sink_rows",
    "web": "openapi versions",
    "web/resources": "accounts basics consumers history messages node topics",
}
