"""A value that may be None by its type and is there in the test at hand."""

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """Return the value; the test fails here if it is missing."""
    assert value is not None
    return value
