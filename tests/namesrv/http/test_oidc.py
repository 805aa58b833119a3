"""Logins with accounts of an OpenID provider: who gets in, as what, and who does not."""

import asyncio
import time
from collections.abc import Callable
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec

from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.http import login_throttle as exchanges
from raftmq.namesrv.http import oidc
from raftmq.namesrv.http.oidc import LoginFailed, OidcSettings, caller_of, roles_of
from raftmq.web.operation import Caller, Role
from raftmq.web.sessions import COOKIE
from raftmq.web.settings import WebConfigError
from tests.namesrv.http.nodes import FakeCluster
from tests.namesrv.http.provider import ALICE, CLIENT, SECRET, Provider
from tests.namesrv.http.test_login import TOKEN, tokens_file
from tests.waiting import until

Settings = dict[str, Any]


def secret_file(path: Path) -> str:
    path.write_text(SECRET)
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return {
        "http_tokens_file": tokens_file(tmp_path / "tokens", TOKEN),
        "oidc_client_id": CLIENT,
        "oidc_client_secret_file": secret_file(tmp_path / "secret"),
        "oidc_roles": "viewer=staff; operator=ops; admin=platform team",
    }


class Visitor:
    """A browser as far as a login needs one."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self.cookies: dict[str, str] = {}
        self.lines: list[str] = []  # that set or took back a cookie

    async def get(self, url: str) -> tuple[int, str, Any]:
        """Return status, Location and JSON of an answer."""
        shown = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        async with self._session.get(
            url, headers={"Cookie": shown}, allow_redirects=False
        ) as answer:
            for line in answer.headers.getall("Set-Cookie", []):
                self.lines.append(line)
                for name, morsel in SimpleCookie(line).items():
                    assert morsel["httponly"]
                    self.cookies[name] = morsel.value
                    if not morsel.value:
                        del self.cookies[name]
            is_json = "json" in answer.content_type
            value = await answer.json(content_type=None) if is_json else None
            return answer.status, answer.headers.get("Location", ""), value


@pytest.fixture
async def visitor() -> Any:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield Visitor(session)


async def logged_in(visitor: Visitor, provider: Provider, url: str, **changed: str) -> str:
    """Log in; return where the browser ends."""
    status, page, _ = await visitor.get(f"{url}/api/v1/session/oidc")
    assert status == 302
    if not page.startswith(provider.url):
        return page
    back = provider.let_in(page)
    for old, new in changed.items():
        back = back.replace(f"{old}=", f"{new}&old_{old}=")
    status, position, _ = await visitor.get(back)
    assert status == 302
    return position


async def test_oidc_login_is_valid_at_every_name_server(
    settings: Settings, visitor: Visitor
) -> None:
    async with (
        Provider() as provider,
        FakeCluster(**settings, oidc_issuer=provider.url) as first,
        FakeCluster(**settings, oidc_issuer=provider.url) as second,
    ):
        _, _, ways = await visitor.get(f"{first.url}/api/v1/session")
        assert ways == {"token": True, "oidc": True}
        assert await logged_in(visitor, provider, first.url) == "/"
        assert visitor.cookies.keys() == {COOKIE}  # the login's own is over
        for cluster in (first, second):
            status, _, me = await visitor.get(f"{cluster.url}/api/v1/whoami")
            assert (status, me) == (200, {"name": "oidc:alice", "role": "operator"})
        # Begun at one, ended at another: behind one address there may be both.
        visitor.cookies.clear()
        _, page, _ = await visitor.get(f"{first.url}/api/v1/session/oidc")
        back = provider.let_in(page.replace(first.url[7:], second.url[7:]))
        _, position, _ = await visitor.get(back)
        assert position == "/" and COOKIE in visitor.cookies


async def test_oidc_cookies_are_secure_behind_https(settings: Settings, visitor: Visitor) -> None:
    """A proxy ends TLS, as `oidcRedirectUri` says; both ways of logging in go by that."""
    host = "https://mq.example"
    settings["oidc_redirect_uri"] = f"{host}/api/v1/session/oidc/callback"
    async with (
        Provider() as provider,
        FakeCluster(**settings, oidc_issuer=provider.url) as cluster,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        _, page, _ = await visitor.get(f"{cluster.url}/api/v1/session/oidc")
        back = provider.let_in(page)
        assert back.startswith(host)
        assert (await visitor.get(back.replace(host, cluster.url)))[1] == "/"
        assert visitor.cookies.keys() == {f"__Host-{COOKIE}"}
        assert all("Secure" in line for line in visitor.lines) and len(visitor.lines) == 3
        whoami = f"{cluster.url}/api/v1/whoami"
        assert (await visitor.get(whoami))[0] == 200
        visitor.cookies = {COOKIE: visitor.cookies[f"__Host-{COOKIE}"]}  # anybody's to set
        assert (await visitor.get(whoami))[0] == 401
        async with session.post(f"{cluster.url}/api/v1/session", json={"token": TOKEN}) as started:
            (cookie,) = started.headers.getall("Set-Cookie")
        assert cookie.startswith(f"__Host-{COOKIE}=") and cookie.endswith("; Secure")
        assert "; Path=/;" in cookie and "Domain" not in cookie


async def test_oidc_login_belongs_to_one_browser_and_ends_once(
    settings: Settings, visitor: Visitor
) -> None:
    async with (
        Provider() as provider,
        FakeCluster(**settings, oidc_issuer=provider.url) as cluster,
    ):
        _, page, _ = await visitor.get(f"{cluster.url}/api/v1/session/oidc")
        back, kept = provider.let_in(page), dict(visitor.cookies)
        visitor.cookies.clear()
        assert (await visitor.get(back))[1] == "/?login=again"  # somebody else's link
        visitor.cookies.update(kept)
        wrong = back.replace("&state=", "&state=x")
        assert (await visitor.get(wrong))[1] == "/?login=again"
        visitor.cookies = {oidc.LOGIN_COOKIE: kept[oidc.LOGIN_COOKIE][:-1] + "x"}
        assert (await visitor.get(back))[1] == "/?login=again"
        assert "/token" not in provider.requested
        visitor.cookies = dict(kept)
        assert (await visitor.get(back))[1] == "/"
        visitor.cookies = dict(kept)
        assert (await visitor.get(back))[1] == "/?login=again"
        assert provider.requested.count("/token") == 1  # for a login, whatever codes it shows
        # What signs sessions signs no login, and the other way round.
        visitor.cookies = {COOKIE: kept[oidc.LOGIN_COOKIE]}
        assert (await visitor.get(f"{cluster.url}/api/v1/whoami"))[0] == 401


def with_claims(**changes: Any) -> Callable[[Provider], None]:
    return lambda provider: provider.claims.update(changes)


def signed_by_another(provider: Provider) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    provider.sign = lambda claims: jwt.encode(claims, key, "ES256", headers={"kid": "one"})


def signed_with(algorithm: str, key: str) -> Callable[[Provider], None]:
    def change(provider: Provider) -> None:
        provider.sign = lambda claims: jwt.encode(claims, key, algorithm, headers={"kid": "one"})

    return change


def without(claim: str) -> Callable[[Provider], None]:
    def change(provider: Provider) -> None:
        sign = provider.sign
        provider.sign = lambda claims: sign({k: v for k, v in claims.items() if k != claim})

    return change


def answers(path: str, said: Any) -> Callable[[Provider], None]:
    return lambda provider: provider.said.update({path: said})


async def in_vain(_: web.Request) -> web.Response:
    return web.json_response({"error": "invalid_client"}, status=401)


async def for_ever(_: web.Request) -> web.Response:
    await asyncio.sleep(600)
    return web.Response()


ABOUT, NOW = "/.well-known/openid-configuration", int(time.time())


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (with_claims(nonce="another"), "token"),
        (with_claims(aud="another"), "token"),
        (with_claims(aud=[CLIENT, "another"], azp="another"), "token"),
        (with_claims(iss="https://another.example"), "token"),
        (with_claims(exp=NOW - 3600), "token"),
        (with_claims(iat=NOW + 360_000), "token"),
        (without("exp"), "token"),
        (without("aud"), "token"),
        (without("nonce"), "token"),
        (without("sub"), "token"),
        (signed_by_another, "token"),
        (signed_with("HS256", SECRET * 2), "token"),
        (signed_with("none", ""), "token"),
        (lambda provider: setattr(provider, "sign", lambda _: "no.token"), "token"),
        (lambda provider: setattr(provider, "sign", lambda _: None), "provider"),
        (answers("/token", in_vain), "provider"),
        (answers("/token", b"[]"), "provider"),
        (answers("/token", b"<html>"), "provider"),
        (answers("/token", b" " * (2 << 20)), "provider"),
        (answers("/token", for_ever), "provider"),
        (answers("/keys", b"{}"), "token"),
        (answers("/keys", b'{"keys":[7,{"kid":"one","kty":"??"}]}'), "token"),
        (answers("/keys", b'{"keys":7}'), "token"),
        (answers(ABOUT, b'{"issuer":"https://another.example"}'), "provider"),
        (answers(ABOUT, for_ever), "provider"),
        (with_claims(groups=["guests"]), "role"),
        (with_claims(groups=None), "role"),
    ],
)
async def test_oidc_login_without_a_proven_role_gets_no_session(
    settings: Settings,
    visitor: Visitor,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Provider], None],
    code: str,
) -> None:
    if change.__closure__ and for_ever in [cell.cell_contents for cell in change.__closure__]:
        monkeypatch.setattr(oidc, "TIMEOUT_S", 0.2)
    async with (
        Provider() as provider,
        FakeCluster(**settings, oidc_issuer=provider.url) as cluster,
    ):
        change(provider)
        assert await logged_in(visitor, provider, cluster.url) == f"/?login={code}"
        assert COOKIE not in visitor.cookies


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"code": "error=access_denied"}, "refused"),
        ({"code": "iss=https://another.example"}, "token"),
    ],
)
async def test_oidc_errors_in_the_redirect_are_reported(
    settings: Settings, visitor: Visitor, changed: dict[str, str], code: str
) -> None:
    async with (
        Provider() as provider,
        FakeCluster(**settings, oidc_issuer=provider.url) as cluster,
    ):
        assert await logged_in(visitor, provider, cluster.url, **changed) == f"/?login={code}"
        assert "/token" not in provider.requested


async def test_oidc_secret_is_sent_by_the_providers_method(
    settings: Settings, visitor: Visitor
) -> None:
    async with (
        Provider() as provider,
        FakeCluster(**settings, oidc_issuer=provider.url) as cluster,
    ):
        provider.methods = ["client_secret_post"]
        assert await logged_in(visitor, provider, cluster.url) == "/"


async def test_malformed_host_header_is_rejected_by_the_oidc_login(settings: Settings) -> None:
    async with (
        Provider() as provider,
        FakeCluster(**settings, oidc_issuer=provider.url) as cluster,
    ):
        reader, writer = await asyncio.open_connection(*cluster.url[7:].split(":"))
        writer.write(b"GET /api/v1/session/oidc HTTP/1.1\r\nHost: \xff.example\r\n\r\n")
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 500 " not in answer and provider.url.encode() not in answer
        writer.close()


async def test_oidc_provider_keys_may_change(
    settings: Settings, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        Provider() as provider,
        FakeCluster(**settings, oidc_issuer=provider.url) as cluster,
    ):
        assert await logged_in(visitor, provider, cluster.url) == "/"
        provider.key, provider.key_id = ec.generate_private_key(ec.SECP256R1()), "two"
        for _ in range(3):  # unknown keys have the keys asked for now and then only
            assert await logged_in(visitor, provider, cluster.url) == "/?login=token"
        assert provider.requested.count("/keys") == provider.requested.count(ABOUT) == 1
        monkeypatch.setattr(oidc, "KEYS_AGAIN_S", 0)
        assert await logged_in(visitor, provider, cluster.url) == "/"


async def test_concurrent_oidc_logins_are_limited(
    settings: Settings, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login beyond the limit is refused, and can go on later."""
    monkeypatch.setattr(exchanges, "EXCHANGES_MAX", 1)
    held = asyncio.Event()
    async with (
        Provider() as provider,
        FakeCluster(**settings, oidc_issuer=provider.url) as cluster,
    ):

        async def hold(_: web.Request) -> web.Response:
            await held.wait()
            return web.Response(body=b"{}")

        async def begun() -> tuple[str, str]:
            _, page, _ = await visitor.get(f"{cluster.url}/api/v1/session/oidc")
            return provider.let_in(page), visitor.cookies.pop(oidc.LOGIN_COOKIE)

        provider.said["/token"] = hold
        back, visitor.cookies[oidc.LOGIN_COOKIE] = await begun()
        first = asyncio.create_task(visitor.get(back))
        await until(lambda: "/token" in provider.requested)
        back, visitor.cookies[oidc.LOGIN_COOKIE] = await begun()
        assert (await visitor.get(back))[1] == "/?login=busy"
        assert oidc.LOGIN_COOKIE in visitor.cookies
        kept = dict(visitor.cookies)
        del provider.said["/token"]
        held.set()
        assert (await first)[1] == "/?login=provider"
        visitor.cookies = kept
        assert (await visitor.get(back))[1] == "/"


async def test_oidc_login_without_a_provider_is_not_found(visitor: Visitor) -> None:
    async with FakeCluster() as cluster:
        assert (await visitor.get(f"{cluster.url}/api/v1/session/oidc"))[0] == 404
        _, _, ways = await visitor.get(f"{cluster.url}/api/v1/session")
        assert ways == {"token": False, "oidc": False}


ISSUER = "https://id.example/realms/x"


@pytest.fixture
def secret(tmp_path: Path) -> str:
    return secret_file(tmp_path / "secret")


def settings_for(secret: str, **changes: Any) -> OidcSettings:
    given = {"http_tokens_file": "t", "oidc_issuer": ISSUER, "oidc_client_id": "c"}
    given |= {"oidc_client_secret_file": secret, "oidc_roles": "viewer=*"}
    return OidcSettings.of(NameServerConfig(**given | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"oidc_issuer": "http://id.example"}, "oidcIssuer=http://id.example is no https"),
        ({"oidc_issuer": "id.example"}, "is no https"),
        ({"oidc_issuer": "https://["}, "is no https"),
        ({"oidc_redirect_uri": "http://console.example/"}, "oidcRedirectUri"),
        ({"http_tokens_file": ""}, "needs httpTokensFile"),
        ({"oidc_client_id": ""}, "needs oidcClientId"),
        ({"oidc_client_secret_file": ""}, "needs oidcClientSecretFile"),
        ({"oidc_client_secret_file": "/nowhere"}, "oidcClientSecretFile=/nowhere"),
        ({"oidc_roles": ""}, "needs oidcRoles"),
        ({"oidc_roles": "root=*"}, "'root=.*' is not viewer"),
        ({"oidc_roles": "admin="}, "'admin=' is not viewer"),
    ],
)
def test_invalid_oidc_settings_are_rejected(secret: str, changes: Settings, words: str) -> None:
    with pytest.raises(WebConfigError, match=words):
        settings_for(secret, **changes)


def test_missing_oidc_ca_file_is_rejected(tmp_path: Path, secret: str) -> None:
    with pytest.raises(WebConfigError, match="oidcCaFile"):
        oidc.Provider(settings_for(secret, oidc_ca_file=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("changes", "claims", "expected"),
    [
        ({}, {}, Caller("oidc:alice", Role.VIEWER)),
        ({"oidc_roles": "viewer=*;admin=ops"}, {}, Caller("oidc:alice", Role.ADMIN)),
        ({"oidc_roles": "admin=ops;viewer=*"}, {"groups": "ops"}, Caller("oidc:alice", Role.ADMIN)),
        ({"oidc_roles": "admin=op"}, {}, None),  # part of a value is not the value
        ({"oidc_roles": "admin=None"}, {"groups": None}, None),
        (
            {"oidc_roles": "operator=on call", "oidc_roles_claim": "realm_access.roles"},
            {"realm_access": {"roles": ["on call"]}},
            Caller("oidc:alice", Role.OPERATOR),
        ),
        ({"oidc_roles": "admin=x", "oidc_roles_claim": "groups.roles"}, {}, None),
        (
            {"oidc_roles": "operator=x", "oidc_roles_claim": "https://a.example/roles"},
            {"https://a.example/roles": ["x"]},
            Caller("oidc:alice", Role.OPERATOR),
        ),
        (
            {"oidc_roles": "operator=x", "oidc_roles_claim": "project:roles"},
            {"project:roles": {"x": {"1": "a.example"}}},
            Caller("oidc:alice", Role.OPERATOR),
        ),
        ({"oidc_name_claim": "email"}, {"email": "a@x"}, Caller("oidc:a@x", Role.VIEWER)),
        ({"oidc_name_claim": "email"}, {}, Caller("oidc:7", Role.VIEWER)),
        ({}, {"preferred_username": "a\nb"}, Caller("oidc:7", Role.VIEWER)),
        ({}, {"preferred_username": "a" * 500}, Caller("oidc:" + "a" * 100, Role.VIEWER)),
    ],
)
def test_oidc_claims_give_a_role(
    secret: str, changes: Settings, claims: Settings, expected: Caller | None
) -> None:
    settings = settings_for(secret, **changes)
    if expected is None:
        with pytest.raises(LoginFailed) as refused:
            caller_of(ALICE | claims, settings)
        assert refused.value.code == "role"
    else:
        assert caller_of(ALICE | claims, settings) == expected


def test_oidc_roles_are_listed_with_semicolons() -> None:
    assert roles_of(" admin = Domain Admins ;viewer=*;") == (
        ("Domain Admins", Role.ADMIN),
        ("*", Role.VIEWER),
    )
