"""The replicated table of exactly-once writers (docs/exactly-once.md).

A writer has a name and writes to one topic. To each queue it writes numbered batches of numbered
requests. The number of the last stored request, the queue's *watermark*, is in the same frame as
the request's messages (command `wrote`), so a replica has both or neither. A leader thus recognizes
repeated requests.

A writer is opened with an *epoch* above all earlier ones. Requests of lower epochs are then
rejected, which fences the previous owner. A writer exists until it is deleted by name. The leader's
part is broker.send.exactly_once.

    {"op":"open_writer","topic":t,"writer":w,"epoch":e}
    {"op":"wrote","topic":t,"writer":w,"queue":q,"batch":b,"sequence":s}
    {"op":"delete_writer","topic":t,"writer":w}

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

NAME_LENGTH_MAX = 127  # characters of a writer's name
NUMBER_MAX = (1 << 53) - 1  # of epochs, batches and sequences; exact in any JSON reader
COMMANDS = ("open_writer", "wrote", "delete_writer")

WriterKey = tuple[str, str]  # topic, writer


class Watermark(NamedTuple):
    """The batch of the last request stored in a queue, and its index in the batch."""

    batch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Writer:
    """A writer. `stamp_ms` is the time of its last open or write; `watermarks` are by queue id."""

    epoch: int
    stamp_ms: int
    watermarks: Mapping[int, Watermark]


class WriterTable:
    def __init__(self) -> None:
        self.writers: dict[WriterKey, Writer] = {}
        self.applied_index = 0

    def apply(self, command: Mapping[str, Any], stamp_ms: int) -> None:
        """Apply a command. Raises KeyError, TypeError, ValueError."""
        key = str(command["topic"]), str(command["writer"])
        writer, op = self.writers.get(key), command["op"]
        if op == "open_writer":
            epoch = int(command["epoch"])
            if writer is None:
                self.writers[key] = Writer(epoch, stamp_ms, MappingProxyType({}))
            elif epoch > writer.epoch:
                self.writers[key] = replace(writer, epoch=epoch, stamp_ms=stamp_ms)
        elif op == "wrote":
            if writer is not None:
                mark = Watermark(int(command["batch"]), int(command["sequence"]))
                marks = MappingProxyType({**writer.watermarks, int(command["queue"]): mark})
                self.writers[key] = replace(writer, stamp_ms=stamp_ms, watermarks=marks)
        elif op == "delete_writer":
            self.writers.pop(key, None)
        else:
            raise ValueError(f"unknown op {op!r}")

    def own(self) -> None:
        """Copy the mutable parts shared with the original table."""
        self.writers = self.writers.copy()

    def to_json(self) -> dict[str, Any]:
        return {
            "writers": [
                [
                    *key,
                    writer.epoch,
                    writer.stamp_ms,
                    [[queue_id, *mark] for queue_id, mark in writer.watermarks.items()],
                ]
                for key, writer in self.writers.items()
            ],
        }

    def load(self, value: Mapping[str, Any], applied_index: int) -> None:
        loaded: dict[WriterKey, Writer] = {}
        for topic, name, epoch, stamp_ms, marks in value["writers"]:
            watermarks = {
                int(q): Watermark(int(batch), int(sequence)) for q, batch, sequence in marks
            }
            writer = Writer(int(epoch), int(stamp_ms), MappingProxyType(watermarks))
            loaded[str(topic), str(name)] = writer
        self.writers = loaded
        self.applied_index = applied_index


def open_writer(topic: str, writer: str, epoch: int) -> bytes:
    return orjson.dumps({"op": "open_writer", "topic": topic, "writer": writer, "epoch": epoch})


def wrote(key: WriterKey, queue_id: int, mark: Watermark) -> bytes:
    topic, writer = key
    command = {"op": "wrote", "topic": topic, "writer": writer, "queue": queue_id}
    return orjson.dumps(command | {"batch": mark.batch, "sequence": mark.sequence})


def delete_writer(topic: str, writer: str) -> bytes:
    return orjson.dumps({"op": "delete_writer", "topic": topic, "writer": writer})
