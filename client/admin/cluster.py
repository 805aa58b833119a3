"""The cluster in the view of the name servers, with routes, broker groups and leaders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fast_json import loads_object

from ..instance import ClientInstance, successful
from ..route import BrokerData, TopicRouteData, parse_broker


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Broker groups by name, and the group names of each cluster."""

    brokers: Mapping[str, BrokerData]
    clusters: Mapping[str, tuple[str, ...]]

    @property
    def leaders(self) -> dict[str, str]:
        """Broker name → leader's address, for every broker group with a leader."""
        return leaders_in(self.brokers)


class ClusterAdmin:
    """Queries about the cluster that any name server answers."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance

    async def route(self, topic: str) -> TopicRouteData:
        """Return the topic's route from a name server."""
        return await self._instance.directory.refresh(topic)

    async def info(self) -> ClusterInfo:
        """Return all broker groups with their replicas (106)."""
        body = await self._body(RequestCode.GET_BROKER_CLUSTER_INFO)
        brokers = {
            name: parse_broker({"brokerName": name, **data})
            for name, data in (body.get("brokerAddrTable") or {}).items()
        }
        clusters = {
            name: tuple(names) for name, names in (body.get("clusterAddrTable") or {}).items()
        }
        return ClusterInfo(brokers, clusters)

    async def topics(self) -> tuple[str, ...]:
        """Return every topic of a name server (206)."""
        body = await self._body(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return tuple(body.get("topicList") or ())

    async def groups_of(self, topic: str) -> Mapping[str, BrokerData]:
        """Return the topic's broker groups by broker name."""
        return {b.broker_name: b for b in (await self.route(topic)).brokers}

    async def leaders_of(self, topic: str) -> dict[str, str]:
        """Return broker name → leader's address, for the topic's broker groups with a leader;
        `headless` lists the rest."""
        return leaders_in(await self.groups_of(topic))

    async def leaders(self) -> dict[str, str]:
        """Return broker name → leader's address, for every broker group with a leader."""
        return (await self.info()).leaders

    async def _body(self, code: RequestCode) -> dict[str, Any]:
        response = await self._instance.name_servers.invoke(RemotingCommand.request(code, None))
        return loads_object(successful(response, "name server").body)


def leaders_in(groups: Mapping[str, BrokerData]) -> dict[str, str]:
    """Return broker name → leader's address, of the groups with a leader."""
    return {name: data.leader for name, data in sorted(groups.items()) if data.leader}


def headless(groups: Mapping[str, BrokerData]) -> tuple[str, ...]:
    """Return the names of the groups without a leader."""
    return tuple(name for name, data in sorted(groups.items()) if not data.leader)
