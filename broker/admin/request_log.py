"""The audited requests of RocketMQ's protocol (broker.admin.operator_log).

A deed has the name of the HTTP operation with the same effect, so that the same tag finds both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

from raftmq.ops.options import ConfigError
from raftmq.ops.settings import parse_properties
from raftmq.remoting.acl.signature import SIGNED_FIELDS
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Answer, Connection, Handler
from raftmq.remoting.errors import BodyError
from raftmq.remoting.fair_scheduling import StepTurns
from raftmq.remoting.fast_json import loads_request

from ..config import shown_changes
from .operator_log import (
    DETAIL_LENGTH_MAX,
    Deed,
    OperatorLog,
    detail_of,
    shortened,
)

VIA = "remoting"
TARGET_LENGTH_MAX = 512
SECRETS = ("secretKey",)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of changing request, and the fields of its record.

    `what` is the deed's name. `target` lists the fields, of the request or of the objects in its
    body, that name the changed object. `ops` maps the field `op` to deeds if a code has several;
    further values change nothing. `own` marks changes of this process alone, which must succeed
    even if the group cannot store."""

    what: str = ""
    target: tuple[str, ...] = ()
    own: bool = False
    ops: Mapping[str, str] | None = None

    def of(self, request: RemotingCommand) -> str:
        """Return the deed's name, or "" if this request changes nothing."""
        if self.ops is None:
            return self.what
        return self.ops.get((request.ext or {}).get("op", ""), "")


_MEMBERS = {
    "add-learner": "addMember",
    "promote": "promoteMember",
    "remove": "removeMember",
    "move": "moveMember",
    "prefer": "putPreferredLeader",
}
KINDS: dict[int, Kind] = {
    int(code): kind
    for code, kind in {
        RequestCode.UPDATE_AND_CREATE_TOPIC: Kind("putTopic", ("topic",)),
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: Kind("putTopic", ("topicName",)),
        RequestCode.DELETE_TOPIC_IN_BROKER: Kind("deleteTopic", ("topic",)),
        RequestCode.EMPTY_TOPIC: Kind("emptyTopic", ("topic",)),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Kind(
            "putSubscriptionGroup", ("groupName",)
        ),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Kind(
            "putSubscriptionGroup", ("groupName",)
        ),
        RequestCode.DELETE_SUBSCRIPTIONGROUP: Kind("deleteSubscriptionGroup", ("groupName",)),
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Kind("resetOffsets", ("group",)),
        RequestCode.CLONE_GROUP_OFFSET: Kind("cloneOffsets", ("srcGroup", "destGroup")),
        RequestCode.SET_MESSAGE_REQUEST_MODE: Kind("putConsumeMode", ("consumerGroup", "topic")),
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: Kind("putAccount", ("accessKey",)),
        RequestCode.DELETE_ACL_CONFIG: Kind("deleteAccount", ("accessKey",)),
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: Kind("putWhiteAddresses"),
        RequestCode.CHANGE_MEMBERS: Kind(target=("memberId",), ops=_MEMBERS),
        RequestCode.WRITERS: Kind(target=("topic", "writer"), ops={"delete": "deleteWriter"}),
        RequestCode.DRAIN_GROUP: Kind(
            target=("lose", "name"),
            ops={
                "start": "drainGroup",
                "cancel": "cancelDrain",
                "remove": "removeGroup",
                "forget": "forgetGroup",
            },
        ),
        RequestCode.UPDATE_BROKER_CONFIG: Kind("changeConfig", own=True),
        RequestCode.DELETE_EXPIRED_COMMITLOG: Kind("deleteExpiredLog", own=True),
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: Kind("cleanQueues", own=True),
        RequestCode.CLEAN_UNUSED_TOPIC: Kind("cleanQueues", own=True),
        RequestCode.TRANSFER_LEADERSHIP: Kind("transferLeadership", ("target",), own=True),
    }.items()
}


class _Refused(Exception):
    """Carries an answer other than SUCCESS past its record."""

    def __init__(self, answer: RemotingCommand) -> None:
        super().__init__(answer.remark or f"answered with code {answer.code}")
        self.answer = answer


class RequestRecord:
    """Wraps handlers. `who(connection)` returns the account or host of the sender."""

    def __init__(self, log: OperatorLog, who: Callable[[Connection], str]) -> None:
        self._log = log
        self._who = who
        self._turns = StepTurns()

    def around(self, code: int, handler: Handler) -> Handler:
        """Return the handler, wrapped in a recording handler if it changes something."""
        kind = KINDS.get(code)
        if kind is None:
            return handler

        async def answer(connection: Connection, request: RemotingCommand) -> RemotingCommand:
            result = handler(connection, request)
            if isinstance(result, Generator):
                result = self._turns.run(result)
            response = await result if inspect.isawaitable(result) else result
            assert response is not None, code  # all of these are answered
            if response.code != ResponseCode.SUCCESS:
                raise _Refused(response)
            return response

        async def recorded(
            deed: Deed, connection: Connection, request: RemotingCommand
        ) -> RemotingCommand:
            record = self._log.afterwards if kind.own else self._log.around
            try:
                return await record(deed, lambda: answer(connection, request))
            except _Refused as refused:
                return refused.answer

        def handle(connection: Connection, request: RemotingCommand) -> Answer:
            what = kind.of(request)
            if not what:
                return handler(connection, request)
            target = shortened(", ".join(_target(kind, request)), TARGET_LENGTH_MAX)
            return recorded(
                Deed(what, target, self._who(connection), VIA, _detail(request)),
                connection,
                request,
            )

        return handle


def _target(kind: Kind, request: RemotingCommand) -> list[str]:
    ext = request.ext or {}
    if targets := [ext[field] for field in kind.target if ext.get(field)]:
        return targets
    if not kind.target:
        return []
    try:
        body = loads_request(request.body)
    except BodyError:
        return []
    lists = [entries for entries in body.values() if isinstance(entries, list)]
    objects = [body, *(one for entries in lists for one in entries if isinstance(one, dict))]
    return [str(one[field]) for one in objects for field in kind.target if one.get(field)]


def _detail(request: RemotingCommand) -> str:
    ext = request.ext or {}
    value = {key: text for key, text in ext.items() if key not in SIGNED_FIELDS}
    if request.code == RequestCode.UPDATE_BROKER_CONFIG:
        value["body"] = _settings(request.body)
    elif request.body:
        value["body"] = request.body[:DETAIL_LENGTH_MAX].decode(errors="replace")
    return detail_of(value, SECRETS)


def _settings(body: bytes) -> str:
    """Return a properties text without secrets, or ""."""
    try:
        settings = parse_properties(body.decode(), "the request")
    except (ConfigError, UnicodeDecodeError):
        return ""
    changes = shown_changes({setting.key: setting.value for setting in settings})
    return "\n".join(f"{key}={value}" for key, value in changes.items())
