"""Who has a provider asked, and when."""

from contextlib import ExitStack

import pytest

from raftmq.namesrv.http import login_throttle as exchanges
from raftmq.namesrv.http.login_throttle import EXCHANGES_MAX, Exchanges, NoExchange


def test_logins_of_one_address_do_not_block_another() -> None:
    result = Exchanges(600)
    with ExitStack() as held:
        for number in range(EXCHANGES_MAX // 2):
            held.enter_context(result.one(f"s{number}", "10.0.0.1"))
        with pytest.raises(NoExchange, match="run already") as refused:
            held.enter_context(result.one("more", "10.0.0.1"))
        assert refused.value.for_now
        held.enter_context(result.one("honest", "10.0.0.2"))
    with result.one("more", "10.0.0.1"):
        pass


def test_login_has_one_token_exchange_unless_none_was_free() -> None:
    result = Exchanges(600)
    with ExitStack() as held:
        for number in range(EXCHANGES_MAX):
            held.enter_context(result.one(f"s{number}", f"10.0.0.{number}"))
        with pytest.raises(NoExchange, match="run already") as refused:
            held.enter_context(result.one("last", "10.0.1.1"))
        assert refused.value.for_now
    with result.one("last", "10.0.1.1"):
        pass
    for state in ("last", "s0"):
        with pytest.raises(NoExchange, match="has had") as refused, result.one(state, "10.0.1.1"):
            pass
        assert not refused.value.for_now


def test_remembered_login_states_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "USED_MAX", 3)
    result = Exchanges(600)
    for state in "abcd":
        with result.one(state, "10.0.0.1"):
            pass
    with pytest.raises(NoExchange), result.one("d", "10.0.0.1"):
        pass
    with result.one("a", "10.0.0.1"):
        pass
    over = Exchanges(0)  # the login itself is over then, and refused before
    for _ in range(2):
        with over.one("a", "10.0.0.1"):
            pass
