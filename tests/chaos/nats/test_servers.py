"""A server's configuration sends its routes through the links, and says its version."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

from raftmq.chaos.cluster.clusterfile import ClusterError, ClusterState, save_state
from raftmq.chaos.cluster.topology import Shape, plan, ports_needed
from raftmq.chaos.nats.servers import ALWAYS, NOWHERE, Servers, configuration, version_of


def state_of(*, links: bool) -> ClusterState:
    shape = Shape(replicas=3, namesrv="none", links=links)
    return plan(shape, {}, "127.0.0.1", range(20_000, 20_000 + ports_needed(shape)))


def test_routes_take_the_links_and_nobody_is_told_a_way_around_them() -> None:
    state = state_of(links=True)
    found = configuration(state, state.node("n1"), Path("/s"), "")
    ports = [state.link_ports[name] for name in ("n1>n0", "n1>n2")]
    assert found["cluster"]["routes"] == [f"nats://127.0.0.1:{port}" for port in ports]
    assert found["cluster"]["advertise"] == NOWHERE
    assert found["cluster"]["listen"] == f"127.0.0.1:{state.node('n1').peer_port}"


def test_without_links_servers_reach_each_other_directly() -> None:
    state = state_of(links=False)
    found = configuration(state, state.node("n1"), Path("/s"), "")
    ports = [state.node(name).peer_port for name in ("n0", "n2")]
    assert found["cluster"]["routes"] == [f"nats://127.0.0.1:{port}" for port in ports]
    assert "advertise" not in found["cluster"]


@pytest.mark.parametrize("sync", ["", ALWAYS])
def test_when_it_syncs_is_its_own_choice_unless_told(tmp_path: Path, sync: str) -> None:
    state = state_of(links=False)
    save_state(tmp_path, state)
    command = Servers(Path("/bin/nats-server"), sync)(tmp_path, state.node("n0"))
    assert command[:2] == ["/bin/nats-server", "-c"]
    written = orjson.loads(Path(command[2]).read_bytes())
    assert written["jetstream"].get("sync_interval", "") == sync
    assert written["jetstream"]["store_dir"] == str(tmp_path / "n0" / "store")


def test_the_version_is_what_the_program_says(tmp_path: Path) -> None:
    program = tmp_path / "nats-server"
    program.write_text(f"#!{sys.executable}\nprint('nats-server: v2.15.2')\n")
    program.chmod(0o755)
    assert version_of(program) == "v2.15.2"
    with pytest.raises(ClusterError, match="no nats-server that runs here"):
        version_of(tmp_path)
