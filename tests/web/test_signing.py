"""Requests that are signed with a token instead of showing it: what counts, once, and where."""

from __future__ import annotations

import hashlib
import hmac
import itertools
from dataclasses import replace

import pytest

from raftmq.web.signing import SCHEME, Challenges, Signed, Signer, key_of

TOKEN, OTHER = "cluster-0123456789abcdef", "another-0123456789abcdef"
HERE = "10.0.0.5:10915"
KEYS = [key_of(OTHER), key_of(TOKEN)]
ASKED = ("PUT", "/api/v1/topics/T?x=1")
BODY = b'{"perm":6}'


def numbered():
    """Not random, but never the same."""
    count = itertools.count(1)
    return lambda: f"{next(count):032x}"


def signed_by(signer, challenges, address=HERE):
    """What a signer shows once it was told the nonce."""
    signer.challenged(address, f'Bearer realm="raftmq", {challenges.header()}', None)
    return signer.sign(address, *ASKED, BODY)


def accepted(challenges, signed, keys=KEYS, audience=HERE, asked=ASKED):
    return challenges.signer(signed, keys, audience, *asked)


def test_a_signature_says_whose_token_it_is_and_counts_once():
    challenges, signer = Challenges(numbered()), Signer(TOKEN, numbered())
    assert signer.sign(HERE, *ASKED, BODY) is None  # nobody asked for one
    signed = signed_by(signer, challenges)
    assert Signed.parse(signed.header()) == signed
    assert TOKEN not in signed.header()
    assert accepted(challenges, signed) == key_of(TOKEN)
    assert accepted(challenges, signed) is None  # it was overheard
    again = signer.sign(HERE, *ASKED, BODY)
    assert accepted(challenges, again) == key_of(TOKEN)
    assert again.covers(BODY) and not again.covers(BODY + b" ")


def test_the_signature_is_what_the_document_says():
    signed = Signer(TOKEN, lambda: "1" * 32)
    signed.challenged(HERE, f'{SCHEME} nonce="{"2" * 32}"', None)
    made = signed.sign(HERE, *ASKED, BODY)
    body = hashlib.sha256(BODY).hexdigest()
    text = "\n".join(["raftmq-1", HERE, "2" * 32, "1" * 32, *ASKED, body]).encode()
    key = hashlib.sha256(TOKEN.encode()).digest()
    wanted = hmac.new(key, text, hashlib.sha256).hexdigest()
    assert made == Signed("2" * 32, "1" * 32, body, wanted)


@pytest.mark.parametrize(
    "changes",
    [
        {"audience": "10.0.0.66:10915"},
        {"asked": ("DELETE", ASKED[1])},
        {"asked": ("PUT", "/api/v1/topics/U?x=1")},
        {"keys": [key_of(OTHER)]},
        {"keys": []},
    ],
)
def test_what_was_signed_for_something_else_counts_for_nothing(changes):
    challenges, signer = Challenges(numbered()), Signer(TOKEN, numbered())
    signed = signed_by(signer, challenges)
    assert accepted(challenges, signed, **changes) is None
    assert accepted(challenges, signed) == key_of(TOKEN)  # and is not used up by that


@pytest.mark.parametrize("field", ["nonce", "id", "body", "signature"])
def test_no_part_can_be_another(field):
    challenges, signer = Challenges(numbered()), Signer(TOKEN, numbered())
    signed = signed_by(signer, challenges)
    value = getattr(signed, field)
    other = ("0" if value[0] != "0" else "1") + value[1:]
    assert accepted(challenges, replace(signed, **{field: other})) is None


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        f"Bearer {TOKEN}",
        f'{SCHEME} nonce="{"1" * 31}"',
        f'{SCHEME} nonce="{"1" * 32}", id="{"1" * 32}", body="{"1" * 64}"',
        f'{SCHEME} nonce="{"g" * 32}", id="{"1" * 32}", body="{"1" * 64}", signature="{"1" * 64}"',
    ],
)
def test_what_is_no_signature(text):
    assert Signed.parse(text) is None


def test_ids_are_remembered_up_to_the_limit_and_then_everybody_signs_anew():
    challenges = Challenges(numbered(), ids_max=3)
    signer = Signer(TOKEN, numbered())
    first = signed_by(signer, challenges)
    shown = [first, *(signer.sign(HERE, *ASKED, BODY) for _ in range(2))]
    late = signer.sign(HERE, *ASKED, BODY)
    stranger = Signer("nobody-0123456789abcdef", numbered())
    for _ in range(10):  # only those that count are remembered
        assert accepted(challenges, signed_by(stranger, challenges)) is None
    assert [accepted(challenges, one) for one in shown] == [key_of(TOKEN)] * 3
    assert accepted(challenges, late) is None  # of the nonce before
    assert all(accepted(challenges, one) is None for one in shown)
    assert signer.challenged(HERE, challenges.header(), late)
    assert accepted(challenges, signer.sign(HERE, *ASKED, BODY)) == key_of(TOKEN)


def test_who_is_refused_does_not_ask_for_ever():
    challenges, signer = Challenges(numbered()), Signer(TOKEN, numbered())
    assert not signer.challenged(HERE, 'Bearer realm="raftmq"', None)
    assert signer.challenged(HERE, challenges.header(), None)
    assert signer.challenged(HERE, challenges.header(), None)  # two that asked at one time
    signed = signer.sign(HERE, *ASKED, BODY)
    assert not signer.challenged(HERE, challenges.header(), signed)  # it knows, and refuses


def test_nonces_are_remembered_of_so_many_servers():
    challenges, signer = Challenges(numbered()), Signer(TOKEN, numbered(), nonces_max=2)
    for address in ("a:1", "b:1", "a:1", "c:1"):
        signer.challenged(address, challenges.header(), None)
    known = {name: signer.sign(name, *ASKED, b"") is not None for name in ("a:1", "b:1", "c:1")}
    assert known == {"a:1": True, "b:1": False, "c:1": True}
