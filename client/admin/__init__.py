"""Administration of a cluster: `Admin` and its parts, one for each kind of thing."""

from raftmq.client.admin.admin import Admin
from raftmq.client.admin.brokers import BrokerAdmin
from raftmq.client.admin.cluster import ClusterAdmin, ClusterInfo, headless, leaders_in
from raftmq.client.admin.groups import GroupAdmin
from raftmq.client.admin.messages import TIME_MS_MAX, MessageAdmin
from raftmq.client.admin.nameservers import NameServerAdmin
from raftmq.client.admin.offsets import TO_END, OffsetAdmin
from raftmq.client.admin.requests import Requests
from raftmq.client.admin.topics import PERM_READ_WRITE, TopicAdmin

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
    "headless",
    "leaders_in",
]
