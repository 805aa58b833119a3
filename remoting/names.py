"""Rules for names and addresses on the wire, for brokers and name servers.

A broker does not create a topic with an invalid name. A name server also accepts registrations of
Apache's brokers, with topics named after clusters and hosts, so it allows dots, colons and plus
signs. Control characters, blanks and other separators of log lines or registration fields are never
allowed. Pure, without I/O.
"""

from __future__ import annotations

import re

from .address import format_address, parse_address, parse_address_list
from .errors import ConnectError

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
DEFAULT_TOPIC = "TBW102"  # the template of auto-created topics
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"  # clients' traces of messages
OPERATOR_LOG_TOPIC = "RAFTMQ_SYS_OPERATOR_LOG"  # operators' actions (broker.admin.operator_log)
# Topics that clients may not send to.
NO_SEND_TOPICS = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        OPERATOR_LOG_TOPIC,
    }
)
SYSTEM_TOPICS = NO_SEND_TOPICS | {DEFAULT_TOPIC, "BenchmarkTest", TRACE_TOPIC}
# Prefixes of topics and consumer groups that brokers create for themselves.
BROKERS_OWN_PREFIXES = (
    RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_", "RMQ_SYS_", "RAFTMQ_SYS_", "CID_RMQ_SYS_", "CID_ONS",
)  # fmt: skip
REPLY_SUFFIX = "_REPLY_TOPIC"
TOPIC_LENGTH_MAX = 127  # as in clients; retry and dead-letter topics may have 255
DERIVED_TOPIC_LENGTH_MAX = 255
NAME_LENGTH_MAX = 255  # of a broker, cluster or client; host names are not longer
ADDRESS_LENGTH_MAX = 300  # a host name, its port, brackets
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")
_NAME = re.compile(r"[%|a-zA-Z0-9_.+:@$-]+")
_HOST = re.compile(r"[a-zA-Z0-9_.:%-]+")


def pop_retry_topic(topic: str, group: str) -> str:
    """Return the topic for redeliveries of messages that a group popped from `topic` without
    acknowledgement. A retry topic is its own."""
    return topic if topic.startswith(RETRY_PREFIX) else f"{RETRY_PREFIX}{group}_{topic}"


def popped_topic(topic: str, group: str) -> str:
    """Return the topic of a group's pop retry topic; otherwise the topic itself."""
    return topic.removeprefix(f"{RETRY_PREFIX}{group}_")


def is_brokers_own(name: str) -> bool:
    """Return whether brokers create the topic or consumer group themselves."""
    own = name in SYSTEM_TOPICS or name.endswith(REPLY_SUFFIX)
    return own or name.startswith(BROKERS_OWN_PREFIXES)


def topic_name_problem(name: str) -> str:
    """Return why `name` is not a valid topic name, or ''."""
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
    """Return why `name` is not a valid name of a broker, a cluster, or any broker's topic
    (described by `what`), or ''."""
    if not name:
        return f"the {what} is empty"
    if len(name) > NAME_LENGTH_MAX:
        return f"the {what} is {len(name)} characters long, the longest is {NAME_LENGTH_MAX}"
    if not _NAME.fullmatch(name):
        return f"the {what} {name!r} has characters outside [%|a-zA-Z0-9_.+:@$-]"
    return ""


def address_problem(what: str, address: str) -> str:
    """Return why `address` is not a valid `host:port`, or ''."""
    shown = f"the {what} {address[:ADDRESS_LENGTH_MAX]!r}"
    if len(address) > ADDRESS_LENGTH_MAX:
        return f"{shown} is {len(address)} characters long, the longest is {ADDRESS_LENGTH_MAX}"
    try:
        host, port = parse_address(address)
        host.encode("idna")  # as the resolver does
    except (ConnectError, UnicodeError):
        return f"{shown} is no host:port"
    if not _HOST.fullmatch(host) or address != address.strip():
        return f"{shown} is no host:port"
    return "" if port > 0 else f"{shown} has port 0"


def address_map(text: str) -> dict[str, str]:
    """Parse `advertised=reachable;…` (brokerAddressMap) into a table. Raises ValueError."""
    result: dict[str, str] = {}
    for entry in parse_address_list(text):
        advertised, equals, reachable = (part.strip() for part in entry.partition("="))
        if not equals:
            raise ValueError(f"not of the form advertised=reachable: {entry}")
        for address in (advertised, reachable):
            if problem := address_problem("address", address):
                raise ValueError(problem)
        result[format_address(*parse_address(advertised))] = reachable
    return result
