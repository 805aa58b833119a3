"""File descriptors: how many the process may have, and how they are shared out.

Every connection and every open file takes one. Connections come from strangers, who may open any
number and say nothing; files have to be opened for what was acknowledged. So connections together
get no more than the limit less what the files need (`Shares`). Each kind of connection has a bound
of its own: when strangers fill the port for clients, the HTTP API and the ports of a group's
replicas still take connections.
"""

from __future__ import annotations

import logging
import resource
from dataclasses import dataclass

log = logging.getLogger("raftmq.ops.descriptors")

LIMIT_MAX = 1 << 20  # more connections than that do not fit a process in any case
OWN = 64  # standard streams, event loop, ports, dialled connections, small files, temporary ones
HTTP_MAX = 512
ARRIVING_MAX = 1_024  # of one port with TLS
ACCEPTED_AT_ONCE_MIN = 128  # fewer, and clients that all come back at once are not heard at all
ACCEPTED_AT_ONCE_MAX = 1_024
FILES_CACHED_MAX = 512
CONNECTIONS_PART = 16  # of each bound above one part of the limit at most
FILES_PART = 8


def descriptor_limit() -> int:
    """Return how many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one, or to LIMIT_MAX; return the limit. Call it once, at the
    start of a server process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:  # a system with another bound beside the hard one
            log.warning("descriptors_not_raised limit=%d wanted=%d: %s", soft, wanted, error)
    return descriptor_limit()


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a process besides the one for clients: how many speak HTTP, how many take TLS,
    and how many connections those of the group's replicas take together."""

    http: int = 0
    tls: int = 0
    peers: int = 0


@dataclass(frozen=True, slots=True)
class Shares:
    """The descriptors of a process with `limit` of them, shared out. A small limit makes every
    share small."""

    limit: int
    ports: Ports

    @property
    def http(self) -> int:
        """The connections of each port for HTTP."""
        return min(HTTP_MAX, self.limit // CONNECTIONS_PART)

    @property
    def arriving(self) -> int:
        """The connections in their TLS handshake, at each port."""
        return min(ARRIVING_MAX, self.limit // CONNECTIONS_PART)

    @property
    def accepted_at_once(self) -> int:
        """The connections accepted before the first of them can be refused."""
        part = max(ACCEPTED_AT_ONCE_MIN, self.limit // CONNECTIONS_PART)
        return min(ACCEPTED_AT_ONCE_MAX, part)

    @property
    def files_cached(self) -> int:
        """The files kept open although they could be opened again."""
        return min(FILES_CACHED_MAX, self.limit // FILES_PART)

    def clients(self, files: int = 0) -> int:
        """Return how many connections clients may have. `files`: those that are open for good. An
        eighth of the limit in any case: a process that serves nobody keeps its files for nothing.
        """
        ports = self.ports
        taken = OWN + files + self.accepted_at_once + ports.peers
        taken += ports.http * self.http + ports.tls * self.arriving
        return max(self.limit // 8, self.limit - taken)


def warn_if_limited(allowed: int, wanted: int, limit: int) -> None:
    """Log that clients may have fewer connections than `wanted` because descriptors are few."""
    if allowed < wanted:
        log.warning(
            "connections_limited max=%d wanted=%d descriptors=%d: raise RLIMIT_NOFILE",
            allowed,
            wanted,
            limit,
        )
