"""Administration of topics, to create, change, delete and examine them."""

from __future__ import annotations

from typing import Any

from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.topic_attributes import MESSAGE_TYPE

from ..errors import BrokerUnreachable
from ..instance import ClientInstance, successful
from ..message import MessageQueue
from .bodies import TopicOffset, topic_offsets
from .cluster import ClusterAdmin
from .requests import Requests, at_each

PERM_READ_WRITE = 6


class TopicAdmin:
    """Topics of a cluster, or, by address, of a broker."""

    def __init__(self, instance: ClientInstance, requests: Requests, cluster: ClusterAdmin) -> None:
        self._instance = instance
        self._requests = requests
        self._cluster = cluster

    async def create(
        self,
        topic: str,
        queues: int = 8,
        *,
        write_queues: int | None = None,
        perm: int = PERM_READ_WRITE,
        broker_name: str | None = None,
        message_type: str = "",
    ) -> None:
        """Create or change the topic (17) on a broker group, or on all. `message_type` is the type
        of its messages (remoting.topic_attributes); "" leaves it unchanged."""
        names = [broker_name] if broker_name else list(await self._learn_groups())
        if not names:
            raise BrokerUnreachable("the name server knows no broker group")
        header = TopicHeader(
            topic,
            queues,
            queues if write_queues is None else write_queues,
            perm,
            attributes=f"+{MESSAGE_TYPE}={message_type}" if message_type else "",
        )
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        for name in names:
            response = await self._instance.invoke_leader(
                name, lambda: RemotingCommand.request(code, header.to_ext()), leader_only=True
            )
            successful(response, name)

    async def configs(self, address: str) -> dict[str, dict[str, Any]]:
        """Return Apache's TopicConfig beans by topic name (21)."""
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        return await self._requests.beans(address, code, "topicConfigTable")

    async def config(self, address: str, topic: str) -> dict[str, Any]:
        """Return the topic's TopicConfig bean (351)."""
        return await self._requests.json(address, RequestCode.GET_TOPIC_CONFIG, {"topic": topic})

    async def put(self, address: str, header: TopicHeader) -> None:
        """Create or change a topic on a broker (17)."""
        await self._requests.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())

    async def delete(self, address: str, topic: str) -> None:
        """Delete a topic on a broker (215); `name_server.forget_topic` covers name servers."""
        await self._requests.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})

    async def empty(self, address: str, topic: str) -> dict[str, Any]:
        """Delete a topic's messages and its groups' offsets on a broker (30008); return the number
        of `messages` and the `groups`."""
        return await self._requests.json(address, RequestCode.EMPTY_TOPIC, {"topic": topic})

    async def offsets(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the topic's offsets by queue (202), from all its brokers."""
        offsets: dict[MessageQueue, TopicOffset] = {}
        for address in (await self._cluster.leaders_of(topic)).values():
            offsets |= await self.offsets_at(address, topic)
        return offsets

    async def offsets_at(self, address: str, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the topic's offsets by queue (202) on a broker."""
        code = RequestCode.GET_TOPIC_STATS_INFO
        return topic_offsets(await self._requests.json(address, code, {"topic": topic}))

    async def writers(self, topic: str) -> list[dict[str, Any]]:
        """Return the topic's exactly-once writers (30006) in every broker group, each with
        "broker", "writer", "epoch", "lastTimeMs", "watermarks"."""
        writers = []
        ext = {"topic": topic, "op": "list"}
        for broker, address in sorted((await self._cluster.leaders_of(topic)).items()):
            body = await self._requests.json(address, RequestCode.WRITERS, dict(ext))
            writers += [{"broker": broker, **writer} for writer in body["writers"]]
        return writers

    async def delete_writer(self, topic: str, writer: str) -> None:
        """Delete a writer and its watermarks (30006) in every broker group of the topic."""
        ext = {"topic": topic, "op": "delete", "writer": writer}
        leaders = await self._cluster.leaders_of(topic)
        await at_each(
            leaders.values(),
            lambda address: self._requests.ask(address, RequestCode.WRITERS, dict(ext)),
        )

    async def groups(self, address: str, topic: str) -> tuple[str, ...]:
        """Return the groups that consume or consumed the topic (300)."""
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        body = await self._requests.json(address, code, {"topic": topic})
        return tuple(sorted(str(group) for group in body.get("groupList") or ()))

    async def _learn_groups(self) -> tuple[str, ...]:
        """Return the names of all broker groups, and add their replicas to the directory."""
        info = await self._cluster.info()
        for name, broker in info.brokers.items():
            self._instance.directory.learn(name, broker)
        return tuple(info.brokers)
