"""Chooses the engine of an audit, and starts it when it is needed.

Below LOCAL_BYTES_MAX of logs Spark's JVM alone costs more than all checks in this process. A
cluster or settings of Spark, or files that only Spark reaches, mean Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .frames import Engine
from .local_engine import CORES, NAME, LocalEngine, local_engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL, SPARK = NAME, "spark"
LOCAL_BYTES_MAX = 8 << 30  # of the logs of all replicas; some ten million records of 270 bytes


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """`engine` is LOCAL, SPARK or "" (by the size of the logs). `master`, a cluster, and `settings`
    are Spark's. `scratch` is a directory for the local engine's files."""

    engine: str = ""
    cores: int = CORES
    master: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    scratch: Path | None = None

    def check(self, *uris: str | None) -> None:
        """Raise ValueError if only Spark reaches one of the `uris`, or if there are options for
        Spark, and the local engine was named."""
        reason = self._needs_spark(*uris)
        if self.engine == LOCAL and reason:
            raise ValueError(f"{reason} needs Spark: leave --engine local out")

    def choose(self, size_bytes: int, *uris: str | None) -> str:
        if self.engine:
            return self.engine
        return SPARK if self._needs_spark(*uris) or size_bytes > LOCAL_BYTES_MAX else LOCAL

    def _needs_spark(self, *uris: str | None) -> str:
        given = {"--master": self.master, "--conf": self.settings}
        reasons = [name for name, value in given.items() if value]
        reasons += [uri for uri in uris if uri is not None and "://" in uri]
        return next(iter(reasons), "")


class Engines:
    """Starts each engine once, and ends it at the end of the block."""

    def __init__(
        self, options: EngineOptions | None = None, running: SparkSession | None = None
    ) -> None:
        self.options = options or EngineOptions()
        self._running = running
        self._local: LocalEngine | None = None
        self._spark: Engine | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def of(self, size_bytes: int, *uris: str | None) -> Engine:
        """Return the engine for logs of that size, and for files at these paths or URIs. Raises
        JavaNotFound, OSError."""
        if self._running is None and self.options.choose(size_bytes, *uris) == LOCAL:
            return self.local()
        return self.spark()

    def local(self) -> Engine:
        if self._local is None:
            started = local_engine(self.options.scratch, self.options.cores)
            self._local = self._stack.enter_context(started)
        return self._local

    def spark(self) -> Engine:
        if self._spark is None:
            # Imported here, because a local audit needs neither.
            from ..session import session
            from .spark_engine import SparkEngine

            running = self._running
            if running is None:
                given = self.options
                started = session(given.cores, given.master, given.settings)
                running = self._stack.enter_context(started)
            self._spark = SparkEngine(running)
        return self._spark
