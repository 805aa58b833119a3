"""A client for the part of a container engine's HTTP API that is needed; no docker program.

It supports `unix:///path` and `tcp://host:port` (without TLS), in DOCKER_HOST's format. Calls block
for some milliseconds. Paths have no API version, so the engine uses its own.
"""

from __future__ import annotations

import http.client
import socket
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import orjson

from .clusterfile import ClusterError

DEFAULT_HOST = "unix:///var/run/docker.sock"
TIMEOUT_S = 30.0
STREAM_HEADER_BYTES = 8  # of a chunk of a log, with stream, three zeros, and length (4)


class Docker:
    """A container engine. Methods raise ClusterError with the engine's message."""

    def __init__(self, host: str = "") -> None:
        self.host = host or DEFAULT_HOST

    def containers(self, label: str) -> list[dict[str, Any]]:
        filters = orjson.dumps({"label": [label]}).decode()
        result = self._json("GET", "/containers/json", all="1", filters=filters)
        return list(result)

    def inspect(self, container: str) -> dict[str, Any]:
        return dict(self._json("GET", f"/containers/{container}/json"))

    def start(self, container: str) -> None:
        self._call("POST", f"/containers/{container}/start")

    def kill(self, container: str, signal: str) -> None:
        self._call("POST", f"/containers/{container}/kill", signal=signal)

    def pause(self, container: str) -> None:
        self._call("POST", f"/containers/{container}/pause")

    def unpause(self, container: str) -> None:
        self._call("POST", f"/containers/{container}/unpause")

    def disconnect(self, network: str, container: str) -> None:
        body = {"Container": container, "Force": True}
        self._call("POST", f"/networks/{network}/disconnect", body)

    def connect(self, network: str, container: str, aliases: list[str]) -> None:
        body = {"Container": container, "EndpointConfig": {"Aliases": aliases}}
        self._call("POST", f"/networks/{network}/connect", body)

    def logs(self, container: str, since_s: int) -> bytes:
        """Return both streams of a container's log from that time on (seconds since 1970)."""
        query = {"stdout": "1", "stderr": "1", "since": str(since_s)}
        return unframed(self._call("GET", f"/containers/{container}/logs", **query))

    def _json(self, method: str, path: str, **query: str) -> Any:
        return orjson.loads(self._call(method, path, **query))

    def _call(self, method: str, path: str, body: Any = None, **query: str) -> bytes:
        target = quote(path) + (f"?{urlencode(query)}" if query else "")
        data = b"" if body is None else orjson.dumps(body)
        connection = _connection(self.host)
        try:
            connection.request(method, target, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ClusterError(f"no container engine answers at {self.host}: {error}") from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise ClusterError(f"{method} {path}: {answer.status} {_text(content)}")
        return content


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)


def _connection(host: str) -> http.client.HTTPConnection:
    parts = urlsplit(host)
    if parts.scheme == "unix":
        return _Unix(parts.path)
    if parts.scheme == "tcp" and parts.hostname:
        return http.client.HTTPConnection(parts.hostname, parts.port or 2375, timeout=TIMEOUT_S)
    raise ClusterError(f"a container engine at {host!r}? it must be unix://PATH or tcp://HOST:PORT")


def unframed(data: bytes) -> bytes:
    """Return a log's chunks without their headers; a torn last chunk as far as it goes."""
    pieces, at = [], 0
    while at + STREAM_HEADER_BYTES <= len(data):
        size = int.from_bytes(data[at + 4 : at + STREAM_HEADER_BYTES], "big")
        at += STREAM_HEADER_BYTES
        pieces.append(data[at : at + size])
        at += size
    return b"".join(pieces)


def _text(content: bytes) -> str:
    try:
        return str(orjson.loads(content)["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return content[:200].decode("utf-8", "replace")
