"""Evaluates the queries of an audit in this process, with DuckDB and without a JVM.

A frame is a text of SQL. Staged tables are Parquet files. Sorts and joins use at most MEMORY, and
spill into the engine's directory beyond it. Parts of the stores are decoded in threads.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq

from .columns import Column, WindowSpec, col, column
from .frames import CORRUPT, Done, EngineFailed, Frame, Made, Part, Row, ignore

NAME = "local"
CORES = 2
MEMORY = "384MiB"
ROWS_AT_ONCE = 10_000
LINE_BYTES_MAX = 16 << 20
_TYPES = {
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.bool_(): "BOOLEAN",
    pa.list_(pa.int64()): "BIGINT[]",
    pa.list_(pa.string()): "VARCHAR[]",
}
_CASTS = {"string": "VARCHAR", "int": "INTEGER", "long": "BIGINT"}
_JOINS = {
    "inner": "JOIN",
    "left": "LEFT JOIN",
    "full_outer": "FULL JOIN",
    "left_semi": "SEMI JOIN",
    "left_anti": "ANTI JOIN",
}
# Functions and methods as SQL: {0} is the first argument, {all} has all of them.
_SQL = {
    ".__eq__": "({0} = {1})",
    ".__ne__": "({0} <> {1})",
    ".__lt__": "({0} < {1})",
    ".__le__": "({0} <= {1})",
    ".__gt__": "({0} > {1})",
    ".__ge__": "({0} >= {1})",
    ".__add__": "({0} + {1})",
    ".__sub__": "({0} - {1})",
    ".__truediv__": "({0} / {1})",
    ".__and__": "({0} AND {1})",
    ".__or__": "({0} OR {1})",
    ".__invert__": "(NOT {0})",
    ".isNull": "({0} IS NULL)",
    ".isNotNull": "({0} IS NOT NULL)",
    ".eqNullSafe": "({0} IS NOT DISTINCT FROM {1})",
    ".startswith": "starts_with({0}, {1})",
    ".rlike": "regexp_matches({0}, {1})",
    ".bitwiseAND": "({0} & {1})",
    ".alias": "{0}",
    "array": "CAST([{all}] AS VARCHAR[])",
    "array_contains": "list_contains({0}, {1})",
    "array_distinct": "list_distinct({0})",
    "array_intersect": "list_intersect({0}, {1})",
    "arrays_overlap": "list_has_any({0}, {1})",
    "coalesce": "coalesce({all})",
    "collect_list": "coalesce(list({0}) FILTER ({0} IS NOT NULL), [])",
    "collect_set": "coalesce(list(DISTINCT {0}) FILTER ({0} IS NOT NULL), [])",
    "concat": "({0} || {1})",
    "conv": "CAST(TRY_CAST('0x' || {0} AS UBIGINT) AS VARCHAR)",  # from 16 to 10
    "count": "count({0})",
    "count_distinct": "count(DISTINCT {0})",
    "count_if": "count(*) FILTER (WHERE {0})",
    "first": "first({0})",
    "floor": "CAST(floor({0}) AS BIGINT)",
    "get": "{0}[{1} + 1]",
    "greatest": "greatest({all})",
    "lag": "lag({0}, {1})",
    "last": "last_value({0} IGNORE NULLS)",
    "lead": "lead({0}, {1})",
    "least": "least({all})",
    "length": "length({0})",
    "max": "max({0})",
    "max_by": "arg_max({0}, {1})",
    "min": "min({0})",
    "row_number": "row_number()",
    "size": "len({0})",
    "sort_array": "list_sort({0})",
    "split": "string_split({0}, {1})",
    "substring": "substring({0}, {1}, {2})",
    "sum": "CAST(sum({0}) AS BIGINT)",
    "unhex": "unhex({0})",
    "xxhash64": "hash({all})",
}


@dataclass(frozen=True, slots=True)
class LocalFrame:
    """A frame as SQL (audit.engine.frames.Frame), with the names of its columns."""

    connection: duckdb.DuckDBPyConnection
    sql: str
    columns: tuple[str, ...]
    is_sorted: bool = False

    def where(self, condition: Column | str) -> LocalFrame:
        return self._over("*", self.columns, f" WHERE {_sql(column(condition))}")

    def select(self, *columns: Column | str) -> LocalFrame:
        return self._selected([*map(column, columns)])

    def withColumn(self, name: str, value: Column) -> LocalFrame:
        return self.withColumns({name: value})

    def withColumns(self, values: Mapping[str, Column]) -> LocalFrame:
        kept = [values.get(name, col(name)).alias(name) for name in self.columns]
        added = [values[name].alias(name) for name in values if name not in self.columns]
        return self._selected([*kept, *added])

    def withColumnRenamed(self, name: str, new: str) -> LocalFrame:
        return self._selected(
            [col(each).alias(new if each == name else each) for each in self.columns]
        )

    def drop(self, *names: str) -> LocalFrame:
        return self._selected([col(name) for name in self.columns if name not in names])

    def distinct(self) -> LocalFrame:
        return self._over("DISTINCT *", self.columns)

    def exploded(self, name: str, values: Column) -> LocalFrame:
        others = tuple(each for each in self.columns if each != name)
        unnested = f"unnest({_sql(values)}) AS {_name(name)}"
        return self._over(", ".join([*map(_name, others), unnested]), (*others, name))

    def numbered(self, name: str, at: str, value: str) -> LocalFrame:
        others = tuple(each for each in self.columns if each != name)
        both = (
            f"unnest(range(len({_name(name)}))) AS {_name(at)}",
            f"unnest({_name(name)}) AS {_name(value)}",
        )
        return self._over(", ".join([*map(_name, others), *both]), (*others, at, value))

    def join(self, other: Frame, on: Sequence[str], how: str = "inner") -> LocalFrame:
        assert isinstance(other, LocalFrame)
        assert not (self.is_sorted or other.is_sorted), "a join would lose the order"
        own = [name for name in self.columns if name not in on]
        theirs = [name for name in other.columns if name not in on]
        if how in ("left_semi", "left_anti"):
            theirs = []
        assert not {*own} & {*theirs}, (own, theirs)
        shown = [*map(_name, on), *[f"l.{_name(name)}" for name in own]]
        shown += [f"r.{_name(name)}" for name in theirs]
        using = ", ".join(map(_name, on))
        sql = (
            f"SELECT {', '.join(shown)} FROM ({self.sql}) AS l "
            f"{_JOINS[how]} ({other.sql}) AS r USING ({using})"
        )
        return LocalFrame(self.connection, sql, (*on, *own, *theirs))

    def broadcast(self) -> LocalFrame:
        return self

    def groupBy(self, *columns: Column | str) -> LocalGroups:
        return LocalGroups(self, [*map(column, columns)])

    def agg(self, *columns: Column) -> LocalFrame:
        return self._selected(columns)

    def unionByName(self, other: Frame) -> LocalFrame:
        assert isinstance(other, LocalFrame)
        same = other.select(*self.columns)
        sql = f"({self.sql}) UNION ALL ({same.sql})"
        return LocalFrame(self.connection, sql, self.columns)

    def orderBy(self, *names: str) -> LocalFrame:
        by = ", ".join(f"{_name(name)} NULLS FIRST" for name in names)
        ordered = self._over("*", self.columns, f" ORDER BY {by}")
        return LocalFrame(self.connection, ordered.sql, self.columns, is_sorted=True)

    def limit(self, count: int) -> LocalFrame:
        if not self.is_sorted:
            return self._over("*", self.columns, f" LIMIT {count}")
        return LocalFrame(self.connection, f"{self.sql} LIMIT {count}", self.columns)

    def count(self) -> int:
        return int(self.agg(Column("count", (col("*"),)).alias("count")).collect()[0]["count"])

    def collect(self) -> list[Row]:
        return [*self.rows()]

    def rows(self) -> Iterator[Row]:
        with _causes(), self.connection.cursor() as cursor:
            cursor.execute(self.sql)
            while rows := cursor.fetchmany(ROWS_AT_ONCE):
                yield from (dict(zip(self.columns, row, strict=True)) for row in rows)

    def _selected(self, columns: Sequence[Column]) -> LocalFrame:
        shown = [f"{_sql(each)} AS {_name(each.output_name)}" for each in columns]
        return self._over(", ".join(shown), tuple(each.output_name for each in columns))

    def _over(self, shown: str, columns: tuple[str, ...], rest: str = "") -> LocalFrame:
        assert not self.is_sorted, "a query of this would lose the order"
        sql = f"SELECT {shown} FROM ({self.sql}) AS t{rest}"
        return LocalFrame(self.connection, sql, columns)


@dataclass(frozen=True, slots=True)
class LocalGroups:
    frame: LocalFrame
    keys: Sequence[Column]

    def agg(self, *columns: Column) -> LocalFrame:
        keys = [f"{_sql(key)} AS {_name(key.output_name)}" for key in self.keys]
        shown = [*keys, *[f"{_sql(each)} AS {_name(each.output_name)}" for each in columns]]
        names = tuple(each.output_name for each in (*self.keys, *columns))
        by = ", ".join(str(number) for number in range(1, len(keys) + 1))
        return self.frame._over(", ".join(shown), names, f" GROUP BY {by}")


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """An engine (audit.engine.frames.Engine). Make one with `local_engine`."""

    connection: duckdb.DuckDBPyConnection
    directory: Path
    cores: int

    @property
    def name(self) -> str:
        return NAME

    def table(self, rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> LocalFrame:
        columns = [
            pa.array([row[number] for row in rows], field.type)
            for number, field in enumerate(schema)
        ]
        path = self.directory / f"{uuid.uuid4().hex}.parquet"
        pq.write_table(pa.Table.from_arrays(columns, schema=schema), path)
        return self._files([str(path)], tuple(schema.names))

    def parquet(self, path: str, schema: pa.Schema | None = None) -> LocalFrame:
        files = [path]
        if Path(path).is_dir():
            below = (file for file in Path(path).rglob("*") if file.is_file())
            files = sorted(str(file) for file in below if file.name[0] not in "._")
        if schema is not None:
            return self._files(files, tuple(schema.names)) if files else self._nothing(schema)
        if not files:
            raise EngineFailed(f"{path} has no files")
        with _causes(), self.connection.cursor() as cursor:
            described = cursor.execute(f"DESCRIBE SELECT * FROM {_read(files)}").fetchall()
        return self._files(files, tuple(name for name, *_ in described))

    def lines(self, path: str, schema: pa.Schema) -> LocalFrame:
        known = pa.schema([field for field in schema if field.name != CORRUPT])
        target = self.directory / f"{uuid.uuid4().hex}.parquet"
        try:
            with pq.ParquetWriter(target, schema) as out:
                if Path(path).stat().st_size:
                    for batch in _json_batches(path, known):
                        nulls = pa.nulls(len(batch), pa.string())
                        columns = [batch[name] for name in known.names]
                        out.write_batch(
                            pa.RecordBatch.from_arrays([*columns, nulls], schema=schema)
                        )
        except OSError as error:
            raise EngineFailed(f"{path} cannot be read: {error}") from error
        except pa.ArrowException as error:
            line = _first_invalid(path, known)
            if line is None:
                raise EngineFailed(f"{path} cannot be read: {error}") from error
            return self.table([(*[None] * len(known), line)], schema)
        return self._files([str(target)], tuple(schema.names))

    def staged(self, frame: Frame, directory: str) -> LocalFrame:
        assert isinstance(frame, LocalFrame)
        Path(directory).mkdir()
        path = f"{directory}/rows.parquet"
        target = f"{_text(path)} (FORMAT parquet, COMPRESSION uncompressed)"
        with _causes(), self.connection.cursor() as cursor:
            cursor.execute(f"COPY ({frame.sql}) TO {target}")
        return self._files([path], frame.columns)

    def map_reduce(
        self,
        function: Callable[[Part], Made],
        parts: Sequence[Part],
        merge: Callable[[Made, Made], Made],
        empty: Made,
        done: Done = ignore,
    ) -> Made:
        merged = empty
        with ThreadPoolExecutor(self.cores) as pool:
            for count, made in enumerate(pool.map(function, parts), 1):
                merged = merge(merged, made)
                done(count)
        return merged

    def without_files(self) -> LocalEngine:
        return self

    @property
    def has_files(self) -> bool:
        return True

    def read(
        self,
        function: Callable[[Part], Iterator[Any]],
        parts: Sequence[Part],
        schema: pa.Schema,
        merge: Callable[[Made, Made], Made],
        empty: Made,
        done: Done = ignore,
    ) -> tuple[LocalFrame, Made]:
        directory = self.directory / uuid.uuid4().hex
        directory.mkdir()

        def write(numbered: tuple[int, Part]) -> Made:
            number, part = numbered
            with pq.ParquetWriter(directory / f"{number}.parquet", schema) as out:
                for each in function(part):
                    if not isinstance(each, pa.RecordBatch):
                        made: Made = each
                        return made
                    out.write_batch(each)
            raise AssertionError("a part has no result")

        made = self.map_reduce(write, [*enumerate(parts)], merge, empty, done)
        return self.parquet(str(directory), schema), made

    def sized_for(self, size_bytes: int) -> nullcontext[None]:
        return nullcontext()

    def _files(self, paths: Sequence[str], columns: tuple[str, ...]) -> LocalFrame:
        shown = ", ".join(map(_name, columns))
        return LocalFrame(self.connection, f"SELECT {shown} FROM {_read(paths)}", columns)

    def _nothing(self, schema: pa.Schema) -> LocalFrame:
        columns = [f"CAST(NULL AS {_TYPES[each.type]}) AS {_name(each.name)}" for each in schema]
        sql = f"SELECT {', '.join(columns)} WHERE false"
        return LocalFrame(self.connection, sql, tuple(schema.names))


@contextmanager
def local_engine(scratch: Path | None = None, cores: int = CORES) -> Iterator[LocalEngine]:
    """Yield an engine with a directory below `scratch`, which is removed later. Raises OSError."""
    with tempfile.TemporaryDirectory(prefix="mqaudit-local-", dir=scratch) as directory:
        settings = {
            "threads": cores,
            "memory_limit": MEMORY,
            "temp_directory": f"{directory}/spilled",
            "autoinstall_known_extensions": False,
            "preserve_insertion_order": False,
        }
        with duckdb.connect(":memory:", config=settings) as connection:
            yield LocalEngine(connection, Path(directory), cores)


@contextmanager
def _causes() -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        raise EngineFailed(str(error).partition("\n")[0]) from error


def _sql(value: Any) -> str:
    """Return an expression as SQL; values are literals."""
    if not isinstance(value, Column):
        return _literal(value)
    name, args = value.name, value.args
    if name == "col":
        return "*" if args[0] == "*" else ".".join(map(_name, args[0].split(".")))
    if name == "lit":
        return _literal(args[0])
    if name == "struct":
        fields = ", ".join(f"{_name(each.output_name)} := {_sql(each)}" for each in args)
        return f"struct_pack({fields})"
    if name in ("when", ".when", ".otherwise"):
        return f"CASE {_branches(value)} END"
    if name == ".over":
        return f"{_sql(args[0])} OVER ({_window(args[1])})"
    if name == ".isin":
        values = ", ".join(map(_sql, args[1:]))
        return f"({_sql(args[0])} IN ({values}))" if values else "false"
    if name == ".cast":
        if args[1] == "binary":
            return f"encode({_sql(args[0])})"
        return f"CAST({_sql(args[0])} AS {_CASTS[args[1]]})"
    made = [_sql(arg) for arg in args]
    return _SQL[name].format(*made, all=", ".join(made))


def _branches(value: Column) -> str:
    if value.name == ".otherwise":
        return f"{_branches(value.args[0])} ELSE {_sql(value.args[1])}"
    before = f"{_branches(value.args[0])} " if value.name == ".when" else ""
    return f"{before}WHEN {_sql(value.args[-2])} THEN {_sql(value.args[-1])}"


def _window(window: WindowSpec) -> str:
    parts = [f"PARTITION BY {', '.join(map(_name, window.partition))}"]
    if window.order:
        by = ", ".join(f"{_name(name)} NULLS FIRST" for name in window.order)
        parts.append(f"ORDER BY {by}")
    if window.before:
        parts.append("ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING")
    return " ".join(parts)


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    return _text(value)


def _text(text: str) -> str:
    quoted = text.replace("'", "''")
    return f"'{quoted}'"


def _name(name: str) -> str:
    quoted = name.replace('"', '""')
    return f'"{quoted}"'


def _read(paths: Sequence[str]) -> str:
    return f"read_parquet([{', '.join(map(_text, paths))}])"


def _json_batches(path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    parsing = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    reading = pj.ReadOptions(block_size=LINE_BYTES_MAX)
    with pj.open_json(path, read_options=reading, parse_options=parsing) as batches:
        yield from batches


def _first_invalid(path: str, schema: pa.Schema) -> str | None:
    """Return the first line that is no object of the schema."""
    with open(path, "rb") as lines:
        for line in filter(bytes.strip, lines):
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError:
                value = None
            if not isinstance(value, dict) or not all(
                _fits(value.get(each.name), each.type) for each in schema
            ):
                return line.strip().decode(errors="replace")
    return None


def _fits(value: Any, kind: pa.DataType) -> bool:
    if value is None:
        return True
    if pa.types.is_list(kind):
        return isinstance(value, list) and all(_fits(each, kind.value_type) for each in value)
    if pa.types.is_integer(kind):
        return type(value) is int and abs(value) < 1 << (kind.bit_width - 1)
    return isinstance(value, bool if pa.types.is_boolean(kind) else str)
