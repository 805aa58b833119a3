"""Writers: producers whose batches are stored exactly once, at any age (docs/exactly-once.md).

A writer has a name and writes to one topic. To each queue it writes numbered batches, each in one
or more requests, which are numbered too. The number of the last request that was stored, the
queue's *watermark*, goes into one frame with the request's messages (command `wrote`). So a replica
knows the watermark if and only if it has the messages, and whoever leads can tell a request that is
repeated from a new one.

A writer is opened with an *epoch*, higher than any before. From then on requests of lower epochs
are refused: whoever was the writer before has been fenced. A writer stays until it is deleted by
name. `WriterTable` is the table that every replica keeps; the leader's part is
`broker/send/exactly_once.py`. Pure.

    {"op":"open_writer","topic":t,"writer":w,"epoch":e}
    {"op":"wrote","topic":t,"writer":w,"queue":q,"batch":b,"sequence":s}
    {"op":"delete_writer","topic":t,"writer":w}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

NAME_LENGTH_MAX = 127  # characters of a writer's name
NUMBER_MAX = (1 << 53) - 1  # of epochs, batches and sequences: exact in any reader of JSON
COMMANDS = ("open_writer", "wrote", "delete_writer")

WriterKey = tuple[str, str]  # topic, writer


class Watermark(NamedTuple):
    """The last request stored in a queue: its batch, and its place in the batch, from 0."""

    batch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Writer:
    """A writer. `stamp_ms`: when it was opened or wrote last; `watermarks` by queue id."""

    epoch: int
    stamp_ms: int
    watermarks: Mapping[int, Watermark]


class WriterTable:
    """The writers by topic and name. `applied_index` is as in every table."""

    def __init__(self) -> None:
        self.writers: dict[WriterKey, Writer] = {}
        self.used = False  # the log has had commands for this table
        self.applied_index = 0

    def apply(self, command: Mapping[str, Any], stamp_ms: int) -> None:
        """Apply a command. Raises KeyError, TypeError, ValueError."""
        self.used = True
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
        """Stop sharing anything with the table this one was copied from."""
        self.writers = self.writers.copy()

    def to_json(self) -> dict[str, Any]:
        return {
            "used": self.used,
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
        """Load a snapshot; unchanged when that raises."""
        loaded: dict[WriterKey, Writer] = {}
        for topic, name, epoch, stamp_ms, marks in value["writers"]:
            watermarks = {
                int(q): Watermark(int(batch), int(sequence)) for q, batch, sequence in marks
            }
            found = Writer(int(epoch), int(stamp_ms), MappingProxyType(watermarks))
            loaded[str(topic), str(name)] = found
        self.used = bool(value["used"])
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
