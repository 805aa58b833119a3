"""Administration of the name servers, all of which are asked, since they are independent."""

from __future__ import annotations

from collections.abc import Mapping

from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.registration_proof import ask_signer

from ..errors import NameServerUnreachable
from ..instance import ClientInstance, successful
from .bodies import properties
from .requests import at_each

TIMEOUT_MS = 3_000
ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
# Requests that change a signed broker's routes. Name servers accept them with a signature by the
# same key.
SIGNED_CODES = (RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER)


class NameServerAdmin:
    """Requests to every name server."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(sorted(self._instance.name_servers.addresses))

    async def ask(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b""
    ) -> dict[str, RemotingCommand]:
        """Send a request to every name server; return address → answer. Raises if any does not
        answer or returns an error; earlier name servers have executed the request then."""
        return {a: await self._answer(a, code, ext, body) for a in self.addresses}

    async def _change(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b""
    ) -> dict[str, RemotingCommand]:
        """Do as `ask` for a change; an error notes where it was made (`at_each`)."""
        return await at_each(self.addresses, lambda a: self._answer(a, code, ext, body))

    async def _answer(
        self, address: str, code: int, ext: Mapping[str, str] | None, body: bytes
    ) -> RemotingCommand:
        command = RemotingCommand.request(code, dict(ext) if ext else None, body)
        try:
            response = await self._ask_one(address, command)
        except RemotingError as error:
            raise NameServerUnreachable(f"name server {address}: {error}") from error
        return successful(response, address)

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set a key of a namespace (100)."""
        ext = {"namespace": namespace, "key": key, "value": value}
        await self._change(RequestCode.PUT_KV_CONFIG, ext)

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a key of a namespace (102)."""
        await self._change(RequestCode.DELETE_KV_CONFIG, {"namespace": namespace, "key": key})

    async def put_order(self, topic: str, counts: Mapping[str, int]) -> None:
        """Store the number of an order topic's queues by broker group, which its clients read."""
        value = ";".join(f"{name}:{count}" for name, count in sorted(counts.items()))
        await self.put_kv(ORDER_NAMESPACE, topic, value)

    async def delete_order(self, topic: str) -> None:
        """Delete the queues of an order topic."""
        await self.delete_kv(ORDER_NAMESPACE, topic)

    async def forget_topic(self, topic: str, cluster: str = "") -> None:
        """Delete a topic (216)."""
        ext = {"topic": topic} | ({"clusterName": cluster} if cluster else {})
        await self._change(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext)

    async def set_write_perm(self, broker_name: str, writable: bool) -> dict[str, int]:
        """Set whether routes offer a broker's queues for writing (205, 327). Returns the number of
        changed topics by name server."""
        code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
        name = "wipeTopicCount"
        if writable:
            code, name = RequestCode.ADD_WRITE_PERM_OF_BROKER, "addTopicCount"
        answers = await self._change(code, {"brokerName": broker_name})
        return {address: int((a.ext or {}).get(name, "0")) for address, a in answers.items()}

    async def configs(self) -> dict[str, dict[str, str]]:
        """Return each name server's configuration, by address (319)."""
        answers = await self.ask(RequestCode.GET_NAMESRV_CONFIG)
        return {a: properties(r.body.decode()) for a, r in answers.items()}

    async def update_configs(self, key: str, value: str) -> None:
        """Set a configuration key (318)."""
        await self._change(RequestCode.UPDATE_NAMESRV_CONFIG, body=f"{key}={value}\n".encode())

    async def _ask_one(self, address: str, command: RemotingCommand) -> RemotingCommand:
        """Send a request, signed if its code needs it and there is a key. Raises RemotingError."""
        remoting, key = self._instance.remoting, self._instance.config.registration_key
        if key and command.code in SIGNED_CODES:
            connection = await remoting.connect(address)
            signer = await ask_signer(connection, key, TIMEOUT_MS)
            if signer is not None:
                signer.sign(command)
            return await connection.invoke(command, TIMEOUT_MS)
        return await remoting.invoke(address, command, TIMEOUT_MS)
