"""Expressions over columns, which both engines evaluate.

The functions and methods have the names and the meaning of PySpark's, so a check is a PySpark
query. But an expression here is data: a name with arguments. So it needs neither a JVM nor a
session. `audit.engine.spark_engine` calls PySpark by these names, `audit.engine.local_engine`
writes them as SQL. A string is a column's name for a function, and a literal for a method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

METHOD = "."  # the first character of a method's name


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """The call of a function, or of a method of the first argument, by name."""

    name: str
    args: tuple[Any, ...]

    def _call(self, name: str, *args: Any) -> Column:
        return Column(METHOD + name, (self, *args))

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        return self._call("__eq__", other)

    def __ne__(self, other: object) -> Column:  # type: ignore[override]
        return self._call("__ne__", other)

    def __lt__(self, other: Any) -> Column:
        return self._call("__lt__", other)

    def __le__(self, other: Any) -> Column:
        return self._call("__le__", other)

    def __gt__(self, other: Any) -> Column:
        return self._call("__gt__", other)

    def __ge__(self, other: Any) -> Column:
        return self._call("__ge__", other)

    def __add__(self, other: Any) -> Column:
        return self._call("__add__", other)

    def __sub__(self, other: Any) -> Column:
        return self._call("__sub__", other)

    def __truediv__(self, other: Any) -> Column:
        return self._call("__truediv__", other)

    def __and__(self, other: Column) -> Column:
        return self._call("__and__", other)

    def __or__(self, other: Column) -> Column:
        return self._call("__or__", other)

    def __invert__(self) -> Column:
        return self._call("__invert__")

    def isNull(self) -> Column:
        return self._call("isNull")

    def isNotNull(self) -> Column:
        return self._call("isNotNull")

    def eqNullSafe(self, other: Any) -> Column:
        return self._call("eqNullSafe", other)

    def isin(self, *values: Any) -> Column:
        return self._call("isin", *values)

    def startswith(self, text: str) -> Column:
        return self._call("startswith", text)

    def rlike(self, pattern: str) -> Column:
        return self._call("rlike", pattern)

    def bitwiseAND(self, bits: int) -> Column:
        return self._call("bitwiseAND", bits)

    def cast(self, kind: str) -> Column:
        """Convert to `string`, `binary`, `int` or `long`."""
        return self._call("cast", kind)

    def alias(self, name: str) -> Column:
        return self._call("alias", name)

    def when(self, condition: Column, value: Any) -> Column:
        return self._call("when", condition, value)

    def otherwise(self, value: Any) -> Column:
        return self._call("otherwise", value)

    def over(self, window: WindowSpec) -> Column:
        return self._call("over", window)

    @property
    def output_name(self) -> str:
        """The name of the column that a query makes of this."""
        if self.name == ".alias":
            return str(self.args[1])
        assert self.name == "col", f"{self.name} needs an alias"
        return str(self.args[0]).rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """The rows with the same `partition`, sorted by `order`; all of them that come before the row
    if `before` is set."""

    partition: tuple[str, ...]
    order: tuple[str, ...] = ()
    before: bool = False

    def orderBy(self, *names: str) -> WindowSpec:
        return replace(self, order=names)

    def all_before(self) -> WindowSpec:
        return replace(self, before=True)


class Window:
    @staticmethod
    def partitionBy(*names: str) -> WindowSpec:
        return WindowSpec(names)


def column(value: Column | str) -> Column:
    return col(value) if isinstance(value, str) else value


def col(name: str) -> Column:
    """Return a column by its name, or a field of a struct as `column.field`."""
    return Column("col", (name,))


def lit(value: Any) -> Column:
    return Column("lit", (value,))


def when(condition: Column, value: Any) -> Column:
    return Column("when", (condition, value))


def split(text: Column | str, separator: str) -> Column:
    return Column("split", (column(text), separator))


def substring(text: Column, start: int, length: int) -> Column:
    return Column("substring", (text, start, length))


def conv(digits: Column, base: int, to_base: int) -> Column:
    return Column("conv", (digits, base, to_base))


def lag(value: Column | str, count: int = 1) -> Column:
    return Column("lag", (column(value), count))


def lead(value: Column | str, count: int = 1) -> Column:
    return Column("lead", (column(value), count))


def last_known(value: Column) -> Column:
    """Return the last value of a window that is not null."""
    return Column("last", (value, True))


def _function(name: str) -> Callable[..., Column]:
    def call(*args: Column | str) -> Column:
        return Column(name, tuple(map(column, args)))

    return call


array = _function("array")
array_contains = _function("array_contains")
array_distinct = _function("array_distinct")
array_intersect = _function("array_intersect")
arrays_overlap = _function("arrays_overlap")
coalesce = _function("coalesce")
collect_list = _function("collect_list")
collect_set = _function("collect_set")
concat = _function("concat")
count = _function("count")
count_distinct = _function("count_distinct")
count_if = _function("count_if")
first = _function("first")
floor = _function("floor")
get = _function("get")
greatest = _function("greatest")
least = _function("least")
length = _function("length")
max = _function("max")
max_by = _function("max_by")
min = _function("min")
row_number = _function("row_number")
size = _function("size")
sort_array = _function("sort_array")
struct = _function("struct")
sum = _function("sum")
unhex = _function("unhex")
xxhash64 = _function("xxhash64")
