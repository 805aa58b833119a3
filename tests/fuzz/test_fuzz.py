"""Hostile input to real processes for seconds; for longer: `python -m tests.fuzz --minutes 60`."""

from __future__ import annotations

from raftmq.remoting.codec import FrameReader, decode_command
from raftmq.remoting.errors import RemotingProtocolError
from tests.fuzz import findings
from tests.fuzz.peerframes import is_readable
from tests.fuzz.plan import PORTS, SITUATIONS, steps
from tests.fuzz.run import Outcome, Scope, command_of, run
from tests.fuzz.samples import load
from tests.fuzz.situations import DEEDS
from tests.fuzz.values import field_names

MINUTES = 0.25  # with the world's start


def test_fuzzed_fields_are_those_that_servers_read():
    assert {"b", "topic", "queueId", "consumerGroup", "commitOrRollback"} <= set(field_names())


def test_fuzz_seed_gives_the_same_bytes_each_time():
    for port in PORTS:
        first = [(step, step.frames) for step in steps(3, port)]
        assert first == [(step, step.frames) for step in steps(3, port)]
        assert first != [(step, step.frames) for step in steps(4, port)]


def test_fuzz_seeds_reach_every_situation():
    for port in PORTS:
        assert set(SITUATIONS[port]) <= set(DEEDS)
        count = len(SITUATIONS[port])
        assert {steps(seed, port)[-1].what for seed in range(count)} == set(SITUATIONS[port])


def test_most_fuzzed_frames_pass_the_decoder():
    for port in ("broker", "names"):
        frames = [frame for step in steps(5, port) for frame in step.frames]
        decoded = 0
        for frame in frames:
            raw = FrameReader().split(frame)
            try:
                decoded += bool(raw and decode_command(raw[0]))
            except RemotingProtocolError:
                pass  # refused: as it should be
        assert len(frames) * 0.6 < decoded < len(frames) * 0.99
    messages = [message for step in steps(5, "raft") for message in step.frames]
    assert len(messages) * 0.2 < sum(map(is_readable, messages)) < len(messages)


def test_fuzz_samples_record_all_kinds_of_each_port():
    kinds = {port: {sample.kind for sample in samples} for port, samples in load().items()}
    assert {f"message {kind}" for kind in (1, 2, 3, 4, 5, 6, 7)} <= kinds["raft"]
    sends, pulls = {"request 310 0", "request 320 0"}, {"request 11 0", "request 361 0"}
    others = {"request 34 0", "request 36 0", "request 37 0", "request 15 0", "request 41 0"}
    assert sends | pulls | others <= kinds["broker"]
    assert {"request 103 0", "request 105 0"} <= kinds["names"]
    assert {"ha", "http", "nameshttp", "tls"} <= kinds.keys()


def test_fuzz_run_of_seconds_finds_nothing():
    """All ports; first what once was found."""
    kept = findings.load()
    outcome = run(Scope(1, PORTS), first=Scope(0, tuple(kept), given=kept), minutes=MINUTES)
    _nothing_found(outcome)
    assert set(outcome.sent) == set(PORTS)
    assert outcome.verified > 100


def _nothing_found(outcome: Outcome) -> None:
    assert outcome.finding is None, f"{outcome.finding}\nagain: {command_of(outcome.scope)}"
