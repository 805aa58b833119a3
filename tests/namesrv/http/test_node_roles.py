"""Through a name server a caller needs the role that the broker itself asks for."""

from __future__ import annotations

import re
from pathlib import Path

import aiohttp
import pytest

from raftmq.namesrv.http.proxy import role_at
from raftmq.web.operation import Role
from tests.broker.http.process import TOKENS
from tests.namesrv.http.test_trust import SHOWN, over

API = "/api/v1/"


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("GET", "topics/%25DLQ%25cg", Role.VIEWER),
        ("GET", "accounts", Role.ADMIN),
        ("GET", "%61ccounts", Role.ADMIN),
        ("GET", "topics/../accounts", Role.ADMIN),
        ("GET", "topics/a%2Fqueues", Role.VIEWER),  # a topic of that name
        ("GET", "what-a-newer-broker-tells", Role.ADMIN),
        ("POST", "messages/%72esend", Role.OPERATOR),
        ("POST", "messages/a%2Fb/resend", Role.OPERATOR),
        ("POST", "messages/", Role.ADMIN),
        ("POST", "consumer-groups/cg/remake", Role.ADMIN),
        ("PATCH", "preferred-leader", Role.ADMIN),
    ],
)
def test_forwarded_path_has_the_role_of_its_operation(method: str, path: str, role: Role) -> None:
    assert role_at(method, path) == role


async def test_every_forwarded_operation_needs_the_role_of_the_broker(tmp_path: Path) -> None:
    async with (
        over(tmp_path, TOKENS["admin"]) as (call, _, broker),
        aiohttp.ClientSession() as session,
    ):
        await call.until("/brokers/group-a/0/node", lambda node: node["leaderReady"])
        node = f"http://{broker.http.address}"

        async def refused(method: str, url: str) -> set[str]:
            """Return whose role is too low for this."""
            result = set()
            for role in ("viewer", "operator"):
                shown = {"Authorization": SHOWN[role]}
                async with session.request(method, url, headers=shown) as answer:
                    assert answer.status != 401, url
                    if answer.status == 403:
                        result.add(role)
            return result

        async with session.get(f"{node}{API}openapi.json") as answer:
            paths = (await answer.json())["paths"]
        requested = {}
        for path, methods in paths.items():
            filled = re.sub(r"\{\w+\}", "x", path)
            through = f"{call.url}{API}brokers/group-a/0/{filled.removeprefix(API).lstrip('/')}"
            for method in methods:
                at_broker = await refused(method.upper(), node + filled)
                requested[method.upper(), path] = at_broker, await refused(method.upper(), through)
        assert len(requested) > 50
        assert {one: roles for one, roles in requested.items() if roles[0] != roles[1]} == {}
        assert {len(at_broker) for at_broker, _ in requested.values()} == {0, 1, 2}
