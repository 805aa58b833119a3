"""Requests of an administrator to an address, with errors for their refusals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fast_json import loads_object

from ..errors import BrokerUnreachable
from ..instance import ClientInstance, successful

Answer = TypeVar("Answer")


async def at_each(
    addresses: Iterable[str], change: Callable[[str], Awaitable[Answer]]
) -> dict[str, Answer]:
    """Make a change at each address in turn; return the answers by address. A failure's error notes
    where the change was made before."""
    answers: dict[str, Answer] = {}
    for address in addresses:
        try:
            answers[address] = await change(address)
        except Exception as error:
            if answers:
                error.add_note(f"already changed: {', '.join(answers)}")
            raise
    return answers


class Requests:
    """The requests of an admin client, with times in milliseconds."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance

    async def invoke(
        self,
        address: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_ms: int = 3000,
    ) -> RemotingCommand:
        """Send a request and return the response with any code. Raises BrokerUnreachable."""
        command = RemotingCommand.request(code, dict(ext) if ext else None, body)
        try:
            return await self._instance.remoting.invoke(address, command, timeout_ms)
        except RemotingError as error:
            raise BrokerUnreachable(f"{address}: {error}", error.outcome_unknown) from error

    async def ask(
        self,
        address: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_ms: int = 3000,
    ) -> RemotingCommand:
        """Do as `invoke`, but raise BrokerRefused for any answer except SUCCESS."""
        return successful(await self.invoke(address, code, ext, body, timeout_ms), address)

    async def json(
        self,
        address: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        timeout_ms: int = 3000,
    ) -> dict[str, Any]:
        """Do as `ask`, and return the JSON object in the answer's body. Raises BodyError."""
        return loads_object((await self.ask(address, code, ext, b"", timeout_ms)).body)

    async def beans(self, address: str, code: int, table: str) -> dict[str, dict[str, Any]]:
        """Return the beans by name under `table` in the answer's body."""
        beans = (await self.json(address, code)).get(table) or {}
        return {str(name): dict(bean) for name, bean in beans.items()}
