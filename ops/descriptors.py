"""The process's limit of file descriptors, and its shares for files and connections.

Every connection and every open file needs a descriptor. Strangers may open any number of
connections, while files must be opened for acknowledged data. So all connections together get at
most the limit minus the files' share (`Shares`). Each kind of connection has its own limit. Even if
strangers fill the clients' port, the HTTP API and the ports of a group's replicas accept
connections.
"""

from __future__ import annotations

import logging
import resource
from dataclasses import dataclass

log = logging.getLogger("raftmq.ops.descriptors")

LIMIT_MAX = 1 << 20  # more connections do not fit a process in any case
OWN = 64  # standard streams, event loop, ports, dialled connections, small and temporary files
HTTP_MAX = 512
ARRIVING_MAX = 1_024  # per TLS port
ACCEPTED_AT_ONCE_MIN = 128  # with fewer, the kernel ignores clients that reconnect at once
ACCEPTED_AT_ONCE_MAX = 1_024
FILES_CACHED_MAX = 512
CONNECTIONS_FRACTION = 16  # a limit's share is at most this fraction of the descriptors
FILES_FRACTION = 8


def descriptor_limit() -> int:
    """Return the process's limit of descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard limit, or LIMIT_MAX; return it. For a start only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < limit:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError) as error:  # a system with a further limit below the hard limit
            log.warning("descriptors_not_raised limit=%d wanted=%d: %s", soft, limit, error)
    return descriptor_limit()


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a process besides the clients' port: the numbers of HTTP ports and TLS ports,
    and the connections of the replicas' ports together."""

    http: int = 0
    tls: int = 0
    peers: int = 0


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of a process with `limit` descriptors. A small limit makes every share small."""

    limit: int
    ports: Ports

    @property
    def http(self) -> int:
        return min(HTTP_MAX, self.limit // CONNECTIONS_FRACTION)

    @property
    def arriving(self) -> int:
        """The connections in their TLS handshake, at each port."""
        return min(ARRIVING_MAX, self.limit // CONNECTIONS_FRACTION)

    @property
    def accepted_at_once(self) -> int:
        """The connections accepted before the first of them can be refused."""
        share = max(ACCEPTED_AT_ONCE_MIN, self.limit // CONNECTIONS_FRACTION)
        return min(ACCEPTED_AT_ONCE_MAX, share)

    @property
    def files_cached(self) -> int:
        """The files kept open although they could be reopened."""
        return min(FILES_CACHED_MAX, self.limit // FILES_FRACTION)

    def clients(self, files: int = 0) -> int:
        """Return the maximum of client connections. `files` is the number of permanently open
        files. Clients get at least an eighth of the limit."""
        ports = self.ports
        taken = OWN + files + self.accepted_at_once + ports.peers
        taken += ports.http * self.http + ports.tls * self.arriving
        return max(self.limit // 8, self.limit - taken)


def warn_if_limited(allowed: int, desired: int, limit: int) -> None:
    """Log that few descriptors limit clients to fewer connections than `desired`."""
    if allowed < desired:
        log.warning(
            "connections_limited max=%d wanted=%d descriptors=%d: raise RLIMIT_NOFILE",
            allowed,
            desired,
            limit,
        )
