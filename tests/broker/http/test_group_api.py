"""The node APIs of a group of three, and of brokers that must not start as they are configured."""

import asyncio
import subprocess
from typing import Any

import orjson
import pytest

from raftmq.broker.errors import (
    ConditionUnmet,
    OutcomeUnknown,
    Refused,
    StateError,
    not_leader,
)
from raftmq.broker.http.api import translator
from raftmq.dledger.raft.errors import Busy, ChangeRefused, NotLeader
from raftmq.dledger.raft.errors import OutcomeUnknown as CommandOutcomeUnknown
from raftmq.remoting.codes import ResponseCode
from raftmq.web import operation
from tests.broker.cluster import Group
from tests.broker.http.client import Client
from tests.broker.http.process import command, tokens_file
from tests.present import present
from tests.waiting import until

PATIENCE_S = 240


async def events_until(response, wanted):
    """All events up to the first that `wanted` says yes to."""
    seen: list[Any] = []
    async with asyncio.timeout(PATIENCE_S):
        while not seen or not wanted(seen[-1]):
            text = (await response.content.readuntil(b"\n\n")).decode()
            data = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
            seen += [orjson.loads(one) for one in data]
    return seen


async def recovered(client):
    """The leader knows that all are: the last to start may be a while behind the first."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            members = (await client.get("/api/v1/members")).json["items"]
            if all(member["recovered"] and member["matchIndex"] > 0 for member in members):
                return
            await asyncio.sleep(0.02)


async def test_http_follower_names_the_leader_and_transfers_leadership(tmp_path):
    async with Group(tmp_path, 3) as group:
        first = await group.leader()
        leader = group.brokers[first]
        other = next(name for name in group.names if name != first)
        follower = group.brokers[other]
        await until(lambda: follower.context.leader_http() == leader.http.address)
        async with Client(follower.http.address) as client:
            assert (await client.get("/health/ready")).json["role"] == "follower"
            for answer in (
                await client.put("/api/v1/topics/T", {}, If_None_Match="*"),
                await client.post("/api/v1/node/transfer"),
            ):
                assert (answer.status, answer.code) == (503, "NOT_LEADER")
                assert answer.json["leaderHttpAddress"] == leader.http.address
                assert answer.headers["X-Leader-Http"] == leader.http.address
        async with Client(leader.http.address) as client, Client(follower.http.address) as there:
            made = await client.put("/api/v1/topics/T", {}, If_None_Match="*")
            await until(lambda: follower.state.topics.get("T") is not None)
            copy = await there.get("/api/v1/topics/T")
            assert copy.headers["ETag"] == made.headers["ETag"], "every replica gives the same"
            body = {"topic": "T", "body": "x"}
            assert (await there.post("/api/v1/messages", body)).code == "NOT_LEADER"
            await recovered(client)
            node = (await client.get("/api/v1/node")).json
            peers = {peer["id"]: peer for peer in node["peers"]}
            assert set(peers) == set(group.names) - {first}
            assert peers[other]["voter"] and peers[other]["matchIndex"] > 0
            members = (await client.get("/api/v1/members")).json["items"]
            assert {m["id"]: (m["role"], m["brokerId"]) for m in members} == {
                name: ("voter", 1 + int(name[1:])) for name in group.names
            }
            assert all(m["recovered"] is True and m["matchIndex"] > 0 for m in members)
            keys = ("id", "address", "role", "brokerId")
            assert node["members"] == [{key: m[key] for key in keys} for m in members]
            url = f"{client.base}/api/v1/events"
            headers = {"Last-Event-ID": "0-0"}
            async with client.session.get(url, headers=headers) as response:
                requested = await client.post("/api/v1/node/transfer", {"target": other})
                assert (requested.status, requested.json) == (202, {"target": other})
                await until(lambda: follower.roles.leading)
                seen = await events_until(
                    response,
                    lambda e: e["kind"] == "roleChanged" and e["detail"]["leader"] == other,
                )
        kinds = [event["kind"] for event in seen]
        assert "transfer" in kinds
        led = [e for e in seen if e["kind"] == "roleChanged" and e["detail"]["role"] == "leader"]
        assert led[-1]["detail"]["ready"] and led[-1]["node"] == first
        assert seen[-1]["term"] > led[-1]["term"]


async def test_http_change_without_a_majority_is_unknown_or_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(operation, "WRITE_LIMIT_MS", 1_000)
    async with Group(tmp_path, 3) as group:
        first = await group.leader()
        leader = group.brokers[first]
        for name in group.names:
            if name != first:
                await group.kill(name)
        async with Client(leader.http.address) as client:
            answer = await client.put("/api/v1/topics/T", {}, If_None_Match="*")
            assert (answer.status, answer.code) in ((504, "OUTCOME_UNKNOWN"), (503, "NOT_LEADER"))
            await until(lambda: not leader.roles.leading)
            ready = await client.get("/health/ready")
            assert (ready.status, ready.code) == (503, "NOT_READY")
            assert (await client.get("/health/live")).status == 200
            node = (await client.get("/api/v1/node")).json
            assert node["role"] != "leader" and not node["leaderReady"]


@pytest.mark.parametrize(
    ("error", "status", "problem"),
    [
        (not_leader(), 503, "NOT_LEADER"),
        (NotLeader("n1"), 503, "NOT_LEADER"),
        (OutcomeUnknown("who knows"), 504, "OUTCOME_UNKNOWN"),
        (CommandOutcomeUnknown("who knows"), 504, "OUTCOME_UNKNOWN"),
        (Refused(ResponseCode.SYSTEM_BUSY, "much", tag="BUSY"), 503, "BUSY"),
        (Busy("much"), 503, "BUSY"),
        (Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "full", tag="DISK_FULL"), 503, "DISK_FULL"),
        (Refused(ResponseCode.TOPIC_NOT_EXIST, "none"), 404, "NOT_FOUND"),
        (Refused(ResponseCode.SYSTEM_ERROR, "else"), 409, "REFUSED"),
        (ChangeRefused("not now"), 409, "REFUSED"),
        (ConditionUnmet("v2"), 412, "VERSION_MISMATCH"),
        (StateError("no sense"), 422, "INVALID"),
    ],
)
def test_http_problem_for_each_service_error(error, status, problem):
    result = present(translator(lambda: "h:1")(error))
    assert (result.status, result.code) == (status, problem)


async def test_http_is_not_served_when_disabled(tmp_path):
    async with Group(tmp_path, httpEnable="false") as group:
        broker = await group.leading()
        assert broker.http.address == ""


def test_http_on_a_public_address_without_tokens_does_not_start(tmp_path):
    for settings, text in (
        (["httpBindAddress=0.0.0.0"], b"not loopback: set httpTokensFile"),
        ([f"httpTokensFile={tokens_file(tmp_path / 'tokens', 0o644)}"], b"open to everybody"),
    ):
        done = subprocess.run(command(tmp_path, *settings), capture_output=True, timeout=PATIENCE_S)
        assert done.returncode == 2, done.stderr
        assert text in done.stderr


async def test_http_adds_and_removes_a_member(tmp_path):
    async with Group(tmp_path, 3) as group:
        first = await group.leader()
        other = next(name for name in group.names if name != first)
        follower = group.brokers[other]
        dead = {"id": "n9", "address": "127.0.0.1:1"}
        body = dead | {"force": True}
        await until(lambda: follower.members.watches)
        async with (
            Client(group.brokers[first].http.address) as client,
            Client(follower.http.address) as there,
        ):
            assert (await there.post("/api/v1/members", body)).code == "NOT_LEADER"
            absent = await client.post("/api/v1/members", dead)
            assert (absent.status, absent.code) == (409, "REFUSED")
            made = await client.post("/api/v1/members", body)
            assert (made.status, made.json["role"], made.json["brokerId"]) == (201, "learner", 4)
            for refused in (
                await client.post("/api/v1/members", body),
                await client.post("/api/v1/members/n9/promote"),
            ):
                assert (refused.status, refused.code) == (409, "REFUSED")
            assert (await client.delete("/api/v1/members/n8")).status == 404
            assert (await client.post("/api/v1/members/n8/promote")).status == 404
            assert (await client.delete("/api/v1/members/n9")).status == 204
            listed = (await client.get("/api/v1/members")).json["items"]
            assert {member["id"] for member in listed} == set(group.names)
            assert (await there.get("/api/v1/node")).json["membership"] == "voter"
            url, headers = f"{there.base}/api/v1/events", {"Last-Event-ID": "0-0"}
            async with there.session.get(url, headers=headers) as response:
                seen = await events_until(
                    response, lambda e: e["kind"] == "memberChanged" and len(_ids(e)) == 3
                )
        assert seen[-1]["node"] == other and set(_ids(seen[-1])) == set(group.names)


def _ids(event):
    return [member["id"] for member in event["detail"]["members"]]
