from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.broker.connection_limit import ClientRoom
from raftmq.ops.descriptors import Ports, Shares


def room(limit, files=10):
    store: Any = SimpleNamespace(files_held=files)
    server: Any = SimpleNamespace(connections_max=0)
    return ClientRoom(Shares(limit, Ports()), store, server), store, server


def test_connection_limit_falls_as_the_log_grows(caplog):
    clients, store, server = room(1_024)
    clients.start()
    first = server.connections_max
    assert f"connections_limited max={first} wanted=20000 descriptors=1024" in caplog.text
    store.files_held += 100
    clients.poll()
    assert server.connections_max == first - 100


@pytest.mark.parametrize("limit", [100_000, 1 << 20])
def test_connection_limit_stays_with_enough_descriptors(limit, caplog):
    clients, _, server = room(limit)
    clients.start()
    assert server.connections_max == 20_000
    assert caplog.text == ""
