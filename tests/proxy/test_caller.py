"""Callers, from metadata and gRPC's name of a peer."""

import pytest

from raftmq.proxy.caller import (
    access_key_of,
    client_id_of,
    host_of_peer,
    is_signed_by,
    language_of,
    metadata_of,
)
from raftmq.proxy.status_codes import StatusError
from raftmq.remoting.codes import LanguageCode

SIGNED = (
    "MQv2-HMAC-SHA1 Credential=key-one, SignedHeaders=x-mq-date-time, "
    "Signature=DE7C9B85B8B78AA6BC8A7A36F70A90701C9DB4D9"
)


@pytest.mark.parametrize(
    "peer, host",
    [
        ("ipv4:10.0.0.1:5000", "10.0.0.1"),
        ("ipv6:[::1]:5000", "::1"),
        ("ipv6:%5B::1%5D:5000", "::1"),
        ("unix:/tmp/x", ""),
        ("", ""),
    ],
)
def test_peer_address_is_parsed(peer, host):
    assert host_of_peer(peer) == host


def test_signature_metadata_are_parsed():
    key, signature = access_key_of({"authorization": SIGNED})
    assert key == "key-one"
    # HMAC-SHA1 of RFC 2202's well-known sentence.
    sentence = "The quick brown fox jumps over the lazy dog"
    assert is_signed_by("key", sentence, signature)
    assert is_signed_by("key", sentence, signature.lower())
    assert not is_signed_by("other", sentence, signature)
    assert access_key_of({"authorization": "Basic abc"}) == ("", "")
    assert access_key_of({}) == ("", "")


@pytest.mark.parametrize(
    "metadata", [{}, {"x-mq-client-id": "a\x01"}, {"x-mq-client-id": "a" * 300}]
)
def test_client_needs_an_id(metadata):
    with pytest.raises(StatusError):
        client_id_of(metadata)


def test_non_text_metadata_are_ignored():
    assert metadata_of([("a", "b"), ("c-bin", b"x")]) == {"a": "b"}
    assert metadata_of(None) == {}
    assert language_of({"x-mq-language": "RUST"}) is LanguageCode.RUST
    assert language_of({}) is LanguageCode.OTHER
