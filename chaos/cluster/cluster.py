"""A cluster of name servers, broker groups, gRPC proxies and link proxies on this machine.

Its state is in DIR/cluster.json (clusterfile.py), which every call reads again. So several commands
may work on a cluster in turn, and a cluster outlives its command. `up` sends no test message, but
returns once a send would be acknowledged. Then every group has a ready leader, and the name server
has its address. A failed `up` ends the processes that it started.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from pathlib import Path

from . import launch, namespaces
from .clusterfile import (
    GRPC_PROXY,
    LOCK_FILE,
    NAMESRV,
    ClusterError,
    ClusterState,
    Node,
    load_state,
    locked,
    make_directory,
    save_state,
)
from .credentials import who_refuses
from .ports import HeldPorts, choose_ports, is_free
from .probe import MASTER, Probe, RemotingProbe, ReplicaView, leader_of, replicas
from .process import ProcessId, send_signal, spawn, state, tail
from .proxies import check_installed
from .timeouts import DOWN_TIMEOUT_S, FIND_TIMEOUT_S, GONE_TIMEOUT_S, UP_TIMEOUT_S
from .topology import (
    CLASSIC,
    MODES,
    Shape,
    check_unchanged,
    nodes_of,
    on_hosts,
    plan,
    ports_needed,
    standard_ports,
    with_proxies,
)

LOG = logging.getLogger("raftmq.chaos")

HOST = "127.0.0.1"
STATUS_TIMEOUT_MS = 2_000.0  # busy brokers answer late
POLL_S = 0.02
TAIL_LINES = 15

CommandOf = Callable[[Path, Node], Sequence[str]]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A process's state. `view` is None without an answer or after `refusal`."""

    node: Node
    state: str  # "running", "stopped" (SIGSTOP) or "dead"
    view: ReplicaView | None
    refusal: str = ""

    @property
    def alive(self) -> bool:
        return self.state != "dead"

    @property
    def role(self) -> str:
        if self.node.kind == NAMESRV:
            return "name server"
        if self.node.kind == GRPC_PROXY:
            return "gRPC proxy"
        if self.node.kind != "broker":
            return self.node.kind
        return self.view.role if self.view else ""


class Cluster:
    """The cluster in a directory. Methods raise ClusterError with a readable message."""

    def __init__(
        self,
        directory: Path,
        probe: Probe | None = None,
        command_of: CommandOf = launch.command,
    ) -> None:
        self.directory = directory
        self._probe = probe or RemotingProbe(STATUS_TIMEOUT_MS)
        self._command_of = command_of
        self.ports = HeldPorts(HOST)
        self.log_zone: tzinfo | None = None  # of the times in logs, by default this machine's
        self._former_network: int | None = None  # where we were before the cluster's own network

    async def close(self) -> None:
        """Close the probe's connections and release the ports; the processes stay."""
        await self._probe.close()
        self.ports.close()
        self._leave()

    def state(self) -> ClusterState:
        """Return the present content of cluster.json."""
        return load_state(self.directory)

    def process_state(self, node: Node) -> str:
        """Return "running", "stopped" (frozen) or "dead" for a node from a fresh `state`."""
        return "dead" if node.process is None else state(node.process)

    def is_alive(self, name: str) -> bool:
        return self.process_state(self.state().node(name)) != "dead"

    def store_of(self, node: Node) -> Path:
        return launch.node_directory(self.directory, node) / "store"

    def collect_logs(self) -> dict[str, Path]:
        return {node.name: launch.log_path(self.directory, node) for node in self.state().nodes}

    async def up(
        self,
        shape: Shape | None = None,
        settings: Mapping[str, str] | None = None,
        timeout_s: float = UP_TIMEOUT_S,
        say: Callable[[str], None] = lambda text: None,
        proxy_settings: Mapping[str, str] | None = None,
    ) -> ClusterState:
        """Create the cluster, or start an existing cluster with its data; wait until it serves.
        `say` prints progress.

        Settings are kept even after a failure, so that the next start has them; `proxy_settings`
        are for gRPC proxies only. Running processes keep their settings (`outdated`). Before
        anything is created, raises SettingsError for settings that the servers would reject and for
        proxies without their packages, and ClusterError for a directory with foreign files.
        """
        shape = shape or Shape()
        self._refuse_strangers(shape)
        made = make_directory(self.directory)
        with locked(self.directory):
            try:
                planned = self._plan(shape, dict(settings or {}), dict(proxy_settings or {}))
                check_installed(planned)
                if settings or proxy_settings:
                    await asyncio.to_thread(launch.check_settings, self.directory, planned)
            except BaseException:
                self._unmake(made)
                raise
            if planned.netns:
                namespaces.create(planned.netns, {n.name: n.host for n in planned.nodes})
            if all(n.process is None or state(n.process) == "dead" for n in planned.brokers):
                launch.make_secret(self.directory)
            save_state(self.directory, planned)
            started: list[ProcessId] = []
            try:
                for node in planned.nodes:
                    if node.process is None or state(node.process) == "dead":
                        started.append(self.start_locked(node.name))
                        say(f"{node.name} starts")
                await self._wait_serving(timeout_s, everybody=True, say=say)
            except BaseException:  # also for Ctrl-C, end the started processes, then re-raise
                end_now(started)
                self.ports.close()
                if planned.netns and len(started) == len(planned.nodes):
                    self._leave()
                    namespaces.delete(planned.netns)
                raise
            return self.state()

    async def status(self) -> list[NodeStatus]:
        """Return the status of every process, the name servers first."""
        result = self.state()
        alive = {node.name: self.process_state(node) for node in result.nodes}
        running = [node for node in result.brokers if alive[node.name] == "running"]
        views = await self._views(result, running)
        view_of = {node.name: view for node, view in zip(running, views, strict=True)}
        refusal_of = {node.name: self._probe.refusal(node) for node in running}
        return [
            NodeStatus(n, alive[n.name], view_of.get(n.name), refusal_of.get(n.name, ""))
            for n in result.nodes
        ]

    def outdated(self) -> list[str]:
        """Return the names of running nodes that need a restart to have all settings."""
        result = self.state()
        running = (node for node in result.nodes if self.process_state(node) != "dead")
        return [node.name for node in running if launch.is_outdated(self.directory, result, node)]

    async def leader(self, group: str | None = None) -> Node | None:
        """Return the broker that leads the highest term of `group` (by default the first group), by
        the brokers' own views; in classic modes the master, if it answers."""
        result = self.state()
        members = result.members(group or result.groups[0])
        view = leader_of(await self._views(result, members), members[0].group)
        return next((n for n in members if view is not None and n.name == view.node), None)

    async def find(self, target: str) -> Node:
        """Return the node for `leader`, `leader:GROUP` or a node's name. Raises ClusterError.

        There is no leader during an election, and a busy broker may miss a request. While any
        broker runs, this polls for FIND_TIMEOUT_S.
        """
        word, _, group = target.partition(":")
        if word not in ("leader", MASTER):
            return self.state().node(target)
        deadline = time.monotonic() + FIND_TIMEOUT_S
        while (result := await self.leader(group or None)) is None:
            dead = all(self.process_state(node) == "dead" for node in self.state().brokers)
            if dead or time.monotonic() > deadline:
                raise ClusterError("no broker says that it leads; see: status")
            await asyncio.sleep(POLL_S)
        return result

    def signal(self, name: str, number: signal.Signals) -> ProcessId:
        """Send a signal to a node's process. Raises ClusterError if the process does not run."""
        node = self.state().node(name)
        if node.process is None:
            raise ClusterError(f"{name} was never started")
        try:
            send_signal(node.process, number)
        except ProcessLookupError:
            raise ClusterError(f"{name} is not running (last pid {node.process.pid})") from None
        return node.process

    async def wait_dead(self, process: ProcessId, timeout_s: float = GONE_TIMEOUT_S) -> None:
        """Return once an ending process is gone. Raises ClusterError at the time-out."""
        if not await _is_within(process, "dead", timeout_s):
            raise ClusterError(f"process {process.pid} is still there after {timeout_s:g} s")

    async def wait_stopped(self, process: ProcessId) -> None:
        """Return once a process stopped after SIGSTOP: its threads take a moment."""
        if not await _is_within(process, "stopped", GONE_TIMEOUT_S):
            raise ClusterError(f"process {process.pid} did not stop")

    def start(self, name: str) -> ProcessId:
        """Start a node's process again; return without waiting."""
        with locked(self.directory):
            node = self.state().node(name)
            if node.process is not None and state(node.process) != "dead":
                raise ClusterError(f"{name} runs already (pid {node.process.pid})")
            return self.start_locked(name)

    async def down(self, timeout_s: float = DOWN_TIMEOUT_S) -> dict[str, str]:
        """End every process: SIGTERM, then SIGKILL. Return node → result."""
        with locked(self.directory):
            result = self.state()
            ended: dict[str, str] = {}
            # Proxies redirect their clients while brokers run; name servers end last.
            for kind in (result.grpc_proxies, result.brokers, result.nodes):
                pending = [n for n in kind if n.name not in ended]
                ended |= await self.end(pending, timeout_s)
            self.ports.close()
            if result.netns:
                self._leave()
                namespaces.delete(result.netns)
            return {node.name: ended[node.name] for node in result.nodes}

    async def wait_serving(self, timeout_s: float = UP_TIMEOUT_S) -> None:
        """Return once a send would be acknowledged, even if some replicas are down.

        Raises ClusterError with the logs' tails.
        """
        await self._wait_serving(timeout_s, everybody=False, say=lambda text: None)

    async def wait_group(self, group: str, timeout_s: float, say: Callable[[str], None]) -> None:
        """Return once a send to `group` would be acknowledged and all its replicas answer. Raises
        ClusterError with the logs' tails."""
        await self._wait_serving(timeout_s, everybody=True, say=say, group=group)

    def _plan(
        self, shape: Shape, settings: dict[str, str], proxy_settings: dict[str, str]
    ) -> ClusterState:
        if not (self.directory / "cluster.json").exists():
            made = plan(shape, settings, HOST, self._ports(shape))
            made = replace(made, proxy_settings=proxy_settings)
            if not shape.netns:
                return made
            return on_hosts(made, namespaces.name_for(self.directory), namespaces.address_of)
        old = self.state()
        check_unchanged(shape, old, self.directory)
        if shape.namesrv is not None and shape.namesrv != old.namesrv:
            running = [node.name for node in old.nodes if self.process_state(node) != "dead"]
            if running:
                raise ClusterError(
                    f"{', '.join(running)} of the cluster in {self.directory} still run, with the"
                    f" name server {old.namesrv}: stop them first (down), then name another one"
                )
            kept = tuple(node for node in old.nodes if node.kind != NAMESRV)
            old = replace(old, namesrv=shape.namesrv, nodes=kept)
        for node in () if old.netns else old.nodes:
            self.ports.hold({node.port, node.peer_port, node.http_port} - {0})
        more = max(0, (shape.proxies or 0) - len(old.grpc_proxies))
        free = iter(self.ports.choose(2 * more, random.Random()))
        old = with_proxies(old, shape.proxies, HOST, free)
        proxy_settings = old.proxy_settings | proxy_settings
        return replace(old, settings=old.settings | settings, proxy_settings=proxy_settings)

    def _refuse_strangers(self, shape: Shape) -> None:
        """Raises ClusterError if the directory holds no cluster but files that its nodes would not
        use (a disk may be mounted there already)."""
        if not self.directory.exists() or (self.directory / "cluster.json").exists():
            return
        own = {LOCK_FILE, *(node.name for node in nodes_of(shape))}
        others = sorted(path.name for path in self.directory.iterdir() if path.name not in own)
        if others:
            raise ClusterError(
                f"{self.directory} is not empty and holds no cluster ({', '.join(others[:5])}):"
                " nothing is put there; name another directory"
            )

    def _unmake(self, made: Sequence[Path]) -> None:
        """Remove the directories made for a cluster that could not be planned."""
        if not (self.directory / "cluster.json").exists():
            (self.directory / LOCK_FILE).unlink()
        for path in made:
            path.rmdir()

    def _ports(self, shape: Shape) -> list[int]:
        if shape.netns:  # no foreign process listens there
            return choose_ports(ports_needed(shape), HOST, random.Random())
        if not shape.standard_ports:
            return self.ports.choose(ports_needed(shape), random.Random())
        desired = standard_ports(shape)
        taken = [str(port) for port in desired if not is_free(HOST, port)]
        if taken:
            reason = f"in use already: port {', '.join(taken)}"
            raise ClusterError(f"{reason}; without standard ports a cluster takes free ones")
        return desired

    def start_locked(self, name: str) -> ProcessId:
        """Start a node's process and save it; the caller holds the lock."""
        result = self.state()
        node = result.node(name)
        make_directory(launch.node_directory(self.directory, node))
        command = self._command_of(self.directory, node)
        process = spawn(
            namespaces.within(result.netns, name, command) if result.netns else command,
            launch.log_path(self.directory, node),
            launch.environment(),
        )
        try:
            save_state(self.directory, result.with_process(name, process))
        except BaseException:
            end_now([process])
            raise
        LOG.info("started node=%s pid=%d", name, process.pid)
        return process

    async def _wait_serving(
        self, timeout_s: float, *, everybody: bool, say: Callable[[str], None], group: str = ""
    ) -> None:
        deadline = time.monotonic() + timeout_s
        reported = ""
        while True:
            reason = await self._not_serving(everybody, group)
            if reason is None:
                return
            if reason != reported:
                reported = reason
                say(reason)
            nodes = self.state().members(group) if group else self.state().nodes
            dead = [node for node in nodes if self.process_state(node) == "dead"]
            if dead and everybody:
                names = ", ".join(node.name for node in dead)
                raise ClusterError(f"ended by itself: {names}\n{self.log_tails(dead)}")
            if time.monotonic() > deadline:
                tails = self.log_tails(nodes)
                raise ClusterError(f"not serving after {timeout_s:g} s: {reason}\n{tails}")
            await asyncio.sleep(POLL_S)

    async def _not_serving(self, everybody: bool, group: str) -> str | None:
        """Return why a send (to `group`, if given) would not be acknowledged yet; None if it would.

        With `everybody`, every replica must also answer.
        """
        result = self.state()
        brokers = result.members(group) if group else result.brokers
        views = await self._views(result, brokers)
        for name in (group,) if group else result.groups:
            reason = await self._group_not_serving(result, name, views)
            if reason is not None:
                return reason
        silent = [n.name for n, v in zip(brokers, views, strict=True) if v is None]
        silent += await self.silent_proxies() if everybody and not group else []
        if everybody and silent:
            return f"no answer from {', '.join(silent)} yet"
        return slaves_missing(result, views) if everybody else None

    async def silent_proxies(self) -> list[str]:
        """Return the names of the gRPC proxies that accept no connections."""
        proxies = self.state().grpc_proxies
        answers = [await self._probe.listens(node) for node in proxies]
        return [n.name for n, listens in zip(proxies, answers, strict=True) if not listens]

    async def _group_not_serving(
        self, state: ClusterState, group: str, views: Sequence[ReplicaView | None]
    ) -> str | None:
        of_group = "" if len(state.groups) == 1 else f" of {group}"
        view = leader_of(views, group)
        if view is None:
            return f"no leader{of_group} yet{self._refused(state.members(group))}"
        if not view.leader_ready:
            return f"{view.node} leads term {view.term} but is not ready yet"
        address = state.client_address(state.node(view.node))
        name_server = state.direct_namesrv
        known = await self._probe.registered_leader(name_server, group)
        if known != address:
            named = known or "no leader"
            return f"the name server {name_server} names {named}{of_group}, not {address}"
        return None

    def _refused(self, nodes: Sequence[Node]) -> str:
        """Return the reason for which these brokers' views are missing, or ""."""
        for node in nodes:
            if refusal := self._probe.refusal(node):
                return f": {who_refuses(node.name, refusal)}"
        return ""

    async def _views(self, state: ClusterState, nodes: Sequence[Node]) -> list[ReplicaView | None]:
        """Return the views of these brokers, requested from the clients' network, which is the
        cluster's own network if it has one. This thread stays in it until `close` or `down`."""
        if state.netns and self._former_network is None:
            self._former_network = namespaces.enter(state.netns)
        return await replicas(self._probe, nodes)

    def _leave(self) -> None:
        if self._former_network is not None:
            namespaces.leave(self._former_network)
            self._former_network = None

    def log_tails(self, nodes: Sequence[Node]) -> str:
        """Return the last lines of each node's log, headed by its path."""
        parts = []
        for node in nodes:
            path = launch.log_path(self.directory, node)
            parts.append(f"--- {path}\n{tail(path, TAIL_LINES) or '(empty)'}")
        return "\n".join(parts)

    async def end(self, nodes: Sequence[Node], timeout_s: float) -> dict[str, str]:
        """End nodes by SIGTERM, then SIGKILL, with the lock held. Return node → how it ended."""
        ended: dict[str, str] = {}
        waiting: list[tuple[str, ProcessId]] = []
        for node in nodes:
            if node.process is None or state(node.process) == "dead":
                ended[node.name] = "was not running"
                continue
            _signal_quietly(node.process, signal.SIGTERM)
            _signal_quietly(node.process, signal.SIGCONT)  # a stopped process cannot obey
            waiting.append((node.name, node.process))
        deadline = time.monotonic() + timeout_s
        for name, process in waiting:
            if await _is_within(process, "dead", deadline - time.monotonic()):
                ended[name] = "stopped"
                continue
            _signal_quietly(process, signal.SIGKILL)
            await self.wait_dead(process)
            ended[name] = f"killed: it did not stop within {timeout_s:g} s"
        return ended


def end_now(processes: Sequence[ProcessId]) -> None:
    """Kill processes that were only just started, and wait until they are gone. Blocking."""
    for process in processes:
        _signal_quietly(process, signal.SIGKILL)
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while any(state(process) != "dead" for process in processes):
        if time.monotonic() > deadline:
            LOG.error("still_there pids=%s", [process.pid for process in processes])
            return
        time.sleep(POLL_S)


async def _is_within(process: ProcessId, desired: str, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while state(process) != desired:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)  # a foreign session's process sends no event
    return True


def slaves_missing(state: ClusterState, views: Sequence[ReplicaView | None]) -> str | None:
    """Return the classic master with slaves out of sync, as SYNC_MASTER reports; or None."""
    for view in views if MODES[state.mode].engine == CLASSIC else ():
        if view is not None and view.leads:
            missing = len(state.members(view.group)) - 1 - view.slaves_in_sync
            if missing > 0:
                return f"{missing} slave(s) of {view.node} do not follow it yet"
    return None


def _signal_quietly(process: ProcessId, number: signal.Signals) -> None:
    try:
        send_signal(process, number)
    except ProcessLookupError:
        pass  # it has ended already
