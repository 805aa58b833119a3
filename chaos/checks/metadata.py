"""The check for topics and groups that went back to an older version. Pure.

Each object carries a version that only its one writer raises. A read that was asked for after a
version was acknowledged, or read, must find that version or a later one; a version that nobody
wrote must never be found. A write of unknown outcome may count or not. Memory: one object each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raftmq.chaos.checks.prefix import PrefixMax
from raftmq.chaos.checks.verdict import Check, Handlers, Offenders
from raftmq.chaos.history.events import Kind, MetaRead, MetaWrite, Outcome


@dataclass(slots=True)
class _Object:
    floor: PrefixMax = field(default_factory=PrefixMax)
    written: int = 0  # highest version that anybody tried to write


class MetadataBack:
    """The check for topics and groups read back older than acknowledged, or never written."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str, str], _Object] = {}  # broker, what, name
        self._wrong = Offenders()
        self._reads = 0
        self._writes = 0

    def handlers(self) -> Handlers:
        return {
            Kind.META_INVOKED: self._invoked,
            Kind.META_DECIDED: self._decided,
            Kind.META_READ: self._read,
        }

    @property
    def applies(self) -> bool:
        return bool(self._objects)

    def result(self, name: str) -> Check:
        detail = f"{len(self._objects)} objects, {self._writes} acknowledged, {self._reads} read"
        return self._wrong.check(name, detail, min(self._reads, self._writes))

    def _object(self, event: MetaWrite | MetaRead) -> _Object:
        key = (event.broker, event.what, event.name)
        found = self._objects.get(key)
        if found is None:
            found = self._objects[key] = _Object()
        return found

    def _invoked(self, write: MetaWrite) -> None:
        found = self._object(write)
        found.written = max(found.written, write.version)

    def _decided(self, write: MetaWrite) -> None:
        if write.outcome is Outcome.OK:
            self._writes += 1
            self._object(write).floor.note(write.done_ns, write.version)

    def _read(self, read: MetaRead) -> None:
        if read.outcome is not Outcome.OK:
            return
        self._reads += 1
        found = self._object(read)
        floor = found.floor.before(read.invoked_ns)
        where = f"{read.broker}:" if read.broker else ""
        name = f"{read.what} {where}{read.name}"
        if floor is not None and (read.version is None or read.version < floor):
            seen = "is absent" if read.version is None else f"has version {read.version}"
            self._wrong.add(f"{name} {seen} after {floor} had been acknowledged or read")
        if read.version is None:
            return
        if read.version > found.written:
            self._wrong.add(f"{name} has version {read.version}, which nobody wrote")
        else:
            found.floor.note(read.done_ns, read.version)
