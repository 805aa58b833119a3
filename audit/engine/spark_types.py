"""The types of Spark for those of Arrow."""

from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

_SPARK_TYPES: dict[Any, DataType] = {
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.bool_(): BooleanType(),
    pa.list_(pa.int64()): ArrayType(LongType()),
    pa.list_(pa.string()): ArrayType(StringType()),
}


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of an Arrow schema; every field is nullable."""
    return StructType([StructField(f.name, _SPARK_TYPES[f.type], True) for f in schema])
