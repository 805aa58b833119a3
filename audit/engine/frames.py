"""The interface of an audit's engines, with queries of tables and work on parts of the stores."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from .columns import Column

Row = dict[str, Any]
Part = TypeVar("Part")
Made = TypeVar("Made")
Done = Callable[[int], None]
CORRUPT = "corrupt"  # the column of a line that is not JSON of the schema


def ignore(count: int) -> None:
    """Do nothing with a number of finished parts."""


class EngineFailed(Exception):
    """A query failed; the text is the cause, in a line."""


class Frame(Protocol):
    """A table that is evaluated when its rows are asked for. The methods are those of PySpark's
    DataFrame. Rows are sorted only by an `orderBy` at the end, before `limit`."""

    @property
    def columns(self) -> tuple[str, ...]: ...

    def where(self, condition: Column | str) -> Frame: ...

    def select(self, *columns: Column | str) -> Frame: ...

    def withColumn(self, name: str, value: Column) -> Frame: ...

    def withColumns(self, values: Mapping[str, Column]) -> Frame: ...

    def withColumnRenamed(self, name: str, new: str) -> Frame: ...

    def drop(self, *names: str) -> Frame: ...

    def distinct(self) -> Frame: ...

    def exploded(self, name: str, values: Column) -> Frame:
        """Return a row for each of the `values`, an array, as column `name`."""
        ...

    def numbered(self, name: str, at: str, value: str) -> Frame:
        """Return a row for each value of array `name`, with its index `at`, instead of the
        array."""
        ...

    def join(self, other: Frame, on: Sequence[str], how: str = "inner") -> Frame: ...

    def broadcast(self) -> Frame:
        """Return a small table, which is to be sent to all tasks of a join."""
        ...

    def groupBy(self, *columns: Column | str) -> Groups: ...

    def agg(self, *columns: Column) -> Frame: ...

    def unionByName(self, other: Frame) -> Frame: ...

    def orderBy(self, *names: str) -> Frame: ...

    def limit(self, count: int) -> Frame: ...

    def count(self) -> int:
        """Raises EngineFailed."""
        ...

    def collect(self) -> list[Row]:
        """Raises EngineFailed."""
        ...

    def rows(self) -> Iterator[Row]:
        """Yield the rows without holding all of them. Raises EngineFailed."""
        ...


class Groups(Protocol):
    def agg(self, *columns: Column) -> Frame: ...


class Engine(Protocol):
    """Evaluates frames; every method raises EngineFailed."""

    @property
    def name(self) -> str: ...

    def table(self, rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> Frame:
        """Return a small table of these rows."""
        ...

    def parquet(self, path: str, schema: pa.Schema | None = None) -> Frame:
        """Return the rows of a file or of the files in a directory. With a `schema`, a directory
        may be empty."""
        ...

    def lines(self, path: str, schema: pa.Schema) -> Frame:
        """Return a file of JSON lines. CORRUPT, the last field, has the text of a line that is no
        object, or has a value of another type; it is null elsewhere."""
        ...

    def staged(self, frame: Frame, directory: str) -> Frame:
        """Write the rows into a new directory, and return them from it."""
        ...

    def map_reduce(
        self,
        function: Callable[[Part], Made],
        parts: Sequence[Part],
        merge: Callable[[Made, Made], Made],
        empty: Made,
        done: Done = ignore,
    ) -> Made:
        """Apply a function to each part, and merge the results of neighbouring parts in their
        order, where they were made. So few results are together. `empty` is the result of no
        part. `done` is called with the number of finished parts, now and then."""
        ...

    def without_files(self) -> Engine:
        """Return an engine whose tasks share no directory, if this one has a cluster."""
        ...

    @property
    def has_files(self) -> bool:
        """False if tasks share no directory; then they must `read` what they would write."""
        ...

    def read(
        self,
        function: Callable[[Part], Iterator[Any]],
        parts: Sequence[Part],
        schema: pa.Schema,
        merge: Callable[[Made, Made], Made],
        empty: Made,
        done: Done = ignore,
    ) -> tuple[Frame, Made]:
        """Apply a function to each part that yields rows and then a result. Return the rows, kept
        where they were read, and the results, merged as by `map_reduce`. Results have the type of
        `empty`, as msgspec can encode it."""
        ...

    def sized_for(self, size_bytes: int) -> AbstractContextManager[None]:
        """Prepare for queries over logs of this size."""
        ...


def mapped(engine: Engine, function: Callable[[Part], Made], parts: Sequence[Part]) -> list[Made]:
    """Apply a function to each of a few parts, several at once; return the results in order."""
    return engine.map_reduce(lambda part: [function(part)], parts, operator.add, [])
