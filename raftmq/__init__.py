"""A replicated message log that speaks Apache RocketMQ's protocol: the client's public names.

    from raftmq import Message, Producer

    async with Producer("orders", "127.0.0.1:9876") as producer:
        await producer.send(Message("Orders", b"..."))

Every name of `raftmq.client` is here, its exceptions also in `raftmq.errors`. They are imported
when they are first asked for, so that a server does not load the client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raftmq import errors as errors
    from raftmq.client import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import a public name (PEP 562). Raises AttributeError."""
    if name == "errors":
        return importlib.import_module("raftmq.errors")
    if name == "__all__":  # for `from raftmq import *`
        return importlib.import_module("raftmq.client").__all__
    if not name.startswith("_"):
        client = importlib.import_module("raftmq.client")
        if name in client.__all__:
            return getattr(client, name)
    raise AttributeError(f"module 'raftmq' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, for interactive use."""
    client = importlib.import_module("raftmq.client")
    return sorted({"__version__", "errors", *client.__all__})
