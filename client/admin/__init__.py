"""Administration of a cluster by `Admin`, with a component per kind of object."""

from .admin import Admin
from .brokers import BrokerAdmin
from .cluster import ClusterAdmin, ClusterInfo, headless, leaders_in
from .draining import drain_options, until_empty
from .groups import GroupAdmin
from .messages import TIME_MS_MAX, MessageAdmin
from .nameservers import NameServerAdmin
from .offsets import TO_END, OffsetAdmin
from .requests import Requests
from .topics import PERM_READ_WRITE, TopicAdmin

__all__ = [
    "PERM_READ_WRITE",
    "TIME_MS_MAX",
    "TO_END",
    "Admin",
    "BrokerAdmin",
    "ClusterAdmin",
    "ClusterInfo",
    "GroupAdmin",
    "MessageAdmin",
    "NameServerAdmin",
    "OffsetAdmin",
    "Requests",
    "TopicAdmin",
    "drain_options",
    "headless",
    "leaders_in",
    "until_empty",
]
