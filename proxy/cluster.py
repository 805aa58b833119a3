"""Routes, requests to leaders, and broker metadata, for the calls.

A request goes to its broker group's current leader up to the caller's deadline. Requests are
repeated after a timeout, so they must be idempotent; sends use the producer (send_message).
Metadata is requested from all broker groups of a topic if the first is silent, so a group without a
leader delays no consumer of the remaining groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from raftmq.client.errors import BrokerRefused, ClientError
from raftmq.client.instance import ClientInstance
from raftmq.client.retry import RetryPolicy
from raftmq.client.route import TopicRouteData
from raftmq.remoting.admin_headers import QueryMessageHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fast_json import loads_object
from raftmq.remoting.pop_headers import PopHeader
from raftmq.remoting.topic_attributes import MESSAGE_TYPE, NORMAL
from raftmq.store.record import MessageRecord, RecordError, decode_record, walk_records

from .access import Access
from .cache import AnswerCache, Spawn
from .caller import Caller
from .protocol.messaging_pb2 import Code
from .status_codes import StatusError, status_error_for, status_error_of

# Time limit of a request that brokers answer at once, whatever the caller's deadline. Afterwards
# the leader is looked up again.
ATTEMPT_MS = 1_000
REPLICA_MS = 3_000
MARGIN_S = 0.1  # of the caller's time, reserved for the answer
ANSWER_MS = 200  # of a receive's time, for the answer of a broker that has waited
# A pop's late answer is still accepted for this time, and its messages are returned
LATE_MS = 10_000
PATIENCE_S = 0.25  # for a silent broker group, before the topic's remaining groups are asked
ABSENT_S = 1.0  # for silent groups, after a group without the name answered
FOUND_MAX, EVER_MS = 32, (1 << 63) - 1  # messages per lookup by key, and its last time


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Client settings from a consumer group's configuration."""

    orderly: bool = False
    retry_times_max: int = 16


class Brokers:
    def __init__(self, instance: ClientInstance, access: Access, spawn: Spawn) -> None:
        self._instance = instance
        self._access = access
        self._types = AnswerCache(spawn, NORMAL)
        self._groups = AnswerCache(spawn, GroupSettings())

    async def route(self, caller: Caller, topic: str) -> TopicRouteData:
        """Return the topic's route. Raises StatusError."""
        known = self._instance.directory.route_if_known(topic)
        if known is not None:
            return known
        return await self._in_time(caller, topic, self._instance.directory.route)

    async def check_broker(self, caller: Caller, topic: str, broker_name: str) -> None:
        """Raise StatusError unless the topic's route has the broker group of a handle."""
        route = await self.route(caller, topic)
        if any(broker.broker_name == broker_name for broker in route.brokers):
            return
        route = await self._in_time(caller, topic, self._instance.directory.refresh)
        if not any(broker.broker_name == broker_name for broker in route.brokers):
            text = f"{topic} has no broker {broker_name[:100]}"
            raise StatusError(Code.INVALID_RECEIPT_HANDLE, text)

    async def _in_time(
        self, caller: Caller, topic: str, ask: Callable[[str], Awaitable[TopicRouteData]]
    ) -> TopicRouteData:
        try:
            async with asyncio.timeout_at(caller.deadline_s - MARGIN_S):
                return await ask(topic)
        except ClientError as error:
            raise status_error_of(error) from error
        except TimeoutError as error:
            raise StatusError(Code.PROXY_TIMEOUT, f"no route to {topic} in time") from error

    def addresses(self, topics: set[str]) -> tuple[str, ...]:
        """Return the known replicas of all broker groups of these topics."""
        directory = self._instance.directory
        result: dict[str, None] = {}
        for topic in topics:
            route = directory.route_if_known(topic)
            for broker in () if route is None else route.brokers:
                result.update(dict.fromkeys(directory.group(broker.broker_name).addresses))
        return tuple(result)

    def broker_at(self, topic: str, address: str) -> str | None:
        directory = self._instance.directory
        route = directory.route_if_known(topic)
        for broker in () if route is None else route.brokers:
            if address in directory.group(broker.broker_name).addresses:
                return broker.broker_name
        return None

    def permit(
        self, caller: Caller, code: RequestCode, ext: Mapping[str, str], body: bytes = b""
    ) -> None:
        """Raise StatusError unless the caller has the rights that a request needs."""
        self._access.permit(caller.account, RemotingCommand.request(code, dict(ext), body))

    async def ask(
        self,
        caller: Caller,
        broker_name: str,
        code: RequestCode,
        ext: Mapping[str, str],
        body: bytes = b"",
        *,
        unknown_again: bool = True,
    ) -> RemotingCommand:
        """Return the leader's answer, any code. Raises StatusError after the deadline."""
        self.permit(caller, code, ext, body)
        end_s = caller.deadline_s - MARGIN_S

        async def once() -> RemotingCommand:
            command = RemotingCommand.request(code, dict(ext), body)
            return await self._once(
                caller, broker_name, command, ATTEMPT_MS, unknown_again=unknown_again
            )

        return await self._repeated(broker_name, once, end_s, end_s)

    async def pop(self, caller: Caller, broker_name: str, header: PopHeader) -> RemotingCommand:
        """Return the leader's answer to a pop, whatever its code, up to LATE_MS after the deadline.

        A repeated pop waits only for the remaining time, because a longer wait would pop messages
        that nobody reads. A silent leader is abandoned after an election. Raises StatusError.
        """
        self.permit(caller, RequestCode.POP_MESSAGE, header.to_ext())
        loop = asyncio.get_running_loop()
        now, directory = loop.time, self._instance.directory
        group = directory.group(broker_name)
        end_s = caller.deadline_s - MARGIN_S - ANSWER_MS / 1000
        poll_end_s = min(now() + header.poll_ms / 1000, end_s)

        async def once() -> RemotingCommand:
            left_ms = max(0, round((poll_end_s - now()) * 1000))
            ext = header._replace(poll_ms=left_ms).to_ext()
            command = RemotingCommand.request(RequestCode.POP_MESSAGE, ext)
            # Further callers skip a frozen leader; this pop's messages may still arrive.
            patience_s = (left_ms + ATTEMPT_MS) / 1000
            silent = loop.call_later(patience_s, directory.doubt, group, group.target or "")
            try:
                return await self._once(
                    caller, broker_name, command, left_ms + LATE_MS, following=True
                )
            finally:
                silent.cancel()

        return await self._repeated(broker_name, once, end_s, caller.deadline_s + LATE_MS / 1000)

    async def _once(
        self,
        caller: Caller,
        broker_name: str,
        command: RemotingCommand,
        timeout_ms: int,
        *,
        following: bool = False,
        unknown_again: bool = True,
    ) -> RemotingCommand:
        command.language = caller.language
        response = await self._instance.ask_leader_once(
            broker_name, command, timeout_ms, following=following
        )
        refusal = BrokerRefused(response.code, response.remark or "", broker_name)
        if refusal.outcome_unknown and unknown_again:
            refusal.retriable = True
            raise refusal
        return response

    async def _repeated(
        self,
        broker_name: str,
        once: Callable[[], Awaitable[RemotingCommand]],
        end_s: float,
        limit_s: float,
    ) -> RemotingCommand:
        """Repeat `once` until `end_s` while retriable, at most to `limit_s`. Raises StatusError."""
        loop = asyncio.get_running_loop()
        refusal = StatusError(Code.PROXY_TIMEOUT, f"{broker_name} did not answer in time")
        try:
            async with asyncio.timeout_at(limit_s):
                try:
                    return await once()
                except ClientError as error:
                    if not error.retriable:
                        raise
                    refusal = status_error_of(error)
                left_ms = (end_s - loop.time()) * 1000
                if left_ms <= 0:
                    raise refusal
                policy = RetryPolicy(10, 100, 1.5, 10, time_ms_max=left_ms)
                async for attempt in policy.while_retriable():
                    with attempt:
                        return await once()
        except ClientError as error:
            raise status_error_of(error) from error
        except TimeoutError as error:
            raise refusal from error
        raise AssertionError("the retry loop returns or raises")

    async def stored_at(
        self, caller: Caller, broker_name: str, position: int
    ) -> MessageRecord | None:
        """Return the message at a position of a broker group's log, or None. The proxy reads it
        with its own rights, so the caller's rights must be checked. Raises StatusError."""
        if position < 0:
            return None
        fields = {"offset": str(position)}
        response = await self.ask(caller, broker_name, RequestCode.VIEW_MESSAGE_BY_ID, fields)
        if response.code == ResponseCode.SYSTEM_ERROR:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise status_error_for(response)
        try:
            return decode_record(response.body, check_body=False)
        except RecordError as error:
            raise StatusError(Code.INTERNAL_SERVER_ERROR, str(error)) from error

    async def stored_with(
        self, caller: Caller, broker_name: str, topic: str, unique_key: str
    ) -> list[MessageRecord]:
        """Return a broker group's messages with this UNIQ_KEY, oldest first. The proxy reads them
        with its own rights, so the caller's rights must be checked. Raises StatusError."""
        ext = QueryMessageHeader(topic, unique_key, FOUND_MAX, 0, EVER_MS, True).to_ext()
        own = replace(caller, account=None)
        response = await self.ask(own, broker_name, RequestCode.QUERY_MESSAGE, ext)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        if response.code != ResponseCode.SUCCESS:
            raise status_error_for(response)
        try:
            walk = walk_records(response.body, check_body=False)
            records = [decode_record(response.body, at, check_body=False) for at, _ in walk]
        except RecordError as error:
            raise StatusError(Code.INTERNAL_SERVER_ERROR, str(error)) from error
        return sorted(records, key=lambda record: record.physical_offset)

    async def send_once(self, caller: Caller, address: str, command: RemotingCommand) -> bool:
        """Send a replica a request, without retries; return whether the replica accepted it."""
        try:
            response = await self._instance.remoting.invoke(address, command, REPLICA_MS)
        except RemotingError:
            return False  # a dead replica, or the next heartbeat reaches it
        return response.code == ResponseCode.SUCCESS

    async def message_type(self, caller: Caller, topic: str, *, again: bool = False) -> str:
        """Return a topic's message type (remoting.topic_attributes); with `again` not the cached
        answer, unless the brokers are silent. Raises StatusError."""
        if again:
            self._types.expire(topic)
        code, ext = RequestCode.GET_TOPIC_CONFIG, {"topic": topic}
        self.permit(caller, code, ext)

        async def ask(caller: Caller) -> str | None:
            bean = await self._bean(caller, topic, "", code, ext)
            return None if bean is None else _type_of(bean)

        return await self._types.get(topic, caller, ask)

    async def group_settings(
        self, caller: Caller, topic: str, group: str, broker_name: str = ""
    ) -> GroupSettings:
        """Return a group's settings from a broker with the topic. Raises StatusError."""
        code, ext = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group}
        self.permit(caller, code, ext)

        async def ask(caller: Caller) -> GroupSettings | None:
            bean = await self._bean(caller, topic, broker_name, code, ext)
            return None if bean is None else _settings_of(bean)

        return await self._groups.get(group, caller, ask)

    async def _bean(
        self, caller: Caller, topic: str, first: str, code: RequestCode, ext: Mapping[str, str]
    ) -> dict[str, Any] | None:
        """Return the first available answer of the topic's broker groups, starting with `first`;
        None if the name is missing in all groups that answer. Raises StatusError if no group
        answers."""
        route = await self.route(caller, topic)
        names = sorted((item.broker_name for item in route.brokers), key=lambda name: name != first)
        loop = asyncio.get_running_loop()
        requests: list[asyncio.Task[dict[str, Any] | None]] = []
        open_asks: set[asyncio.Task[dict[str, Any] | None]] = set()
        refusal: StatusError | None = None
        absent = False
        try:
            for some, patience_s in ((names[:1], PATIENCE_S), (names[1:], None)):
                fresh = [loop.create_task(self._bean_of(caller, name, code, ext)) for name in some]
                requests += fresh
                open_asks.update(fresh)
                while open_asks:
                    done, open_asks = await asyncio.wait(
                        open_asks,
                        timeout=patience_s or (ABSENT_S if absent else None),
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    if not done:
                        break
                    for task in done:
                        try:
                            bean = task.result()
                        except StatusError as error:
                            refusal = refusal or error
                            continue
                        if bean is not None:
                            return bean
                        absent = True
        finally:
            for task in requests:
                task.cancel()
            await asyncio.gather(*requests, return_exceptions=True)
        if refusal is not None and not absent:
            raise refusal
        return None

    async def _bean_of(
        self, caller: Caller, broker_name: str, code: RequestCode, ext: Mapping[str, str]
    ) -> dict[str, Any] | None:
        """Return a broker group's answer, or None for a missing name. Raises StatusError."""
        response = await self.ask(caller, broker_name, code, ext)
        if response.code == ResponseCode.SUCCESS:
            try:
                return loads_object(response.body)
            except RemotingError as error:
                raise StatusError(Code.INTERNAL_SERVER_ERROR, str(error)) from error
        if response.code in (
            ResponseCode.TOPIC_NOT_EXIST,
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            ResponseCode.SYSTEM_ERROR,
        ):
            return None
        raise status_error_for(response)


def _type_of(bean: Mapping[str, Any]) -> str:
    attributes = bean.get("attributes")
    result = attributes.get(MESSAGE_TYPE) if isinstance(attributes, dict) else None
    return str(result or NORMAL)


def _settings_of(bean: Mapping[str, Any]) -> GroupSettings:
    try:
        times_max = int(bean.get("retryMaxTimes", 16))
    except (TypeError, ValueError):
        times_max = 16
    return GroupSettings(bean.get("consumeMessageOrderly") is True, max(0, times_max))
