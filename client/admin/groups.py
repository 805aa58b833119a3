"""Administration of consumer groups, their settings, progress and members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raftmq.remoting import fields
from raftmq.remoting.admin_headers import ConsumeDirectlyHeader, RunningInfoHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.fast_json import dumps, loads_object

from ..errors import BrokerRefused, NoRoute
from ..instance import successful
from ..message import RETRY_PREFIX
from .bodies import ConsumeStats, consume_stats, merged
from .cluster import ClusterAdmin, headless, leaders_in
from .requests import Requests

CLIENT_TIMEOUT_MS = 10_000  # of requests that a broker forwards to a client


class GroupAdmin:
    """Consumer groups of a broker; `stats` asks every broker of a topic."""

    def __init__(self, requests: Requests, cluster: ClusterAdmin) -> None:
        self._requests = requests
        self._cluster = cluster

    async def configs(self, address: str) -> dict[str, dict[str, Any]]:
        """Return Apache's SubscriptionGroupConfig beans by group name (201)."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return await self._requests.beans(address, code, "subscriptionGroupTable")

    async def put(self, address: str, bean: Mapping[str, Any]) -> None:
        """Create or change a subscription group (200)."""
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._requests.ask(address, code, None, dumps(dict(bean)))

    async def delete(self, address: str, group: str, *, offsets: bool = False) -> None:
        """Delete a subscription group (207), with `offsets` also its offsets."""
        requested = fields.from_boolean(offsets)
        ext = {"groupName": group, "cleanOffset": requested, "removeOffset": requested}
        await self._requests.ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)

    async def set_mode(
        self, address: str, group: str, topic: str, mode: str, *, share: int = 0
    ) -> None:
        """Set the mode (401), PULL or POP, of a topic for 5.x clients with allocation by the
        broker. With `share` > 0 a client shares its queues with this many neighbours; with 0 every
        client pops all queues."""
        body = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": share}
        code = RequestCode.SET_MESSAGE_REQUEST_MODE
        await self._requests.ask(address, code, None, dumps(body))

    async def stats(self, group: str, topic: str = "") -> ConsumeStats:
        """Return the group's progress (208) in `topic`, or in all topics, from the leaders of
        `topic` or of the group's retry topic. Raises BrokerRefused (26) for an unknown group."""
        try:
            groups = await self._cluster.groups_of(topic or RETRY_PREFIX + group)
        except NoRoute:
            if topic:
                raise
            groups = (await self._cluster.info()).brokers  # no retry topic, or no such group
        ext = {"consumerGroup": group} | ({"topic": topic} if topic else {})
        parts, unknown = [], None
        for address in leaders_in(groups).values():
            try:
                body = await self._requests.json(address, RequestCode.GET_CONSUME_STATS, ext)
            except BrokerRefused as error:
                if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                    raise
                unknown = error
            else:
                parts.append(consume_stats(body))
        if unknown is not None and not parts:
            raise unknown
        return merged(parts, headless(groups))

    async def consumers(self, group: str, address: str) -> tuple[str, ...]:
        """Return the client ids of a group on a broker (38)."""
        response = await self._requests.invoke(
            address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}
        )
        if response.code == ResponseCode.SYSTEM_ERROR:  # brokers answer thus without members
            return ()
        body = loads_object(successful(response, address).body)
        return tuple(str(item) for item in body.get("consumerIdList") or ())

    async def connection(self, address: str, group: str) -> dict[str, Any]:
        """Return Apache's ConsumerConnection bean (203). Raises BrokerRefused (206) if no consumer
        of the group is connected."""
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        return await self._requests.json(address, code, {"consumerGroup": group})

    async def running_info(
        self, address: str, group: str, client_id: str, *, stack: bool = False
    ) -> dict[str, Any]:
        """Return a consumer's running info (307), through a broker that it is connected to."""
        ext = RunningInfoHeader(group, client_id, stack).to_ext()
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        return await self._requests.json(address, code, ext, CLIENT_TIMEOUT_MS)

    async def consume_directly(
        self, address: str, group: str, client_id: str, msg_id: str, broker_name: str = ""
    ) -> dict[str, Any]:
        """Let a consumer consume a stored message (309). Returns Apache's
        ConsumeMessageDirectlyResult."""
        ext = ConsumeDirectlyHeader(group, client_id, msg_id, broker_name or None).to_ext()
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        return await self._requests.json(address, code, ext, CLIENT_TIMEOUT_MS)
