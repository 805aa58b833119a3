"""The nodes of a cluster in each mode.

A *mode* is a broker group's replication, as a Raft group, over pysyncobj, or with classic masters
with and without slaves. RocketMQ's names of clusters with two groups (`2m-noslave`, `2m-2s-async`,
`2m-2s-sync`) are also modes. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from .clusterfile import GRPC_PROXY, NAMESRV, PROXY, ClusterError, ClusterState, Node
from .linkmap import CLIENTS, link_names

RAFT, PYSYNCOBJ, CLASSIC = "raft", "pysyncobj", "classic"  # engines
REPLICAS_MAX = 9
GROUPS_MAX = 16
NAME_SERVERS_MAX = 8
PROXIES_MAX = 8
# The default ports of Apache's servers; further nodes as in docker-compose.yml.
NAME_SERVER_PORT, BROKER_PORT, GRPC_PORT = 9876, 10911, 8081
NEXT_BROKER, NEXT_GROUP = 10, 100  # a broker's neighbours: HA +1, HTTP +4, peers +6
HTTP_SHIFT, PEER_SHIFT = 4, 6
STANDARD_MAX = HTTP_SHIFT  # name servers, proxies: the next would have the first's HTTP port


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode. `replicas` counts the nodes per group, `role` is a classic master's brokerRole."""

    name: str
    description: str
    engine: str
    groups: int
    replicas: int
    role: str = ""


_ALL = (
    Mode("raft", "a Raft group of three replicas: the leader is elected", RAFT, 1, 3),
    Mode("pysyncobj", "the same broker over stock pysyncobj, to compare", PYSYNCOBJ, 1, 3),
    Mode("single", "one master, no copy", CLASSIC, 1, 1, "ASYNC_MASTER"),
    Mode("async", "ASYNC_MASTER and a slave", CLASSIC, 1, 2, "ASYNC_MASTER"),
    Mode("sync", "SYNC_MASTER and a slave: sync double write", CLASSIC, 1, 2, "SYNC_MASTER"),
    Mode("2m-noslave", "two masters, no copies", CLASSIC, 2, 1, "ASYNC_MASTER"),
    Mode("2m-2s-async", "two ASYNC_MASTERs with a slave each", CLASSIC, 2, 2, "ASYNC_MASTER"),
    Mode("2m-2s-sync", "two SYNC_MASTERs with a slave each", CLASSIC, 2, 2, "SYNC_MASTER"),
)
MODES: dict[str, Mode] = {mode.name: mode for mode in _ALL}


def flush_of(state: ClusterState) -> str:
    """Return the flushDiskType of the cluster's brokers; a Raft group's default is SYNC_FLUSH."""
    default = "SYNC_FLUSH" if MODES[state.mode].engine == RAFT else "ASYNC_FLUSH"
    return state.settings.get("flushDiskType", default)


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape asked for. A field that is None is taken from the mode, or from the cluster that is
    in the directory already."""

    mode: str | None = None
    groups: int | None = None
    replicas: int | None = None  # per group
    name_servers: int | None = None
    namesrv: str | None = None  # addresses of foreign name servers instead of our own
    links: bool | None = None  # traffic passes through proxies that can cut it
    faultable: bool | None = None  # brokers run over the fault layer
    netns: bool | None = None  # a host per process, in network namespaces, root only
    standard_ports: bool = False  # 9876, 9880, 10911, …, as clients and documents assume them
    proxies: int | None = None  # gRPC proxies


def ports_needed(shape: Shape) -> int:
    """Return how many listeners `plan` will place. Raises ClusterError for an impossible shape."""
    mode, groups, replicas, servers = _sizes(shape)
    per_broker = 1 if mode.engine == CLASSIC else 2
    others = servers + (shape.proxies or 0)
    links = link_names(_nodes(shape, "", itertools.count(1))) if shape.links else ()
    return groups * replicas * (per_broker + 1) + others * 2 + len(links)  # each also has HTTP


def standard_ports(shape: Shape) -> list[int]:
    """Return the well-known ports in `plan`'s order. Raises ClusterError."""
    mode, groups, replicas, servers = _sizes(shape)
    if shape.links or shape.netns:
        raise ClusterError("standard ports are for a cluster without links and namespaces")
    proxies = shape.proxies or 0
    for what, count in (("name servers", servers), ("proxies", proxies)):
        if count > STANDARD_MAX:
            raise ClusterError(f"there are standard ports for {STANDARD_MAX} {what}, not {count}")
    brokers = [
        BROKER_PORT + group * NEXT_GROUP + ordinal * NEXT_BROKER
        for group in range(groups)
        for ordinal in range(replicas)
    ]
    names = [NAME_SERVER_PORT + number for number in range(servers)]
    doors = [GRPC_PORT + number for number in range(proxies)]
    own = (0,) if mode.engine == CLASSIC else (0, PEER_SHIFT)
    listeners = [port + shift for port in brokers for shift in own]
    with_http = (*names, *brokers, *doors)
    return [*listeners, *names, *doors, *(port + HTTP_SHIFT for port in with_http)]


def standard_ports_of_group(state: ClusterState, replicas: int) -> list[int]:
    """Return three ports (clients, peers, HTTP) for each broker of a further group, if the cluster
    has standard ports; [] if not."""
    if any(node.peer_port - node.port != PEER_SHIFT for node in state.brokers):
        return []
    taken = {(node.port - BROKER_PORT) // NEXT_GROUP for node in state.brokers}
    group = next(number for number in itertools.count() if number not in taken)
    first = BROKER_PORT + group * NEXT_GROUP
    ports = range(first, first + replicas * NEXT_BROKER, NEXT_BROKER)
    return [port + shift for port in ports for shift in (0, PEER_SHIFT, HTTP_SHIFT)]


def with_group(state: ClusterState, nodes: Sequence[Node], free: Iterator[int]) -> ClusterState:
    """Return the cluster with a further broker group. `free` has a port for each new link."""
    result = replace(state, nodes=(*state.nodes, *nodes))
    if not state.links:
        return result
    links = {name: next(free) for name in new_links(state, nodes)}
    return replace(result, link_ports=state.link_ports | links)


def new_links(state: ClusterState, nodes: Sequence[Node]) -> list[str]:
    """Return the names of the links that `nodes` add to a cluster with links."""
    names = link_names((*state.nodes, *nodes)) if state.links else []
    return [name for name in names if name not in state.link_ports]


def without_group(state: ClusterState, group: str) -> ClusterState:
    """Return the cluster without a broker group."""
    names = {node.name for node in state.members(group)}
    return replace(
        state,
        nodes=tuple(node for node in state.nodes if node.name not in names),
        link_ports={
            link: port
            for link, port in state.link_ports.items()
            if names.isdisjoint(link.split(">"))
        },
        founders={name: peers for name, peers in state.founders.items() if name != group},
    )


def plan(shape: Shape, settings: dict[str, str], host: str, ports: Sequence[int]) -> ClusterState:
    """Return the nodes of a new cluster (the link proxy if there are links, name servers, brokers,
    gRPC proxies). Raises ClusterError."""
    free = iter(ports)
    nodes = _nodes(shape, host, free)
    links = {name: next(free) for name in link_names(nodes)} if shape.links else {}
    nodes = tuple(replace(node, http_port=next(free)) for node in nodes)
    servers = (node for node in nodes if node.kind == NAMESRV)
    addresses = (f"{host}:{links.get(f'{CLIENTS}>{node.name}', node.port)}" for node in servers)
    proxy = (Node(PROXY, PROXY, host, 0, 0),) if shape.links else ()
    return ClusterState(
        mode=(shape.mode or RAFT),
        namesrv=shape.namesrv or ";".join(addresses),
        settings=settings,
        nodes=proxy + nodes,
        links=bool(shape.links),
        faultable=bool(shape.faultable),
        link_ports=links,
    )


def nodes_of(shape: Shape) -> tuple[Node, ...]:
    """Return the nodes of a cluster that is not placed yet. Raises ClusterError."""
    return plan(shape, {}, "", [0] * ports_needed(shape)).nodes


def on_hosts(state: ClusterState, name: str, address_of: Callable[[int], str]) -> ClusterState:
    """Return the cluster with every node on a host of its own. Raises ClusterError with links."""
    if state.links:
        raise ClusterError("either links or network namespaces: the proxies are on one host")
    nodes = tuple(replace(node, host=address_of(i)) for i, node in enumerate(state.nodes))
    moved = replace(state, netns=name, nodes=nodes)
    return replace(moved, namesrv=moved.direct_namesrv)


def _nodes(shape: Shape, host: str, free: Iterator[int]) -> tuple[Node, ...]:
    mode, groups, replicas, servers = _sizes(shape)
    brokers = []
    for group in range(groups):
        for ordinal in range(replicas):
            port = next(free)
            peer_port = 0 if mode.engine == CLASSIC else next(free)
            name = _node_name(mode, group, ordinal, replicas)
            brokers.append(Node(name, "broker", host, port, peer_port, group_name(group), ordinal))
    names = [NAMESRV if i == 0 else f"{NAMESRV}-{i}" for i in range(servers)]
    own = [Node(name, NAMESRV, host, next(free), 0) for name in names]
    return (*own, *brokers, *grpc_proxies(0, shape.proxies or 0, host, free))


def grpc_proxies(first: int, count: int, host: str, free: Iterator[int]) -> tuple[Node, ...]:
    """Return gRPC proxies, the first with this number, without HTTP ports yet."""
    numbers = range(first, first + count)
    return tuple(Node(f"{GRPC_PROXY}-{i}", GRPC_PROXY, host, next(free), 0) for i in numbers)


def with_proxies(
    state: ClusterState, count: int | None, host: str, free: Iterator[int]
) -> ClusterState:
    """Return the cluster with `count` gRPC proxies (None: unchanged), new proxies last. `free` has
    two ports for each. Raises ClusterError if the cluster has more."""
    has = len(state.grpc_proxies)
    if count is None or count == has:
        return state
    if count < has:
        raise ClusterError(f"the cluster has {has} gRPC proxies; up does not take any away")
    if state.netns:
        raise ClusterError("gRPC proxies cannot be added to a cluster with network namespaces")
    more = grpc_proxies(has, count - has, host, free)
    more = tuple(replace(node, http_port=next(free)) for node in more)
    return replace(state, nodes=(*state.nodes, *more))


def check_unchanged(shape: Shape, state: ClusterState, directory: object) -> None:
    """Raises ClusterError if `shape` differs from an existing cluster's."""
    has = {
        "mode": state.mode,
        "groups": len(state.groups),
        "replicas": len(state.brokers) // max(1, len(state.groups)),
        **({} if shape.namesrv else {"name_servers": len(state.name_servers)}),
        "links": state.links,
        "faultable": state.faultable,
        "netns": bool(state.netns),
    }
    for what, result in has.items():
        requested = getattr(shape, what)
        if requested is not None and requested != result:
            change = "make another cluster"
            if what == "groups" and MODES[state.mode].engine == RAFT:
                change = "use add-group or remove-group"
            raise ClusterError(
                f"the cluster in {directory} has {what.replace('_', ' ')} {result}, not"
                f" {requested}; up does not change that: {change}"
            )
    ports = (node.port for node in state.nodes)
    if shape.standard_ports and set(standard_ports(shape)).isdisjoint(ports):
        raise ClusterError(f"the cluster in {directory} has ports of its own already")


def group_name(number: int) -> str:
    """Return broker-a, broker-b, …, as RocketMQ's examples call them."""
    return f"broker-{chr(ord('a') + number)}"


def _node_name(mode: Mode, group: int, ordinal: int, replicas: int) -> str:
    if mode.engine != CLASSIC:
        return f"n{group * replicas + ordinal}"
    return f"m{group}" if ordinal == 0 else f"s{group * (replicas - 1) + ordinal - 1}"


def _sizes(shape: Shape) -> tuple[Mode, int, int, int]:
    mode = MODES.get(shape.mode or RAFT)
    if mode is None:
        raise ClusterError(f"no mode {shape.mode!r}; there are {', '.join(MODES)}")
    groups = mode.groups if shape.groups is None else shape.groups
    replicas = mode.replicas if shape.replicas is None else shape.replicas
    servers = 1 if shape.name_servers is None else shape.name_servers
    for what, count, most in (
        ("groups", groups, GROUPS_MAX),
        ("replicas", replicas, REPLICAS_MAX),
        ("name servers", servers, NAME_SERVERS_MAX),
    ):
        if not 1 <= count <= most:
            raise ClusterError(f"{what} must be 1 to {most}, not {count}")
    if not 0 <= (shape.proxies or 0) <= PROXIES_MAX:
        raise ClusterError(f"proxies must be 0 to {PROXIES_MAX}, not {shape.proxies}")
    return mode, groups, replicas, 0 if shape.namesrv else servers
