"""A recorded session of a foreign client: what it sent to a broker, and every answer it was given.

A file is xz-compressed text, a JSON object a line. The first line is the head:

    {"client": "go", "wall_ms": 1795387200000, "port": 10911}

`wall_ms` is the time at which the session began, `port` the port under which the broker was known
to the client. Each other line is a step:

    {"do": "open", "of": 3}                       the client opens connection 3
    {"do": "frame", "of": 3, "frame": "..."}      sends a frame on it
    {"do": "close", "of": 3}                      closes it
    {"do": "clock", "at_ms": 1200}                1200 ms have passed since the session began

A step has `"answers": [[3, "..."], ...]` if the broker sent anything because of it: frames with
the connection's number, in order within a connection. Frames are whole, their length included, as
text in which a character is a byte (Latin-1), so that a reader can search the unpacked file.

The frames of a client are as it sent them, but for two numbers that it had from its broker: offsets
in the CommitLog (a message's place) and the opaque of a request that the broker made. record.py
put in those of the broker that the answers are of.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parents[2] / "fixtures" / "recorded"
CLIENTS = ("java43", "java49", "java53", "go", "node")

Answer = tuple[int, bytes]  # the connection's number, a frame


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a client did, or the passing of time; and what the broker sent after it."""

    do: str  # open, frame, close, clock
    of: int = 0  # the connection
    frame: bytes = b""
    at_ms: int = 0
    answers: tuple[Answer, ...] = ()

    def to_json(self) -> dict[str, Any]:
        made: dict[str, Any] = {"do": self.do}
        if self.do == "clock":
            made["at_ms"] = self.at_ms
        else:
            made["of"] = self.of
        if self.frame:
            made["frame"] = self.frame.decode("latin-1")
        if self.answers:
            made["answers"] = [[of, frame.decode("latin-1")] for of, frame in self.answers]
        return made

    @classmethod
    def from_json(cls, made: dict[str, Any]) -> Step:
        return cls(
            made["do"],
            made.get("of", 0),
            made.get("frame", "").encode("latin-1"),
            made.get("at_ms", 0),
            tuple((of, frame.encode("latin-1")) for of, frame in made.get("answers", ())),
        )


@dataclass(slots=True)
class Session:
    client: str
    wall_ms: int
    port: int
    steps: list[Step] = field(default_factory=list)

    def lines(self) -> Iterator[dict[str, Any]]:
        yield {"client": self.client, "wall_ms": self.wall_ms, "port": self.port}
        yield from (step.to_json() for step in self.steps)

    def save(self, path: Path) -> None:
        text = "".join(json.dumps(line) + "\n" for line in self.lines())
        path.write_bytes(lzma.compress(text.encode(), preset=9))

    @classmethod
    def load(cls, path: Path) -> Session:
        head, *rest = map(json.loads, lzma.decompress(path.read_bytes()).splitlines())
        return cls(**head, steps=[Step.from_json(line) for line in rest])


def path_of(client: str) -> Path:
    return DIRECTORY / f"{client}.frames.xz"
