"""Sessions: made by one name server, accepted by another with the same tokens, and by no other."""

from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from raftmq.web.operation import Caller, Role
from raftmq.web.problem import ApiProblem
from raftmq.web.sessions import COOKIE, LASTS_S, Sessions, check_own_page
from tests.namesrv.http.nodes import FakeCluster, replicas

EVE = Caller("eve", Role.OPERATOR)
TOKEN = "operator-0123456789abcdef"


def tokens_file(path: Path, *tokens: str) -> str:
    listed = [{"token": one, "role": "operator", "name": "eve"} for one in tokens]
    path.write_bytes(orjson.dumps({"tokens": listed}))
    path.chmod(0o600)
    return str(path)


def test_session_is_valid_with_the_same_tokens_until_it_expires() -> None:
    one, two = {b"one": EVE}, {b"two": Caller("bob", Role.VIEWER)}
    value = Sessions(one | two).made(EVE, 1_000)
    assert Sessions(two | one).caller(value, 1_000) == EVE
    assert Sessions(two | one).caller(value, 1_000 + LASTS_S - 1) == EVE
    assert Sessions(two | one).caller(value, 1_000 + LASTS_S) is None
    assert Sessions(one).caller(value, 1_000) is None
    assert Sessions(one | two, "secret").caller(value, 1_000) is None


def test_session_forged_with_all_tokens_gets_no_higher_role() -> None:
    """They make the key. Only a secret that no caller knows lets a session be more."""
    callers, admin = {b"one": EVE}, Caller("eve", Role.ADMIN)
    forged = Sessions(callers).made(admin, 1_000)
    assert Sessions(callers).caller(forged, 1_000) is None
    assert Sessions(callers, "secret").caller(forged, 1_000) is None
    assert Sessions(callers, "secret").caller(Sessions(callers, "other").made(EVE, 1), 1) is None
    made = Sessions(callers, "secret").made(admin, 1_000)
    assert Sessions(callers, "secret").caller(made, 1_000) == admin


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value[:-1],
        lambda value: value + "0",
        lambda value: "x" + value,
        lambda value: value.partition(".")[0],
        lambda value: value.partition(".")[0] + ".",
        lambda value: "." + value.partition(".")[2],
        lambda value: value * 20,
        lambda value: "ü" + value,
        lambda value: "",
    ],
)
def test_modified_session_cookie_is_rejected(change: Any) -> None:
    sessions = Sessions({b"one": EVE})
    assert sessions.caller(change(sessions.made(EVE, 1)), 1) is None


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "http://ns:9881", "http://["]
)
def test_request_with_a_foreign_origin_changes_nothing_by_cookie(origin: str | None) -> None:
    check_own_page("http://ns:9880", "ns:9880")
    with pytest.raises(ApiProblem):
        check_own_page(origin, "ns:9880")


async def test_login_is_valid_at_every_name_server_with_the_same_tokens(tmp_path: Path) -> None:
    file = tokens_file(tmp_path / "tokens", TOKEN)
    other = tokens_file(tmp_path / "others", TOKEN, "another-0123456789abcdef")
    async with (
        FakeCluster(*replicas(), http_tokens_file=file) as first,
        FakeCluster(http_tokens_file=file) as second,
        FakeCluster(http_tokens_file=other) as third,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        api = f"{first.url}/api/v1"
        async with session.post(f"{api}/session", json={"token": "wrong-0123456789abcd"}) as no:
            assert no.status == 401
        async with session.post(f"{api}/session", json={"token": TOKEN}) as started:
            assert started.status == 200
            assert (await started.json())["role"] == "operator"
            (cookie,) = started.headers.getall("Set-Cookie")
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and TOKEN not in cookie
        shown = {"Cookie": cookie.partition(";")[0]}

        async def status(url: str, method: str = "GET", **more: str) -> int:
            headers = {**shown, **more}
            async with session.request(method, url, headers=headers, json={}) as answer:
                return answer.status

        assert await status(f"{api}/whoami") == 200
        assert await status(f"{second.url}/api/v1/whoami") == 200
        assert await status(f"{third.url}/api/v1/whoami") == 401
        pause = f"{api}/consumer-groups/G/pause"
        assert await status(pause, "POST") == 403  # not asked for by a page of this server
        assert await status(pause, "POST", Origin="http://evil.example") == 403
        # Allowed; the brokers of this test have no such group.
        assert await status(pause, "POST", Origin=first.url) == 404
        assert await status(f"{api}/topics/T", "DELETE", Origin=first.url) == 403  # no admin
        async with session.delete(f"{api}/session", headers=shown) as ended:
            assert (ended.status, f"{COOKIE}=;" in ended.headers["Set-Cookie"]) == (204, True)


async def test_login_is_rejected_where_every_caller_is_admin() -> None:
    async with FakeCluster(*replicas()) as cluster, aiohttp.ClientSession() as session:
        url = f"{cluster.url}/api/v1/session"
        async with session.post(url, json={"token": TOKEN}) as answer:
            assert (answer.status, (await answer.json())["code"]) == (409, "OPEN")
