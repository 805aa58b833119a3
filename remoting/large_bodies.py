"""Step-by-step decoding of large bodies from peers, zlib streams and JSON.

A body may decompress to a thousand times its size. It is decompressed twice, first in small chunks
that are only counted, up to the limit, then into memory of exactly the counted size. A rejected
body costs the memory of one chunk.

A JSON decoder holds the interpreter's lock until its end, so 16 MiB stop a loop for 200 ms, even
from a thread. `JsonWalk` decodes a value at a time, of at most VALUE_BYTES_MAX characters. Objects
in which it searches for names may have any size. Skipped values are not decoded; only their
brackets and strings are matched, so fastjson's number keys are accepted. An object with a duplicate
name is rejected, because readers would see different values. Pure, without I/O.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from typing import Any

from .errors import BodyError
from .fair_scheduling import Steps

# compressed; they decompress to at most a thousand times as much, in chunks of
STEP_BYTES = 16 * 1024
PIECE_BYTES = 256 * 1024


def inflating(packed: bytes, bytes_max: int, what: str) -> Steps[bytearray | None]:
    """Decompress a zlib stream; None above `bytes_max`. Raises BodyError with `what`."""
    size = 0
    for piece in _inflate(packed, what):
        size += len(piece)
        if size > bytes_max:
            return None
        yield
    content = bytearray(size)
    position = 0
    for piece in _inflate(packed, what):
        content[position : position + len(piece)] = piece
        position += len(piece)
        yield
    assert position == size, (position, size)
    return content


def _inflate(packed: bytes, what: str) -> Iterator[bytes]:
    """Decompress in chunks. Raises BodyError."""
    stream = zlib.decompressobj()
    view = memoryview(packed)
    try:
        for start in range(0, len(packed), STEP_BYTES):
            rest: bytes | memoryview = view[start : start + STEP_BYTES]
            while rest and not stream.eof:
                yield stream.decompress(rest, PIECE_BYTES)
                rest = stream.unconsumed_tail
        while not stream.eof and (piece := stream.decompress(b"", PIECE_BYTES)):
            yield piece
    except zlib.error as error:
        raise BodyError(f"the {what} is not a zlib stream: {error}") from error
    if not stream.eof:
        raise BodyError(f"the zlib stream of the {what} is cut short")


VALUE_BYTES_MAX = 64 * 1024
NAME_CHARS_MAX = 1024
USUAL_CHARS = 512  # most values are shorter; a longer value is read again
DEPTH_MAX = 64
SKIPPED_PER_STEP = 256  # brackets and strings
_CLOSING = {"{": "}", "[": "]"}
_SPACE = re.compile(r"[ \t\r\n]*+")
_TOKEN = re.compile(r'[^"{}\[\]]*+(?P<one>"(?:[^"\\]|\\.)*+"|[{}\[\]])', re.DOTALL)
_PLAIN = re.compile(r"[^,}\]]*+")  # a number or a word


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return fields


_read = json.JSONDecoder(object_pairs_hook=_object).raw_decode


class JsonWalk:
    """A position in a text, which only moves forward. Raises BodyError."""

    def __init__(self, data: bytes, what: str) -> None:
        """`what` describes the text in errors."""
        self._what = what
        self._at = 0
        # A character per byte, because names are ASCII and other text must not take four times the
        # memory.
        self._text = data.decode("latin-1")

    @property
    def position(self) -> int:
        return self._at

    def names(self) -> Iterator[str]:
        """Yield this object's names. The caller reads or skips each value in between."""
        self._take("{")
        if self._is_next("}"):
            self._at += 1
            return
        seen: set[str] = set()
        while True:
            if not self._is_next('"'):
                raise self._damaged("a name expected")
            try:
                name, length = _read(self._text[self._at : self._at + NAME_CHARS_MAX])
            except ValueError as error:
                raise self._damaged(f"no name of at most {NAME_CHARS_MAX} characters") from error
            self._at += length
            if name in seen:
                raise self._damaged(f"{name[:100]!r} occurs twice in one object")
            seen.add(name)
            self._take(":")
            yield name
            if self._is_next("}"):
                self._at += 1
                return
            self._take(",")

    def value(self) -> Any:
        start = self._skip_space()
        for size in (USUAL_CHARS, VALUE_BYTES_MAX):
            try:
                value, length = _read(self._text[start : start + size])
            except (ValueError, RecursionError) as error:
                problem = str(error)
                continue
            if length < size:  # otherwise a number might continue
                self._at = start + length
                return value
            problem = "it is too long"
        raise self._damaged(f"not a value of at most {VALUE_BYTES_MAX} characters: {problem}")

    def skipping(self) -> Steps[None]:
        """Skip the value at this position in steps; its components have limited sizes."""
        start = self._skip_space()
        closing: list[str] = []
        count = 0
        if self._text[start : start + 1] not in ('"', "{", "["):
            self._match(_PLAIN)
            return
        while True:
            token = self._match(_TOKEN)["one"]
            if token in _CLOSING:
                closing.append(_CLOSING[token])
                if len(closing) > DEPTH_MAX:
                    raise self._damaged(f"more than {DEPTH_MAX} values within each other")
            elif token in ("}", "]") and closing.pop() != token:
                raise self._damaged("its brackets do not match")
            if not closing:
                return
            count += 1
            if count % SKIPPED_PER_STEP == 0:
                yield

    def end(self) -> None:
        if self._skip_space() != len(self._text):
            raise self._damaged("something follows its end")

    def _skip_space(self) -> int:
        self._match(_SPACE)
        return self._at

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Move behind the match at this position, of at most VALUE_BYTES_MAX characters."""
        match = pattern.match(self._text, self._at, self._at + VALUE_BYTES_MAX)
        if match is None:
            raise self._damaged(f"no part of at most {VALUE_BYTES_MAX} characters")
        self._at = match.end()
        return match

    def _is_next(self, character: str) -> bool:
        start = self._skip_space()
        return self._text[start : start + 1] == character

    def _take(self, character: str) -> None:
        if not self._is_next(character):
            raise self._damaged(f"{character!r} expected")
        self._at += 1

    def _damaged(self, problem: str) -> BodyError:
        return BodyError(f"the {self._what} is not JSON: {problem} (at {self._at})")
