"""The permissions that an account needs for a request, by request code.

`BROKER` and `NAME_SERVER` list every served code with its needs besides a valid signature:

    ADMIN         it changes the broker, keeps it from its work, or reads other users' data
    a function    the topics and groups that the request names, read or written; for a group's retry
                  topic the account's permission for the group decides, also for sends
    STORED        the request names an offset in the log: its handler, which reads the record there,
                  checks the permission for that record's topic (broker.access)
    NOTHING       it touches no user's data; the comment beside the code says why

A code in neither table needs an admin. Apache's brokers require less for some codes, listed in
docs/divergence.md.

On name servers, changes of routes or configuration need an admin (brokers register as an admin).
Reading needs no account by default, as with Apache's. Pure, without I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ..codes import RequestCode
from ..command import RemotingCommand
from ..errors import BodyError
from ..fast_json import loads_request
from ..fields import text, text_or
from ..headers import SendHeader
from ..names import TRACE_TOPIC, popped_topic
from ..pop_headers import batch_acks
from .accounts import RETRY_PREFIX, AclError, Permission

FORWARDED_FROM = "raftmqForwardedFrom"  # a reply that a broker forwards to a second broker
PUB, SUB, ANY = Permission.PUB, Permission.SUB, Permission.ANY


class Need(NamedTuple):
    """A needed permission for the topic `name`, or for the group if `is_group`."""

    is_group: bool
    name: str
    permission: Permission


Needs = Callable[[RemotingCommand], "list[Need] | None"]
Named = Callable[[RemotingCommand], list[Need]]  # the needs for the names in a request


def broker_needs(command: RemotingCommand) -> list[Need] | None:
    """Return the needs of a request to a broker besides a signature; None for an admin. Raises
    AclError if the request does not show them."""
    return _needs(BROKER, command)


def name_server_needs(command: RemotingCommand) -> list[Need] | None:
    """Return the needs of a request to a name server besides a signature; None for an admin."""
    return _needs(NAME_SERVER, command)


def topic_need(topic: str, permission: Permission) -> Need:
    """Return the need for a topic; for a retry topic, SUB on the group."""
    if topic.startswith(RETRY_PREFIX):
        return Need(True, topic[len(RETRY_PREFIX) :], SUB)
    return Need(False, topic, permission)


def _needs(table: Mapping[int, Needs | None], command: RemotingCommand) -> list[Need] | None:
    find = table.get(command.code)
    if find is None:
        return None
    try:
        return find(command)
    except AclError:
        raise
    except Exception as error:  # for any error, since a request must be understood to pass
        raise AclError(f"request {command.code} cannot be judged: {error}") from error


def _send_v2(command: RemotingCommand) -> list[Need]:
    topic = text(command.ext, "b")  # every account may write its traces
    return [] if topic == TRACE_TOPIC else [topic_need(topic, PUB)]


def _send_written(command: RemotingCommand) -> list[Need]:
    return [topic_need(text(command.ext, "b"), PUB)]  # traces have no writers


def _send_v1(command: RemotingCommand) -> list[Need]:
    topic = text(command.ext, "topic")
    return [] if topic == TRACE_TOPIC else [topic_need(topic, PUB)]


def _pull(command: RemotingCommand) -> list[Need]:
    group = Need(True, text(command.ext, "consumerGroup"), SUB)
    return [group, topic_need(text(command.ext, "topic"), SUB)]


def _pop(command: RemotingCommand) -> list[Need]:
    """Return the needs of a request about popped messages, of a retry topic perhaps."""
    return _popped(text(command.ext, "consumerGroup"), text(command.ext, "topic"))


def _popped(group: str, topic: str) -> list[Need]:
    return [Need(True, group, SUB), topic_need(popped_topic(topic, group), SUB)]


def _batch_ack(command: RemotingCommand) -> list[Need]:
    acks = batch_acks(loads_request(command.body))
    return [need for one in acks for need in _popped(one.consumer_group, one.topic)]


def _assignment(command: RemotingCommand) -> list[Need]:
    body = loads_request(command.body)
    return _popped(str(body.get("consumerGroup") or ""), str(body.get("topic") or ""))


def _topic(permission: Permission) -> Named:
    return lambda command: [topic_need(text(command.ext, "topic"), permission)]


def _group(field: str) -> Named:
    return lambda command: [Need(True, text(command.ext, field), SUB)]


def _group_if_named(command: RemotingCommand) -> list[Need]:
    group = text_or(command.ext, "consumerGroup")
    return [Need(True, group, SUB)] if group else []


def _topic_if_named(permission: Permission) -> Named:
    def find(command: RemotingCommand) -> list[Need]:
        topic = text_or(command.ext, "topic")
        return [topic_need(topic, permission)] if topic else []

    return find


def _all(*finders: Named) -> Named:
    return lambda command: [need for find in finders for need in find(command)]


def _reply(command: RemotingCommand) -> list[Need] | None:
    ext = command.ext or {}
    if FORWARDED_FROM in ext:
        return None  # only brokers forward replies, with their address
    return [topic_need(SendHeader.parse(ext, command.code).topic, PUB)]


def _heartbeat(command: RemotingCommand) -> list[Need]:
    """Return the needs of a heartbeat's consumer groups. Producer groups are checked when a message
    is sent to a producer (broker.access)."""
    needs: list[Need] = []
    for consumer in _objects(loads_request(command.body), "consumerDataSet"):
        needs.append(Need(True, str(consumer.get("groupName") or ""), SUB))
        for subscription in _objects(consumer, "subscriptionDataSet"):
            needs.append(topic_need(str(subscription.get("topic") or ""), SUB))
    return needs


def _client_config(command: RemotingCommand) -> list[Need]:
    """Return the needs of 46, which checks a filter expression."""
    body = loads_request(command.body)
    group, subscription = body.get("group"), body.get("subscriptionData")
    needs = [Need(True, str(group), SUB)] if group else []
    if isinstance(subscription, dict) and subscription.get("topic"):
        needs.append(topic_need(str(subscription["topic"]), SUB))
    return needs


def _locks(command: RemotingCommand) -> list[Need]:
    body = loads_request(command.body)
    group = Need(True, str(body.get("consumerGroup") or ""), SUB)
    topics = {str(queue.get("topic") or "") for queue in _objects(body, "mqSet")}
    return [group, *(topic_need(topic, SUB) for topic in sorted(topics))]


def _objects(value: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    for one in value.get(key) or ():
        if not isinstance(one, dict):
            raise BodyError(f"{key} holds something else than objects")
        yield one


def _nothing(_: RemotingCommand) -> list[Need]:
    return []


ADMIN: Needs | None = None
NOTHING: Needs = _nothing
STORED: Needs = _nothing
_CODE = RequestCode
_BOTH = _all(_group("group"), _topic(SUB))
_READ: Needs = _nothing  # of a name server, for routes that every client requests

BROKER: dict[int, Needs | None] = {
    int(code): find
    for code, find in {
        # clients
        _CODE.SEND_MESSAGE: _send_v1,
        _CODE.SEND_MESSAGE_V2: _send_v2,
        _CODE.SEND_BATCH_MESSAGE: _send_v2,
        _CODE.SEND_WRITER_BATCH: _send_written,
        _CODE.WRITERS: _topic(PUB),
        _CODE.SEND_REPLY_MESSAGE: _reply,
        _CODE.SEND_REPLY_MESSAGE_V2: _reply,
        _CODE.RECALL_MESSAGE: _topic(PUB),  # the handle has to name the same topic
        _CODE.END_TRANSACTION: _topic_if_named(PUB),  # and STORED, for the half message's topic
        _CODE.PULL_MESSAGE: _pull,
        _CODE.LITE_PULL_MESSAGE: _pull,
        _CODE.QUERY_CONSUMER_OFFSET: _pull,
        _CODE.UPDATE_CONSUMER_OFFSET: _pull,
        _CODE.POP_MESSAGE: _pop,
        _CODE.PEEK_MESSAGE: _pop,
        _CODE.NOTIFICATION: _pop,
        _CODE.POLLING_INFO: _pop,
        _CODE.ACK_MESSAGE: _pop,
        _CODE.BATCH_ACK_MESSAGE: _batch_ack,
        _CODE.CHANGE_MESSAGE_INVISIBLETIME: _pop,
        _CODE.QUERY_ASSIGNMENT: _assignment,
        _CODE.CONSUMER_SEND_MSG_BACK: _group("group"),  # and STORED
        _CODE.LOCK_BATCH_MQ: _locks,
        _CODE.UNLOCK_BATCH_MQ: _locks,
        _CODE.QUERY_MESSAGE: _topic(SUB),
        _CODE.VIEW_MESSAGE_BY_ID: STORED,
        _CODE.SEARCH_OFFSET_BY_TIMESTAMP: _topic(ANY),
        _CODE.GET_MAX_OFFSET: _topic(ANY),
        _CODE.GET_MIN_OFFSET: _topic(ANY),
        _CODE.GET_EARLIEST_MSG_STORETIME: _topic(ANY),
        _CODE.HEART_BEAT: _heartbeat,
        _CODE.UNREGISTER_CLIENT: _group_if_named,
        _CODE.GET_CONSUMER_LIST_BY_GROUP: _group("consumerGroup"),
        _CODE.CHECK_CLIENT_CONFIG: _client_config,
        # tools, for a single topic or group
        _CODE.GET_TOPIC_CONFIG: _topic(ANY),
        _CODE.GET_TOPIC_STATS_INFO: _topic(ANY),
        _CODE.QUERY_TOPIC_CONSUME_BY_WHO: _topic(ANY),
        _CODE.GET_CONSUMER_CONNECTION_LIST: _group("consumerGroup"),
        _CODE.GET_SUBSCRIPTIONGROUP_CONFIG: _group("group"),
        _CODE.GET_CONSUME_STATS: _all(_group("consumerGroup"), _topic_if_named(SUB)),
        _CODE.QUERY_CONSUME_TIME_SPAN: _BOTH,
        _CODE.QUERY_TOPICS_BY_CONSUMER: _group("group"),
        _CODE.QUERY_SUBSCRIPTION_BY_CONSUMER: _BOTH,
        _CODE.QUERY_CONSUME_QUEUE: _all(_topic(SUB), _group_if_named),
        _CODE.GET_CONSUMER_RUNNING_INFO: _group("consumerGroup"),
        _CODE.CONSUME_MESSAGE_DIRECTLY: _group("consumerGroup"),  # and STORED
        _CODE.INVOKE_BROKER_TO_RESET_OFFSET: _BOTH,
        _CODE.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _BOTH,
        # Without a topic it covers everything the first group has consumed; its handler checks each
        # topic.
        _CODE.CLONE_GROUP_OFFSET: _all(
            _group("srcGroup"), _group("destGroup"), _topic_if_named(SUB)
        ),
        # tools, for the whole broker
        _CODE.GET_BROKER_RUNTIME_INFO: NOTHING,  # figures and role, for health checks
        _CODE.GET_BROKER_CLUSTER_ACL_INFO: NOTHING,  # the accounts' version, a number and a time
        _CODE.GET_ALL_TOPIC_CONFIG: ADMIN,
        _CODE.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ADMIN,
        _CODE.GET_ALL_CONSUMER_OFFSET: ADMIN,
        _CODE.GET_ALL_DELAY_OFFSET: ADMIN,
        _CODE.GET_BROKER_CONSUME_STATS: ADMIN,
        _CODE.GET_PRODUCER_CONNECTION_LIST: ADMIN,
        _CODE.GET_ALL_PRODUCER_INFO: ADMIN,
        _CODE.GET_BROKER_CONFIG: ADMIN,
        _CODE.GET_BROKER_HA_STATUS: ADMIN,
        _CODE.VIEW_BROKER_STATS_DATA: ADMIN,
        _CODE.SET_MESSAGE_REQUEST_MODE: ADMIN,
        _CODE.GET_ALL_MESSAGE_REQUEST_MODE: ADMIN,
        _CODE.UPDATE_AND_CREATE_TOPIC: ADMIN,
        _CODE.UPDATE_AND_CREATE_TOPIC_LIST: ADMIN,
        _CODE.DELETE_TOPIC_IN_BROKER: ADMIN,
        _CODE.EMPTY_TOPIC: ADMIN,
        _CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ADMIN,
        _CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: ADMIN,
        _CODE.DELETE_SUBSCRIPTIONGROUP: ADMIN,
        _CODE.UPDATE_BROKER_CONFIG: ADMIN,
        _CODE.CLEAN_EXPIRED_CONSUMEQUEUE: ADMIN,
        _CODE.CLEAN_UNUSED_TOPIC: ADMIN,
        _CODE.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: ADMIN,
        _CODE.DELETE_EXPIRED_COMMITLOG: ADMIN,
        _CODE.UPDATE_AND_CREATE_ACL_CONFIG: ADMIN,
        _CODE.DELETE_ACL_CONFIG: ADMIN,
        _CODE.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: ADMIN,
        _CODE.GET_BROKER_CLUSTER_ACL_CONFIG: ADMIN,
        _CODE.TRANSFER_LEADERSHIP: ADMIN,
        _CODE.CHANGE_MEMBERS: ADMIN,
        _CODE.BACKUP: ADMIN,
        _CODE.GET_DEFINITIONS: ADMIN,
        _CODE.DRAIN_GROUP: ADMIN,
        _CODE.TAKE_MESSAGES: ADMIN,
    }.items()
}

NAME_SERVER: dict[int, Needs | None] = {
    int(code): find
    for code, find in {
        _CODE.GET_ROUTEINFO_BY_TOPIC: _READ,
        _CODE.GET_BROKER_CLUSTER_INFO: _READ,
        _CODE.GET_BROKER_MEMBER_GROUP: _READ,
        _CODE.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _READ,
        _CODE.GET_TOPICS_BY_CLUSTER: _READ,
        _CODE.GET_SYSTEM_TOPIC_LIST_FROM_NS: _READ,
        _CODE.GET_UNIT_TOPIC_LIST: _READ,
        _CODE.GET_HAS_UNIT_SUB_TOPIC_LIST: _READ,
        _CODE.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _READ,
        _CODE.GET_KV_CONFIG: _READ,  # producers request the order of a topic's queues
        _CODE.GET_KVLIST_BY_NAMESPACE: _READ,
        _CODE.REGISTRATION_NONCE: ADMIN,
        _CODE.REGISTER_BROKER: ADMIN,
        _CODE.UNREGISTER_BROKER: ADMIN,
        _CODE.QUERY_DATA_VERSION: ADMIN,
        _CODE.BROKER_HEARTBEAT: ADMIN,
        _CODE.PUT_KV_CONFIG: ADMIN,
        _CODE.DELETE_KV_CONFIG: ADMIN,
        _CODE.WIPE_WRITE_PERM_OF_BROKER: ADMIN,
        _CODE.ADD_WRITE_PERM_OF_BROKER: ADMIN,
        _CODE.DELETE_TOPIC_IN_NAMESRV: ADMIN,
        _CODE.REGISTER_TOPIC_IN_NAMESRV: ADMIN,
        _CODE.GET_NAMESRV_CONFIG: ADMIN,
        _CODE.UPDATE_NAMESRV_CONFIG: ADMIN,
    }.items()
}
NAME_SERVER_READS = frozenset(code for code, find in NAME_SERVER.items() if find is _READ)
