"""What an account must be permitted for a request, by request code. Pure.

Brokers, as Apache's plain access control has it where it looks at a request:

    10 310 320 361 11 12 34 35 36 37 38 14 15 41 42 29 30 31 32 222 223 307 309 314
        PUB or SUB on the topics and groups that they name; `_BROKER` below is the table. A group's
        retry topic is decided by what the account may do with the group, whoever sends there.
    17 25 27 50 51 53 54 200 207 215 306 316 323 329 908 30001 30002 30003
        need an admin: they change the broker, stop it from what it does, or hand out all it has
    33  names no topic, only a place in the log: SUB on topics that are not listed (or an admin)
    all others: an account whose signature is right

Name servers: what changes routes or configuration needs an admin (brokers register as one). What
only reads needs no account, as with Apache's, unless the name server is told otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from remoting.acl.accounts import RETRY_PREFIX, AclError, Permission
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.errors import BodyError
from remoting.fastjson import loads_object
from remoting.fields import text, text_or

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"  # every account may write its traces there
PUB, SUB, ANY = Permission.PUB, Permission.SUB, Permission.ANY


class Need(NamedTuple):
    """One permission. `name` is a topic's, or a group's if `is_group`; "" stands for topics that
    an account does not list."""

    is_group: bool
    name: str
    permission: Permission


Needs = Callable[[RemotingCommand], "list[Need] | None"]


def broker_needs(command: RemotingCommand) -> list[Need] | None:
    """What a broker's request takes besides a signature; None: an admin. Raises AclError for a
    request from which that cannot be told."""
    if command.code in BROKER_ADMIN:
        return None
    find = _BROKER.get(command.code)
    if find is None:
        return []
    try:
        return find(command)
    except AclError:
        raise
    except Exception as error:  # whatever is wrong with it: what cannot be judged is refused
        raise AclError(f"request {command.code} cannot be judged: {error}") from error


def name_server_needs(command: RemotingCommand) -> list[Need] | None:
    """The same of a name server; None: an admin."""
    return None if command.code in NAME_SERVER_ADMIN else []


def topic_need(topic: str, permission: Permission) -> Need:
    """Of a topic; a retry topic is its group's."""
    if topic.startswith(RETRY_PREFIX):
        return Need(True, topic[len(RETRY_PREFIX) :], SUB)
    return Need(False, topic, permission)


BROKER_ADMIN = frozenset(
    map(
        int,
        (
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            RequestCode.UPDATE_BROKER_CONFIG,
            RequestCode.TRIGGER_DELETE_FILES,
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
            RequestCode.DELETE_ACL_CONFIG,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
            RequestCode.DELETE_TOPIC_IN_BROKER,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
            RequestCode.CLEAN_UNUSED_TOPIC,
            RequestCode.RESUME_CHECK_HALF_MESSAGE,
            RequestCode.DELETE_EXPIRED_COMMITLOG,
            RequestCode.RESET_MASTER_FLUSH_OFFSET,
            RequestCode.TRANSFER_LEADERSHIP,
            RequestCode.CHANGE_MEMBERS,
            RequestCode.BACKUP,
        ),
    )
)

NAME_SERVER_ADMIN = frozenset(
    map(
        int,
        (
            RequestCode.REGISTER_BROKER,
            RequestCode.UNREGISTER_BROKER,
            RequestCode.QUERY_DATA_VERSION,
            RequestCode.BROKER_HEARTBEAT,
            RequestCode.PUT_KV_CONFIG,
            RequestCode.DELETE_KV_CONFIG,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER,
            RequestCode.ADD_WRITE_PERM_OF_BROKER,
            RequestCode.DELETE_TOPIC_IN_NAMESRV,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV,
            RequestCode.UPDATE_NAMESRV_CONFIG,
        ),
    )
)


def _send_v2(command: RemotingCommand) -> list[Need]:
    topic = text(command.ext, "b")
    return [] if topic == TRACE_TOPIC else [topic_need(topic, PUB)]


def _send_v1(command: RemotingCommand) -> list[Need]:
    topic = text(command.ext, "topic")
    return [] if topic == TRACE_TOPIC else [topic_need(topic, PUB)]


def _pull(command: RemotingCommand) -> list[Need]:
    group = Need(True, text(command.ext, "consumerGroup"), SUB)
    return [group, topic_need(text(command.ext, "topic"), SUB)]


def _topic(permission: Permission) -> Callable[[RemotingCommand], list[Need]]:
    return lambda command: [topic_need(text(command.ext, "topic"), permission)]


def _group(field: str) -> Callable[[RemotingCommand], list[Need]]:
    return lambda command: [Need(True, text(command.ext, field), SUB)]


def _group_if_named(command: RemotingCommand) -> list[Need]:
    group = text_or(command.ext, "consumerGroup")
    return [Need(True, group, SUB)] if group else []


def _group_and_topic(command: RemotingCommand) -> list[Need]:
    return [*_group("group")(command), *_topic(SUB)(command)]


def _clone(command: RemotingCommand) -> list[Need]:
    return [*_group("srcGroup")(command), *_group("destGroup")(command)]


def _end_transaction(command: RemotingCommand) -> list[Need]:
    """Only clients from 5.x on name the topic."""
    topic = text_or(command.ext, "topic")
    return [topic_need(topic, PUB)] if topic else []


def _heartbeat(command: RemotingCommand) -> list[Need]:
    """A producer's groups need nothing."""
    found: list[Need] = []
    for consumer in _objects(loads_object(command.body), "consumerDataSet"):
        found.append(Need(True, str(consumer.get("groupName") or ""), SUB))
        for subscription in _objects(consumer, "subscriptionDataSet"):
            found.append(topic_need(str(subscription.get("topic") or ""), SUB))
    return found


def _locks(command: RemotingCommand) -> list[Need]:
    body = loads_object(command.body)
    group = Need(True, str(body.get("consumerGroup") or ""), SUB)
    topics = {str(queue.get("topic") or "") for queue in _objects(body, "mqSet")}
    return [group, *(topic_need(topic, SUB) for topic in sorted(topics))]


def _objects(value: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    for one in value.get(key) or ():
        if not isinstance(one, dict):
            raise BodyError(f"{key} holds something else than objects")
        yield one


def _by_offset(_: RemotingCommand) -> list[Need]:
    return [Need(False, "", SUB)]


_BROKER: dict[int, Callable[[RemotingCommand], list[Need]]] = {
    int(code): find
    for code, find in {
        RequestCode.SEND_MESSAGE: _send_v1,
        RequestCode.SEND_MESSAGE_V2: _send_v2,
        RequestCode.SEND_BATCH_MESSAGE: _send_v2,
        RequestCode.PULL_MESSAGE: _pull,
        RequestCode.LITE_PULL_MESSAGE: _pull,
        RequestCode.QUERY_MESSAGE: _topic(SUB),
        RequestCode.VIEW_MESSAGE_BY_ID: _by_offset,
        RequestCode.QUERY_CONSUMER_OFFSET: _pull,
        RequestCode.UPDATE_CONSUMER_OFFSET: _pull,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _topic(ANY),
        RequestCode.GET_MAX_OFFSET: _topic(ANY),
        RequestCode.GET_MIN_OFFSET: _topic(ANY),
        RequestCode.GET_EARLIEST_MSG_STORETIME: _topic(ANY),
        RequestCode.HEART_BEAT: _heartbeat,
        RequestCode.UNREGISTER_CLIENT: _group_if_named,
        RequestCode.CONSUMER_SEND_MSG_BACK: _group("group"),
        RequestCode.END_TRANSACTION: _end_transaction,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: _group("consumerGroup"),
        RequestCode.LOCK_BATCH_MQ: _locks,
        RequestCode.UNLOCK_BATCH_MQ: _locks,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _group_and_topic,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _group_and_topic,
        RequestCode.GET_CONSUMER_RUNNING_INFO: _group("consumerGroup"),
        RequestCode.CONSUME_MESSAGE_DIRECTLY: _group("consumerGroup"),
        RequestCode.CLONE_GROUP_OFFSET: _clone,
    }.items()
}
