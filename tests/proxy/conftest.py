"""Proxies of tests stop fast."""

import pytest

from raftmq.proxy import server


@pytest.fixture(autouse=True)
def _proxies_stop_fast(monkeypatch):
    monkeypatch.setattr(server, "STOP_S", 0.5)
