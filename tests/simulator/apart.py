"""Runs functions and replays of the simulator in processes of their own.

A world that fails leaves coroutines that nobody awaited. They complain when they are collected,
which may be in any later test of the same process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def apart(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `function` returns, or raise what it raises. It must be one of a module."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def replays(arguments: Sequence[str], hash_seeds: Sequence[str]) -> list[bytes]:
    """Return what `python` prints with these arguments, once for each seed of string hashes."""
    return [
        subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in hash_seeds
    ]
