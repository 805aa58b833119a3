"""What names and addresses may look like on the wire: one rule for brokers and name servers. Pure.

A broker makes no topic whose name breaks its rule. A name server takes registrations of Apache's
brokers, too, whose own topics are called after clusters and hosts: dots, colons and plus signs are
names there. Control characters, blanks and whatever else would make two lines of one in a log, or
two fields of one in a registration, are nowhere a name.
"""

from __future__ import annotations

import re

from raftmq.remoting.address import parse_address
from raftmq.remoting.errors import ConnectError

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
TOPIC_LENGTH_MAX = 127  # what clients check; retry and dead-letter topics may have 255
DERIVED_TOPIC_LENGTH_MAX = 255
NAME_LENGTH_MAX = 255  # of a broker or cluster; a host's name has no more
ADDRESS_LENGTH_MAX = 300  # a host's name, its port, brackets
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")
_NAME = re.compile(r"[%|a-zA-Z0-9_.+:@$-]+")
_HOST = re.compile(r"[a-zA-Z0-9_.:%-]+")


def topic_name_problem(name: str) -> str:
    """Why `name` is no topic name; '' when it is one."""
    if not name:
        return "the topic name is empty"
    derived = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    longest = DERIVED_TOPIC_LENGTH_MAX if derived else TOPIC_LENGTH_MAX
    if len(name) > longest:
        return f"the topic name is {len(name)} characters long, the longest is {longest}"
    if not _TOPIC.fullmatch(name):
        return f"the topic name {name!r} has characters outside [%|a-zA-Z0-9_-]"
    return ""


def name_problem(what: str, name: str) -> str:
    """Why `name` is none of a broker, a cluster, or a topic of whatever broker; `what` says which.
    '' when it is one."""
    if not name:
        return f"the {what} is empty"
    if len(name) > NAME_LENGTH_MAX:
        return f"the {what} is {len(name)} characters long, the longest is {NAME_LENGTH_MAX}"
    if not _NAME.fullmatch(name):
        return f"the {what} {name!r} has characters outside [%|a-zA-Z0-9_.+:@$-]"
    return ""


def address_problem(what: str, address: str) -> str:
    """Why `address` is no `host:port`; '' when it is one."""
    shown = f"the {what} {address[:ADDRESS_LENGTH_MAX]!r}"
    if len(address) > ADDRESS_LENGTH_MAX:
        return f"{shown} is {len(address)} characters long, the longest is {ADDRESS_LENGTH_MAX}"
    try:
        host, port = parse_address(address)
    except ConnectError:
        return f"{shown} is no host:port"
    if not _HOST.fullmatch(host) or address != address.strip():
        return f"{shown} is no host:port"
    return "" if port > 0 else f"{shown} has port 0"
