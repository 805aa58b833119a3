"""Fixtures of the tests of the cluster API."""

import pytest

PATIENCE_S = 120.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that answers is waited for, however slow the machine is: 1 to 12 s are for pages."""
    for name in (
        "broker_http.CONNECT_TIMEOUT_S",
        "broker_http.VIEW_TIMEOUT_S",
        "broker_fanout.VIEW_TIMEOUT_S",
        "broker_fanout.WRITE_TIMEOUT_S",
        "proxy.WRITE_TIMEOUT_S",
    ):
        monkeypatch.setattr(f"raftmq.namesrv.http.{name}", PATIENCE_S)
