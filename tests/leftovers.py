"""Py4J and PySpark leave their sockets to the garbage collector. They are collected at the end of
the module that used them: the warning would be told of whatever test runs at the time."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def leftovers_collected() -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
