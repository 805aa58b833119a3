"""Commits of consumer offsets, request by request."""

from __future__ import annotations

from typing import Any, cast

from raftmq.client.instance import ClientInstance
from raftmq.client.offsetstore import OffsetStore
from raftmq.remoting.command import RemotingCommand
from tests.client.fakes import queue


class Repeating:
    """Stands for a ClientInstance that has to ask three times before a leader answers."""

    async def invoke_leader(self, _: str, command: Any, **__: Any) -> RemotingCommand:
        for _number in range(3):
            command()
        return RemotingCommand(code=0)


async def test_each_request_of_a_commit_is_announced() -> None:
    """One that got no answer may still be carried out when a repeated one has been."""
    said: list[tuple[str, int]] = []
    store = OffsetStore(
        "g",
        cast(ClientInstance, Repeating()),
        on_commit=lambda _, offset: said.append(("commit", offset)),
        on_committing=lambda _, offset: said.append(("committing", offset)),
    )
    store.table.begin(queue(0), 0, told=True)
    store.table.advance(queue(0), 5)
    assert await store.commit_confirmed() == {queue(0): 5}
    assert said == [*[("committing", 5)] * 3, ("commit", 5)]
