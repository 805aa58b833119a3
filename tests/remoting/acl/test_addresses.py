"""White lists: what matches, and what is no address."""

import pytest

from raftmq.remoting.acl.addresses import AddressPatternError, parse_pattern

MATCHES = [
    ("*", "10.1.2.3", True),
    ("*.*.*.*", "2001:db8::1", True),
    ("", "10.1.2.3", False),
    ("10.10.103.7", "10.10.103.7", True),
    ("10.10.103.7", "10.10.103.70", False),
    ("10.10.103.7", "::ffff:10.10.103.7", True),
    ("10.10.103.7,10.10.103.9", "10.10.103.9", True),
    ("10.10.103.7,10.10.103.9", "10.10.103.8", False),
    ("10.10.103.{7,9}", "10.10.103.9", True),
    ("10.10.103.{7,9}", "10.10.103.79", False),
    ("10.10.103.*", "10.10.103.255", True),
    ("10.10.103.*", "10.10.104.1", False),
    ("10.10.*.*", "10.10.9.9", True),
    ("10.10.103.1-50", "10.10.103.1", True),
    ("10.10.103.1-50", "10.10.103.50", True),
    ("10.10.103.1-50", "10.10.103.51", False),
    ("10.10.1-50.*", "10.10.50.200", True),
    ("10.10.1-50.7", "10.10.50.8", False),
    ("2001:db8::7", "2001:db8:0:0:0:0:0:7", True),
    ("2001:DB8::7", "2001:db8::7", True),
    ("2001:db8::{7,9}", "2001:db8::9", True),
    ("2001:db8:*:*:*:*:*:*", "2001:db8:1:2:3:4:5:6", True),
    ("2001:db8::1-ff", "2001:db8::ff", True),
    ("2001:db8::1-ff", "2001:db8::100", False),
    ("2001:db8::7", "10.10.103.7", False),
    ("fe80::1", "fe80::1%eth0", True),
    ("10.10.103.7", "no address", False),
]


@pytest.mark.parametrize(("entry", "host", "expected"), MATCHES)
def test_white_address_patterns_match(entry, host, expected):
    assert parse_pattern(entry).matches(host) is expected


@pytest.mark.parametrize(
    "entry",
    ["10.10.103", "10.10.103.256", "10.10.103.50-1", "10.10.103.-5", "10.{1,2}.103.7", "broker-a",
     "10.10.103.{", "10.10.103.{}", "2001:db8", "2001:db8::1::2", "10.1.1.1,", "10.1.1.\u0661",
     ",".join(["10.1.1.1"] * 257)],
)  # fmt: skip
def test_malformed_white_address_is_rejected(entry):
    with pytest.raises(AddressPatternError):
        parse_pattern(entry)
