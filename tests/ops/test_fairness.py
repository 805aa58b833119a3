"""Nobody shuts out the rest: not by requests, not by connections."""

from dataclasses import dataclass

import pytest

from raftmq.ops.fairness import RANKED_MAX, Evictor, SharedLimit


@dataclass(eq=False)
class Peer:
    last_active_s: float = 0.0
    has_account: bool = False
    holder: str = "10.0.0.1"
    is_busy: bool = False
    is_open: bool = True


def evictor(peers: list[Peer], *, with_accounts: bool) -> Evictor[Peer]:
    result: Evictor[Peer] = Evictor(with_accounts=with_accounts)
    for peer in peers:
        result.added(peer)
    return result


@pytest.mark.parametrize("share", [0.25, 1, 8])
def test_shared_limit_leaves_some_for_the_next_holder(share: float) -> None:
    limit = SharedLimit(1_000, share)
    held = []
    for number in range(2):
        while limit.take(f"greedy-{number}"):
            pass
        held.append(limit.held_by(f"greedy-{number}"))
        assert limit.take(f"late-{number}")
    assert held[0] == pytest.approx(1_000 * share / (1 + share), abs=2)
    assert limit.used == sum(held) + 2 < 1_000
    for number in range(2):
        limit.give_back(f"late-{number}")
        for _ in range(held[number]):
            limit.give_back(f"greedy-{number}")
    assert limit.used == 0


def test_small_shared_limit_serves_a_holder_without_any() -> None:
    limit = SharedLimit(1, 0.5)
    assert limit.take("a") and not limit.take("b")
    limit.give_back("a")
    assert limit.take("b")
    assert not SharedLimit(0, 8).take("a")
    sizes = SharedLimit(100, 1)
    assert sizes.take("a", 60) and not sizes.take("a", 1) and not sizes.take("b", 41)
    assert sizes.take("b", 40)


def test_longest_connection_without_account_is_evicted_first() -> None:
    """However active it is. The last of them stays: it may be about to show an account."""
    peers = [Peer(last_active_s=9 - n) for n in range(6)]
    peers[0].has_account = peers[2].has_account = True
    result = evictor(peers, with_accounts=True)
    result.removed(peers[1])
    assert [result.choose(8) for _ in range(3)] == [peers[3], peers[4], peers[2]]
    peers[5].has_account = True
    assert [result.choose(8) for _ in range(3)] == [peers[5], peers[0], None]


def test_longest_silent_connection_is_evicted_first_without_accounts() -> None:
    assert evictor([], with_accounts=False).choose(9) is None
    peers = [Peer(last_active_s=float(n)) for n in range(RANKED_MAX + 5)]
    result = evictor(peers[::-1], with_accounts=False)
    assert result.choose(9) is peers[0]
    peers[1].last_active_s = float(len(peers))  # it spoke since the last ranking
    result.removed(peers[2])
    expected = [*peers[3:], peers[1]]
    assert [result.choose(9) for _ in expected] == expected
    assert result.choose(9) is None


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize("with_accounts", [False, True])
def test_holder_with_most_connections_is_evicted_first(with_accounts: bool, accepted: bool) -> None:
    """A hundred of one address, all fresher and newer than the connections of three others."""
    others = [Peer(holder=f"10.0.0.{n}", has_account=accepted) for n in (2, 3, 4) for _ in range(5)]
    crowd = [Peer(last_active_s=9.0, has_account=accepted) for _ in range(100)]
    result = evictor(others + crowd, with_accounts=with_accounts)
    for _ in range(500):
        chosen = result.choose(115)
        assert chosen in crowd
        result.added(Peer(last_active_s=10.0, has_account=accepted))
        crowd.append(list(result)[-1])
    assert set(others) < set(result)


def test_account_with_every_connection_is_evicted_before_a_new_caller() -> None:
    """A new one without an account, which may be an administrator's, stays in any case."""
    result = evictor([Peer(has_account=True) for _ in range(512)], with_accounts=True)
    for _ in range(600):
        admin = Peer(holder="10.0.0.9")
        chosen = result.choose(512)
        assert chosen is not None and chosen.has_account
        result.added(admin)
        admin.has_account = True


def test_request_in_progress_is_finished_before_eviction() -> None:
    busy = [Peer(has_account=True, is_busy=True) for _ in range(3)]
    idle = Peer(last_active_s=99.0, has_account=True)
    result = evictor([*busy, idle, Peer(is_open=False)], with_accounts=True)
    assert [result.choose(5) for _ in range(2)] == [idle, None]
