"""The errors of format `raftmq`, and how Spark prints them.

Spark prints an error of a Python source behind its traceback. These errors name the remedy, so they
hide the traceback, and Spark's line has their text. Unexpected errors keep their traceback.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from raftmq.client.errors import ClientError
from raftmq.remoting.errors import RemotingError

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"  # read by the Python process in which an error ends


class FormatError(Exception):
    """An error of the format's own, the base of its classes."""


class DataLost(FormatError):
    """Requested messages are no longer in their queue."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Let Spark print this block's expected errors without a traceback."""
    os.environ.pop(HIDE_TRACEBACK, None)
    try:
        yield
    except (FormatError, ClientError, RemotingError):
        os.environ[HIDE_TRACEBACK] = "1"
        raise
