"""HTTP operations on injected faults of this node's disk and clock.

A broker run by chaos.faults.faulty_broker has a `FaultDoor`. Faults injected here are healed here;
the harness's own faults are only listed.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal, Protocol

from msgspec import Meta, field

from raftmq.web.operation import Call, Operation, Reply, Role
from raftmq.web.problem import conflict, not_found
from raftmq.web.schema import Input, Listing, View

from ..context import Context


class FaultDoor(Protocol):
    """The fault layer of this process. Its calls block briefly, for small files under a lock."""

    def listed(self) -> list[dict[str, Any]]:
        """Return every active fault, {id, own, kind, …}; `own` faults were injected here."""
        ...

    def add(self, fault: dict[str, Any]) -> str:
        """Inject a fault; return its id. Raises ValueError at the limit."""
        ...

    def heal(self) -> int:
        """End all faults injected here; return their number."""
        ...


class FaultBody(Input, frozen=True, kw_only=True):
    """`clock` shifts the wall clock by `offsetMs`. Every further `kind` affects `calls` on files
    below the store with a path that matches `pattern`: error (EIO), full (ENOSPC), slow (`delayMs`
    more), stall (until healed), lie (a sync without effect), short (half a write, then EIO). `skip`
    calls pass first, then `times` are affected (0 for all)."""

    kind: Literal["error", "full", "slow", "stall", "lie", "short", "clock"]
    calls: Annotated[
        list[Literal["read", "write", "sync", "allocate"]], Meta(min_length=1, max_length=4)
    ] = field(default_factory=lambda: ["write", "sync"])
    pattern: Annotated[str, Meta(min_length=1, max_length=256)] = "*"
    skip: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    times: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    delay_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    offset_ms: Annotated[int, Meta(ge=-(10**13), le=10**13)] = 0


class FaultView(View, frozen=True, kw_only=True):
    id: str


class HealedView(View, frozen=True, kw_only=True):
    healed: int


class FaultOperations:
    def __init__(self, context: Context, door: FaultDoor | None) -> None:
        """`door` is None without the fault layer."""
        self._context = context
        self._door = door

    def operations(self) -> list[Operation]:
        path, admin = "/api/v1/faults", Role.ADMIN
        return [
            Operation("GET", path, "listFaults", "Faults in force on this node.", self.listed,
                      answer=Listing[dict[str, Any]], problems=(404,)),
            Operation("POST", path, "injectFault", "Make this node's disk or clock misbehave.",
                      self.add, role=admin, body=FaultBody, answer=FaultView, status=201,
                      problems=(404, 409)),
            Operation("DELETE", path, "healFaults", "End what was injected here.", self.heal,
                      role=admin, answer=HealedView, problems=(404,)),
        ]  # fmt: skip

    def _opened(self) -> FaultDoor:
        door = self._door
        if door is None:
            raise not_found(
                "faults need a broker that runs over the fault layer (mqcluster up --faultable)"
            )
        return door

    async def listed(self, _: Call) -> Listing[dict[str, Any]]:
        return Listing(items=await asyncio.to_thread(self._opened().listed))

    async def add(self, call: Call) -> Reply:
        body: FaultBody = call.body
        fault = {name: getattr(body, name) for name in body.__struct_fields__}
        try:
            name = await asyncio.to_thread(self._opened().add, fault)
        except ValueError as error:
            raise conflict(str(error)) from error
        detail = {"injected": name, "by": call.caller.name, "fault": fault}
        self._context.events.publish("fault", detail)
        return Reply(FaultView(id=name), status=201)

    async def heal(self, call: Call) -> HealedView:
        healed = await asyncio.to_thread(self._opened().heal)
        self._context.events.publish("fault", {"healed": healed, "by": call.caller.name})
        return HealedView(healed=healed)
