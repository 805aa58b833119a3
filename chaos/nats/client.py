"""The Python client of NATS, from which a run needs little. The package nats-py is imported here
and in chaos.nats.workload alone, which nobody imports before a JetStream cluster is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nats
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.js.errors import NoStreamResponseError

from ..cluster.clusterfile import ClusterError, load_state

CONNECT_TIMEOUT_S = 5
PING_S = 2  # a server that hangs is left after two of these
NOT_STORED = (NoStreamResponseError, NoRespondersError)  # nobody took it
WRONG = (NatsError, OSError, TimeoutError)


async def connect(directory: Path, **more: str) -> Any:
    """Return a client that knows all servers of the cluster, and goes to another one as often as it
    loses one. `more`: user and password. Raises ClusterError."""
    state = load_state(directory)
    try:
        return await nats.connect(
            [f"nats://{state.client_address(node)}" for node in state.brokers],
            connect_timeout=CONNECT_TIMEOUT_S,
            reconnect_time_wait=0.1,
            max_reconnect_attempts=-1,
            ping_interval=PING_S,
            max_outstanding_pings=2,
            error_cb=_ignore,  # what matters fails the call that it belongs to
            **more,
        )
    except WRONG as error:
        raise ClusterError(f"no connection to a server: {error!r}") from error


async def _ignore(_: Exception) -> None:
    pass
