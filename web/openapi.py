"""The OpenAPI 3.1 document of a list of operations, and the page /docs that renders it."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from importlib import resources
from typing import Any

import msgspec

from .operation import JSON, Operation, Role
from .problem import MEDIA_TYPE
from .schema import Input, Nothing, ProblemView

VERSION = "3.1.0"
_TAG = '(W/)?"[!#-~]*"'
IF_MATCH_PATTERN = rf"^(\*|{_TAG}(, ?{_TAG})*)$"
DOCS_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)
# The page /docs, as path → (file, media type, encoding). The renderer in reference/ is vendored
# (package-lock.json, tools/vendor.sh) and needs inline styles.
DOCS_FILES = {
    "/docs": ("index.html", "text/html", None),
    "/docs/page.js": ("page.js", "text/javascript", None),
    "/docs/style.css": ("style.css", "text/css", None),
    "/docs/rapidoc.js": ("rapidoc.js.gz", "text/javascript", "gzip"),
}
_TEMPLATE = "#/components/schemas/{name}"


def document(title: str, version: str, operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the content of /api/v1/openapi.json for `operations`."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    kinds = [
        ProblemView,
        *(
            kind
            for operation in operations
            for kind in (operation.body_schema or operation.body, operation.answer)
            if kind is not None
        ),
    ]
    _, components = msgspec.json.schema_components(kinds, ref_template=_TEMPLATE)
    complete = {
        "openapi": VERSION,
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    result: dict[str, Any] = _for_generators(complete)
    return result


def _for_generators(value: Any) -> Any:
    """Adapt schemas to generators of clients. The siblings of every $ref move into an allOf with
    it, because readers of older JSON Schema versions ignore siblings of a $ref. Enumerations of
    texts get the type string."""
    if isinstance(value, list):
        return [_for_generators(part) for part in value]
    if not isinstance(value, dict):
        return value
    parts = {key: _for_generators(part) for key, part in value.items()}
    texts = parts.get("enum")
    if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        parts.setdefault("type", "string")
    if "$ref" in parts and len(parts) > 1:
        return {"allOf": [{"$ref": parts.pop("$ref")}, parts]}
    return parts


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            *_parameters(operation.parameters, "path"),
            *_parameters(operation.query, "query"),
            *(_conditions() if operation.conditional else ()),
        ],
        "responses": _responses(operation),
    }
    if operation.role is not None:
        described["security"] = [{"token": []}]
        described["description"] = f"Role: {Role(operation.role).name.lower()}."
    body = operation.body_schema or operation.body
    if body is not None:
        content = {JSON: {"schema": _schema(body)}}
        described["requestBody"] = {"required": _has_required(body), "content": content}
    return described


def _responses(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.answer is not None:
        content = {"content": {operation.media: {"schema": _schema(operation.answer)}}}
    elif operation.media != JSON:
        content = {"content": {operation.media: {"schema": {"type": "string"}}}}
    problem = {"content": {MEDIA_TYPE: {"schema": _schema(ProblemView)}}}
    responses = {
        str(status): {"description": HTTPStatus(status).phrase, **content}
        for status in (operation.status, *operation.also)
    }
    for status in sorted(_problem_statuses(operation)):
        responses[str(status)] = {"description": HTTPStatus(status).phrase, **problem}
    responses["default"] = {"description": "What went wrong.", **problem}
    return responses


def _problem_statuses(operation: Operation) -> set[int]:
    statuses = set(operation.problems)
    if operation.role is not None:
        statuses |= {401, 403}
    if operation.parameters is not Nothing or operation.query is not Nothing:
        statuses.add(422)
    if operation.body is not None:
        statuses |= {400, 413, 415, 422}
    if operation.conditional:
        statuses |= {412, 422, 428}
    return statuses


def _parameters(kind: type[Input], location: str) -> list[dict[str, Any]]:
    if kind is Nothing:
        return []
    _, components = msgspec.json.schema_components([kind], ref_template=_TEMPLATE)
    schema = components[kind.__name__]
    required = set(schema.get("required", ()))
    return [
        {
            "name": name,
            "in": location,
            "required": location == "path" or name in required,
            "schema": property_schema,
        }
        for name, property_schema in schema["properties"].items()
    ]


def _has_required(kind: Any) -> bool:
    _, components = msgspec.json.schema_components([kind], ref_template=_TEMPLATE)
    own = components.get(getattr(kind, "__name__", ""))
    return own is None or bool(own.get("required"))


def _conditions() -> list[dict[str, Any]]:
    tags = 'ETags that the resource may have ("…"), or * for any that exists.'
    return [
        {
            "name": "If-Match",
            "in": "header",
            "required": False,
            "description": tags,
            "schema": {"type": "string", "pattern": IF_MATCH_PATTERN},
        },
        {
            "name": "If-None-Match",
            "in": "header",
            "required": False,
            "description": "* creates the resource, and only creates it.",
            "schema": {"type": "string", "pattern": r"^\*$"},
        },
    ]


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_TEMPLATE)
    return dict(schema)


def docs_file(name: str) -> bytes:
    """Return the content of a file of the page /docs."""
    return resources.files("raftmq.web").joinpath("reference", name).read_bytes()
