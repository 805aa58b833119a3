"""File descriptors: the limit is raised as far as it goes, and connections leave files theirs."""

import resource
import subprocess
import sys

import pytest

from raftmq.ops.descriptors import LIMIT_MAX, Ports, Shares, raise_descriptor_limit

BROKER = Ports(http=1, peers=80)
PROGRAM = """
import resource
from raftmq.ops.descriptors import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
assert raise_descriptor_limit() == 300
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, 300)
assert raise_descriptor_limit() == 300
"""


def test_soft_descriptor_limit_is_raised_to_the_hard_one():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_descriptor_limit_that_cannot_be_raised_is_logged(monkeypatch, caplog):
    def refused(*_):
        raise ValueError("not allowed to raise maximum limit")

    infinite = (256, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: infinite)
    monkeypatch.setattr(resource, "setrlimit", refused)
    assert raise_descriptor_limit() == 256
    assert f"descriptors_not_raised limit=256 wanted={LIMIT_MAX}" in caplog.text


@pytest.mark.parametrize(
    ("limit", "ports", "files", "clients"),
    [
        (LIMIT_MAX, BROKER, 1_000, 1_045_896),
        (65_536, BROKER, 600, 63_256),
        (1_024, BROKER, 200, 488),
        (1_024, Ports(), 0, 832),
        (256, BROKER, 100, 32),  # too few for all: an eighth
    ],
)
def test_descriptors_for_clients_are_the_remainder(limit, ports, files, clients):
    assert Shares(limit, ports).clients(files) == clients


@pytest.mark.parametrize("limit", [1_024, 4_096, 20_000, 65_536, LIMIT_MAX])
def test_all_descriptor_shares_stay_within_the_limit(limit):
    ports = Ports(http=2, tls=2, peers=144)
    shares = Shares(limit, ports)
    files = shares.files_cached + 10
    together = shares.clients(files) + files + ports.peers + shares.accepted_at_once
    together += 2 * shares.http + 2 * shares.arriving
    assert together <= limit
