"""Key-value configuration in namespaces (100, 101, 102, 219), with its file format.

The file is Apache's kvConfig.json, `{"configTable":{namespace:{key:value}}}`. Routes and
registrations quote the namespace ORDER_TOPIC_CONFIG, which lists the queues of ordered topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.errors import BodyError, RemotingError
from raftmq.remoting.fast_json import loads_object

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
SIZE_BYTES_MAX = 4 * 1024 * 1024  # of all namespaces, keys and values
VALUES_MAX = 100_000  # each needs memory besides its bytes
VALUE_BYTES_MAX = 64 * 1024  # the order configuration of some thousand broker groups


class KvConfigFull(RemotingError):
    """The value would exceed a limit of the table."""


class KvConfig:
    """The table of values. The process persists `encode()` in a file."""

    def __init__(self, size_bytes_max: int = SIZE_BYTES_MAX, values_max: int = VALUES_MAX) -> None:
        self._table: dict[str, dict[str, str]] = {}
        self._size_bytes_max = size_bytes_max
        self._size_bytes = 0
        self._values_max = values_max
        self._values = 0

    def copy(self) -> KvConfig:
        twin = KvConfig(self._size_bytes_max, self._values_max)
        twin._table = {namespace: dict(keys) for namespace, keys in self._table.items()}
        twin._size_bytes, twin._values = self._size_bytes, self._values
        return twin

    def put(self, namespace: str, key: str, value: str) -> None:
        """Store a value. Raises KvConfigFull."""
        old = self._table.get(namespace, {}).get(key)
        size_bytes = self._size_bytes + _size(namespace, key, value)
        values = self._values + 1
        if old is not None:
            size_bytes -= _size(namespace, key, old)
            values -= 1
        if size_bytes > self._size_bytes_max:
            raise _full(f"{self._size_bytes_max} bytes")
        if values > self._values_max:
            raise _full(f"{self._values_max} values")
        self._table.setdefault(namespace, {})[key] = value
        self._size_bytes, self._values = size_bytes, values

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        keys = self._table.get(namespace, {})
        value = keys.pop(key, None)
        if value is not None:
            self._size_bytes -= _size(namespace, key, value)
            self._values -= 1
        if not keys:
            self._table.pop(namespace, None)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        return self._table.get(namespace)

    def encode(self) -> bytes:
        return orjson.dumps({"configTable": self._table}, option=orjson.OPT_INDENT_2)

    @classmethod
    def decode(cls, data: bytes) -> KvConfig:
        """Decode the file. Raises BodyError, KvConfigFull."""
        config = cls()
        table: Any = loads_object(data).get("configTable") or {}
        if not isinstance(table, dict):
            raise BodyError("configTable is not an object")
        for namespace, keys in table.items():
            if not isinstance(keys, dict):
                raise BodyError(f"namespace {namespace!r} is not an object")
            for key, value in keys.items():
                config.put(namespace, key, str(value))
        return config


def _size(namespace: str, key: str, value: str) -> int:
    return len(namespace) + len(key) + len(value.encode())


def _full(limit: str) -> KvConfigFull:
    text = f"[TABLE_FULL] key-value configuration is limited to {limit}"
    return KvConfigFull(text, code=ResponseCode.SYSTEM_BUSY)
