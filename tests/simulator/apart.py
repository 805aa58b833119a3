"""Runs a function in a process of its own.

A world that fails leaves coroutines that nobody awaited. They complain when they are collected,
which may be in any later test of the same process.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def apart(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `function` returns, or raise what it raises. It must be one of a module."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()
