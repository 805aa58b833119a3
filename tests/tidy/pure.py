"""Modules without input and output whose docstrings do not mention it, by folder.

They must stay pure: bytes, messages and ticks in, decisions out.
"""

PURE_MODULES = {
    "mqadmin": "command commands durations message_format",
    "namesrv/http": "cluster_token differences directory event_cache failovers inputs "
    "merging node_roles seen topic_kinds tracing views",
    "namesrv": "kv routes views watchers",
    "proxy": "caller config endpoints message_conversion routes selection status_codes validation",
    "ops": "config_dump page",
    "spark": "offset_ranges pushdown rows sink_rows",
    "web": "openapi versions",
    "web/resources": "accounts basics consumers history messages node topics",
}
