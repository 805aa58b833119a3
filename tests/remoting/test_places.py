"""Which connection a full server gives up."""

from dataclasses import dataclass

from raftmq.remoting.places import SORTED_MAX, Places


@dataclass(eq=False)
class Peer:
    last_active_s: float = 0.0
    has_account: bool = False


def test_the_longest_held_without_an_account_goes_first() -> None:
    places: Places[Peer] = Places(with_accounts=True)
    peers = [Peer(last_active_s=9 - n) for n in range(5)]
    for peer in peers:
        places.taken(peer)
    peers[0].has_account = peers[2].has_account = True
    places.left(peers[1])
    assert [places.first_to_go() for _ in range(3)] == [peers[3], peers[4], None]


def test_the_longest_silent_goes_first_whoever_spoke_since_the_last_look() -> None:
    places: Places[Peer] = Places(with_accounts=False)
    assert places.first_to_go() is None
    peers = [Peer(last_active_s=float(n)) for n in range(SORTED_MAX + 5)]
    for peer in reversed(peers):
        places.taken(peer)
    assert places.first_to_go() is peers[0]
    peers[1].last_active_s = float(len(peers))
    places.left(peers[2])
    wanted = [*peers[3:], peers[1]]
    assert [places.first_to_go() for _ in wanted] == wanted
    assert places.first_to_go() is None


def test_who_is_kept_does_not_go_however_long_it_was_silent() -> None:
    places: Places[Peer] = Places(with_accounts=False)
    peers = [Peer(last_active_s=float(n)) for n in range(5)]
    for peer in peers:
        places.taken(peer)
    peers[1].has_account = True
    assert places.first_to_go() is peers[0]
    peers[2].has_account = True  # it registers after the last look
    assert [places.first_to_go() for _ in range(3)] == [peers[3], peers[4], None]
