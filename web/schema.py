"""Base classes of requests and answers over HTTP, and the conversions to and from JSON.

`View` is the base of answers, `Input` of requests. Fields are camelCase in JSON. An input with an
unknown field is refused, so that a misspelt field is not silently replaced by a default. Limits are
part of the types (`Annotated[int, Meta(ge=1)]`), from which the OpenAPI document takes them. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import orjson
from msgspec import Meta

from raftmq.ops.strict_json import loads

from .problem import ApiProblem, invalid, malformed

INTEGER_MAX = (1 << 53) - 1  # every JSON reader represents integers up to this exactly

Count = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
TimeMs = Annotated[int, Meta(ge=0, le=INTEGER_MAX, description="Milliseconds since 1970 (UTC).")]

_LOCATION = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`")
_MISSING = re.compile(r"Object missing required field `(.*?)`")

T = TypeVar("T")


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of an operation's answer."""


class Page(View, Generic[T], frozen=True, kw_only=True):
    """A part of a list. `next` is the `cursor` of the next part, null at the end."""

    items: list[T]
    next: str | None


class Listing(View, Generic[T], frozen=True, kw_only=True):
    """A list that is never divided into pages."""

    items: list[T]
    next: None = None


class Input(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of an operation's input: a body, the query, or the path's parameters."""


class Nothing(Input, frozen=True):
    """No parameters."""


class ProblemView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """application/problem+json; some codes have further fields."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str


def from_texts(values: Mapping[str, str], kind: type[T]) -> T:
    """Convert query or path parameters. Raises ApiProblem."""
    try:
        return msgspec.convert(dict(values), kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(error) from error


def invalid_repeats(names: Sequence[str]) -> ApiProblem:
    """Make a problem for parameters that are given more than once."""
    return invalid([(name, "stands there more than once") for name in names])


def from_json(body: bytes, kind: type[T]) -> T:
    """Parse a body. Raises ApiProblem: 400 if it is not JSON, 422 if the JSON does not fit. 5.0 is
    an integer (JSON Schema, 6.1.1)."""
    try:
        return msgspec.convert(_without_refs(loads(body)), kind)
    except msgspec.ValidationError as error:
        raise _invalid(error) from error
    except orjson.JSONDecodeError as error:
        raise malformed(f"the body is not JSON: {error}") from error


def _without_refs(value: Any) -> Any:
    """Convert numbers without a fraction to integers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _without_refs(part) for key, part in value.items()}
    return [_without_refs(part) for part in value] if isinstance(value, list) else value


def to_json(value: Any) -> bytes:
    """Encode a View or a JSON value."""
    return orjson.dumps(value, msgspec.to_builtins, orjson.OPT_NON_STR_KEYS)


def _invalid(error: msgspec.ValidationError) -> ApiProblem:
    text = str(error)
    match = _LOCATION.search(text)
    field = match[1] if match else ""
    named = _UNKNOWN.search(text) or _MISSING.search(text)
    if named:
        field = f"{field}.{named[1]}" if field else named[1]
    return invalid([(field, _LOCATION.sub("", text))])
