"""Requests to the leaders of the other broker groups in this cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import orjson

from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import BodyError, RemotingError
from raftmq.remoting.fast_json import loads_object
from raftmq.remoting.recall_handle import RecallHandle
from raftmq.remoting.registration import GROUP_ID

from ..config import BrokerConfig
from ..tables.broker_group import Versions
from .definitions import Definitions, Entries, Mode, read_page

TIMEOUT_MS = 3_000
PAGES_MAX = 1_000  # a million topics or consumer groups
LEADER_ID = "0"
Addresses = dict[str, str]  # by brokerId
log = logging.getLogger("raftmq.broker.cluster")


class OtherGroups:
    """The other broker groups, according to the name servers. All methods raise RemotingError."""

    def __init__(self, config: BrokerConfig, client: RemotingClient) -> None:
        self._config = config
        self._client = client

    async def leaders(self) -> dict[str, str] | None:
        """Return broker name → leader's address, of the groups that have a leader. Return None if
        no name server answers."""
        listed = await self.listed()
        return None if listed is None else leaders_of(listed)

    async def listed(self) -> dict[str, Addresses] | None:
        """Return broker name → addresses by brokerId, of the groups that any name server lists.
        Return None if no name server answers."""
        servers = self._config.name_servers
        answers = await asyncio.gather(*(self._listed(server) for server in servers))
        listed = [answer for answer in answers if answer is not None]
        if servers and not listed:
            return None
        groups: dict[str, Addresses] = {}
        for answer in listed:
            for name, addresses in answer.items():
                groups[name] = groups.get(name, {}) | addresses
        return groups

    async def _listed(self, server: str) -> dict[str, Addresses] | None:
        """Return the groups that a name server lists, none if it refuses to, or None if it does
        not answer."""
        request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO, None)
        try:
            response = await self._client.invoke(server, request, TIMEOUT_MS)
        except RemotingError as error:
            log.info("cluster_not_listed namesrv=%s: %s", server, error)
            return None
        try:
            info = _object(response)
            names = (info.get("clusterAddrTable") or {}).get(self._config.broker_cluster_name) or ()
            brokers = info.get("brokerAddrTable") or {}
            return {
                name: {str(k): str(v) for k, v in brokers[name]["brokerAddrs"].items()}
                for name in names
                if name != self._config.broker_name and name in brokers
            }
        except (RemotingError, KeyError, TypeError, AttributeError) as error:
            log.info("cluster_not_listed namesrv=%s: %s", server, error)
            return {}

    async def definitions(
        self,
        name: str,
        address: str,
        since: Versions | None,
        *,
        accounts: bool = False,
        by_follower: bool = False,
    ) -> Definitions:
        """Return the definitions of a group, or their changes since `since`. A follower returns
        those that it has applied, `by_follower`. Apache's brokers return all of them, without times
        of creation."""
        result = Definitions(name)
        kinds: dict[str, tuple[Entries, str]] = {
            "topics": (result.topics, "topicName"),
            "groups": (result.groups, "groupName"),
        }
        known = (None, None) if since is None else (since[:2], since[2:])
        after: dict[str, str | None] = dict.fromkeys(kinds, "")
        for _ in range(PAGES_MAX):
            question = {
                kind: {"since": version, "after": after[kind]}
                for kind, version in zip(kinds, known, strict=True)
                if after[kind] is not None
            }
            body = orjson.dumps({**question, "accounts": accounts, "byFollower": by_follower})
            request = RemotingCommand.request(RequestCode.GET_DEFINITIONS, None, body)
            response = await self._client.invoke(address, request, TIMEOUT_MS)
            if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return await self._apaches(name, address)
            page = _object(response)
            if page.get("broker", name) != name:  # an address of this machine, in a container
                raise BodyError(f"{address} is {page['broker']!r}: brokerAddressMap")
            result.modes += _modes(page.get("modes") or ())
            result.readers |= _readers(page.get("readers") or {})
            result.accounts = page.get("accounts")
            result.removed = _names(page.get("removed") or {})
            for kind in question:
                entries, name_key = kinds[kind]
                after[kind] = read_page(entries, name_key, page.get(kind))
            if not any(after.values()):
                return result
        raise BodyError(f"{address} has more than {PAGES_MAX} pages of definitions")

    async def forget(self, address: str, group_id: str, name: str) -> None:
        """Have another group's leader record that a group was removed."""
        ext = {"op": "forget", "id": group_id, "name": name}
        request = RemotingCommand.request(RequestCode.DRAIN_GROUP, ext)
        _object(await self._client.invoke(address, request, TIMEOUT_MS))

    async def drain_status(self, address: str) -> dict[str, Any]:
        return await self._json(address, RequestCode.DRAIN_GROUP, {"op": "status"})

    async def open_writer(self, address: str, topic: str, writer: str) -> tuple[int, int]:
        """Open a writer at a new epoch; return the epoch and the last batch in queue 0, or 0."""
        ext = {"topic": topic, "writer": writer}
        listed = await self._json(address, RequestCode.WRITERS, {**ext, "op": "list"})
        try:
            epochs = [int(one["epoch"]) for one in listed["writers"] if one["writer"] == writer]
            epoch = max(epochs, default=0) + 1
            ext |= {"op": "open", "epoch": str(epoch)}
            (opened,) = (await self._json(address, RequestCode.WRITERS, ext))["writers"]
            batch, _ = opened["watermarks"].get("0", (0, 0))
            return epoch, int(batch)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BodyError(f"{address}: no writer: {error!r}") from error

    async def take(self, address: str, ext: Mapping[str, str], body: bytes) -> None:
        """Have another group's leader store moved messages (broker.delayed.moves)."""
        request = RemotingCommand.request(RequestCode.TAKE_MESSAGES, dict(ext), body)
        _succeed(await self._client.invoke(address, request, TIMEOUT_MS))

    async def recall(self, address: str, handle: RecallHandle, group: str) -> None:
        ext = {"topic": handle.topic, "producerGroup": group, "recallHandle": handle.encode()}
        request = RemotingCommand.request(RequestCode.RECALL_MESSAGE, ext)
        _succeed(await self._client.invoke(address, request, TIMEOUT_MS))

    async def _apaches(self, name: str, address: str) -> Definitions:
        """Ask a broker of Apache's for its topics (21), consumer groups (201) and modes (402)."""
        topics = await self._json(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        groups = await self._json(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        modes = await self._json(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        try:
            return Definitions(
                name,
                _apaches_entries(topics, "topicConfigTable"),
                _apaches_entries(groups, "subscriptionGroupTable"),
                modes=_modes(
                    (topic, group, one["mode"], one.get("popShareQueueNum", 0))
                    for topic, by_group in (modes.get("messageRequestModeMap") or {}).items()
                    for group, one in by_group.items()
                ),
                is_apaches=True,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BodyError(f"{address}: no definitions: {error!r}") from error

    async def _json(
        self, address: str, code: RequestCode, ext: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        request = RemotingCommand.request(code, dict(ext or {}))
        return _object(await self._client.invoke(address, request, TIMEOUT_MS))

    async def close(self) -> None:
        await self._client.close()


def leaders_of(listed: Mapping[str, Addresses]) -> dict[str, str]:
    """Return broker name → leader's address, of the listed groups that have a leader."""
    return {name: by_id[LEADER_ID] for name, by_id in listed.items() if LEADER_ID in by_id}


def _succeed(response: RemotingCommand) -> None:
    if response.code != ResponseCode.SUCCESS:
        raise RemotingError(response.remark or "no reason is given", code=response.code)


def _object(response: RemotingCommand) -> dict[str, Any]:
    _succeed(response)
    return loads_object(response.body)


def _apaches_entries(body: Mapping[str, Any], key: str) -> Entries:
    version = body["dataVersion"]
    beans = {str(name): (bean, 0) for name, bean in body[key].items()}
    return Entries((int(version["counter"]), int(version["timestamp"])), beans)


def _names(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(map(GROUP_ID.fullmatch, value)):
        raise BodyError("no ids of removed groups")
    return {group_id: str(name) for group_id, name in value.items()}


def _readers(value: Any) -> dict[str, list[str]]:
    try:
        return {str(topic): [str(group) for group in groups] for topic, groups in value.items()}
    except (AttributeError, TypeError) as error:
        raise BodyError(f"no readers: {error!r}") from error


def _modes(rows: Any) -> list[Mode]:
    try:
        return [Mode(str(t), str(g), str(mode), int(share)) for t, g, mode, share in rows]
    except (TypeError, ValueError) as error:
        raise BodyError(f"no modes: {error!r}") from error
