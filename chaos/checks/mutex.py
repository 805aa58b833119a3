"""Linearizability of queue locks, as the clients that ask for them see it. Pure.

A queue's lock has one owner or none. A request is granted if no other client owns the lock, and
rejected only if another client does. An unlock by the owner frees it. chaos.checks.locks judges the
work that consumers do under their locks.

A client relies on a lock for BELIEVED_NS from its request; brokers keep it for longer. After that
the owner may have lost it, so grants to other clients and rejections of the owner are legal. The
state before a history is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..history.deferred_events import LockRequested
from ..history.events import Kind, Outcome
from .linearizability import ANY, ILLEGAL, Operation
from .objects import Objects
from .verdict import Check, Handlers, queue_title

BELIEVED_NS = 31_000_000_000  # a response arrives within a second, and is valid for 30 s

FREE = ("", 0)  # a state, of the owner and the time of its request


@dataclass(frozen=True, slots=True)
class Grant:
    client: str
    requested_ns: int
    answered_ns: int | None


@dataclass(frozen=True, slots=True)
class Refusal:
    client: str
    answered_ns: int


@dataclass(frozen=True, slots=True)
class Release:
    client: str


def step(state: Any, action: Any) -> Any:
    """Return the lock's owner, and when that asked last, after a request."""
    if state is ANY:
        return (action.client, action.requested_ns) if isinstance(action, Grant) else ANY
    owner, requested_ns = state
    if isinstance(action, Release):
        return FREE if owner == action.client else state
    over = action.answered_ns is not None and action.answered_ns - requested_ns > BELIEVED_NS
    if isinstance(action, Grant):
        free = owner in ("", action.client) or over
        return (action.client, action.requested_ns) if free else ILLEGAL
    if owner not in ("", action.client):
        return state
    return ANY if owner and over else ILLEGAL


class LockRequests:
    def __init__(self) -> None:
        self._locks = Objects(step, _text, queue_title)
        self._started: dict[int, LockRequested] = {}  # by operation; no answer yet
        self._granted = 0
        self._refused = 0

    @property
    def applies(self) -> bool:
        return len(self._locks) > 0

    def handlers(self) -> Handlers:
        return {Kind.LOCK_REQUESTED: self._requested}

    def result(self, name: str) -> Check:
        detail = f"{len(self._locks)} locks, {self._granted} granted, {self._refused} refused"
        return self._locks.check(name, detail, min(self._granted, self._refused))

    def _requested(self, event: LockRequested) -> None:
        key = (event.group, event.broker, event.topic, event.queue)
        if event.outcome is Outcome.OPEN:
            self._started[event.op] = event
            action = (
                Release(event.process) if event.unlock else Grant(event.process, event.t_ns, None)
            )
            self._locks.start(key, event, event.t_ns, action)
        elif event.outcome is Outcome.FAIL:
            self._locks.withdraw(key, self._started.pop(event.op))
        elif event.outcome is Outcome.OK:
            self._answered(key, self._started.pop(event.op), event)

    def _answered(
        self, key: tuple[str, str, str, int], request: LockRequested, event: LockRequested
    ) -> None:
        action: Any = Release(event.process)
        if event.granted:
            action = Grant(event.process, request.t_ns, event.t_ns)
            self._granted += 1
        elif not event.unlock:
            action = Refusal(event.process, event.t_ns)
            self._refused += 1
        self._locks.end(key, request, event.t_ns, action)


def _text(one: Operation) -> str:
    action = one.action
    if isinstance(action, Release):
        return f"{action.client} gave it up"
    if isinstance(action, Refusal):
        return f"{action.client} was refused"
    return f"{action.client} {'asked' if action.answered_ns is None else 'was granted it'}"
