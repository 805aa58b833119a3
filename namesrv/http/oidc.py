"""Login to the dashboard with OpenID Connect (Core 1.0).

This is the authorization code flow with PKCE (RFC 7636).

    GET /api/v1/session/oidc            redirects to the provider and sets the login's cookie
    GET /api/v1/session/oidc/callback   exchanges the provider's code for an ID token and sets
                                        the session's cookie (web.sessions)

The login's state, nonce and verifier are in its signed cookie, so the callback may reach any name
server with the same tokens file. PyJWT verifies the ID token's signature and claims; the nonce is
checked here. A failed login redirects to the page with the reason (`?login=CODE`).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import jwt
import orjson
from aiohttp import web

from raftmq.web.app import RawRoute
from raftmq.web.auth import ROLES, load_token
from raftmq.web.operation import Caller, Role
from raftmq.web.sessions import Cookie, Sessions
from raftmq.web.settings import WebConfigError, is_loopback

from ..config import NameServerConfig
from .broker_http import read_within
from .login_throttle import Exchanges, NoExchange

log = logging.getLogger("raftmq.namesrv.oidc")

PATH = "/api/v1/session/oidc"
LOGIN_COOKIE = "raftmq_oidc"
LOGIN_LASTS_S = 600
PURPOSE = "oidc"  # of the login's cookie
BUSY = "busy"  # the code of a login that may be repeated
NAME_PREFIX = "oidc:"  # separates the provider's names from those of the tokens file
NAME_LENGTH_MAX = 100
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512",
              "EdDSA"]  # fmt: skip
LEEWAY_S = 60  # between the provider's clock and ours
TIMEOUT_S = 9.0  # for all requests to the provider within an answer
ANSWER_BYTES_MAX = 1 << 20
KNOWN_FOR_S = 3600  # lifetime of the provider's metadata
KEYS_AGAIN_S = 30  # minimum time between requests for unknown keys
EVERYBODY = "*"
METHODS_KEY = "token_endpoint_auth_methods_supported"  # basic by default (RFC 6749, 2.3.1)


class LoginFailed(Exception):
    """A failed login, with a `code` for the page and a text for the log."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """The validated configuration keys oidc…."""

    issuer: str
    client_id: str
    client_secret: str
    roles: tuple[tuple[str, Role], ...]  # claim value → role
    roles_claim: str
    name_claim: str
    scopes: str
    redirect_uri: str
    ca_file: str

    @classmethod
    def of(cls, config: NameServerConfig) -> OidcSettings:
        """Read and check the settings. Raises WebConfigError."""
        _check_url("oidcIssuer", config.oidc_issuer)
        if config.oidc_redirect_uri:
            _check_url("oidcRedirectUri", config.oidc_redirect_uri)
        if not config.http_tokens_file:
            raise WebConfigError("oidcIssuer needs httpTokensFile: programs show a token")
        if not config.oidc_client_id:
            raise WebConfigError("oidcIssuer needs oidcClientId, as registered at the provider")
        if not config.oidc_client_secret_file:
            raise WebConfigError(
                "oidcIssuer needs oidcClientSecretFile: tokens alone must not sign sessions, whose"
                " holders could make one of anybody"
            )
        return cls(
            config.oidc_issuer,
            config.oidc_client_id,
            load_token(Path(config.oidc_client_secret_file), "oidcClientSecretFile"),
            roles_of(config.oidc_roles),
            config.oidc_roles_claim,
            config.oidc_name_claim,
            config.oidc_scopes,
            config.oidc_redirect_uri,
            config.oidc_ca_file,
        )


def roles_of(text: str) -> tuple[tuple[str, Role], ...]:
    """Parse `oidcRoles`, `role=value` separated by semicolons. Raises WebConfigError."""
    result = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        role, _, value = part.partition("=")
        if role.strip() not in ROLES or not value.strip():
            raise WebConfigError(f"oidcRoles: {part!r} is not viewer=…, operator=… or admin=…")
        result.append((value.strip(), ROLES[role.strip()]))
    if not result:
        raise WebConfigError("oidcIssuer needs oidcRoles, e.g. admin=platform;viewer=*")
    return tuple(result)


def caller_of(claims: Mapping[str, Any], settings: OidcSettings) -> Caller:
    """Return the caller of an ID token's claims. Raises LoginFailed."""
    result: Any = claims.get(settings.roles_claim)  # a URL at Auth0
    if settings.roles_claim not in claims:
        result = claims
        for name in settings.roles_claim.split("."):  # realm_access.roles at Keycloak
            result = result.get(name) if isinstance(result, Mapping) else None
    values = list(result) if isinstance(result, list | Mapping) else [result]  # keys at Zitadel
    reported = claims.get(settings.name_claim)
    is_name = isinstance(reported, str) and reported.isprintable() and reported.strip()
    name = str(reported if is_name else claims["sub"])
    role = max(
        (role for value, role in settings.roles if value == EVERYBODY or value in values),
        default=None,
    )
    if role is None:
        raise LoginFailed("role", f"{name!r} has no role by {settings.roles_claim}={result!r:.200}")
    return Caller(NAME_PREFIX + name[:NAME_LENGTH_MAX], role)


class Provider:
    """The OpenID provider, for a single loop. Call `close` at the end."""

    def __init__(self, settings: OidcSettings) -> None:
        """Raises WebConfigError for an unreadable CA file."""
        self._settings = settings
        try:
            self._tls = ssl.create_default_context(cafile=settings.ca_file or None)
        except OSError as error:
            raise WebConfigError(f"oidcCaFile={settings.ca_file}: {error}") from error
        self._session: aiohttp.ClientSession | None = None
        self._asking = asyncio.Lock()
        self._about: dict[str, Any] = {}
        self._about_at = -float(KNOWN_FOR_S)  # of the monotonic clock
        self._keys: dict[str, Any] = {}  # by key id
        self._keys_at = -float(KNOWN_FOR_S)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def url_for(self, **parameters: str) -> str:
        """Return the provider's login page. Raises LoginFailed."""
        about = await self._known()
        requested = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "scope": self._settings.scopes,
            "code_challenge_method": "S256",
            **parameters,
        }
        page = str(about["authorization_endpoint"])
        return f"{page}{'&' if '?' in page else '?'}{urlencode(requested)}"

    async def claims(self, code: str, verifier: str, redirect_uri: str, nonce: str) -> Any:
        """Exchange the code for an ID token and return its verified claims. Raises LoginFailed."""
        about, settings = await self._known(), self._settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        headers = {"Accept": "application/json"}
        if "client_secret_basic" in (about.get(METHODS_KEY) or ["client_secret_basic"]):
            pair = f"{quote(settings.client_id, '')}:{quote(settings.client_secret, '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": settings.client_id, "client_secret": settings.client_secret}
        answer = await self._ask("POST", str(about["token_endpoint"]), data=form, headers=headers)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise LoginFailed("provider", "the provider's answer has no id_token")
        try:
            header = jwt.get_unverified_header(token)
            if header["alg"] not in ALGORITHMS:
                raise LoginFailed("token", f"the ID token is signed with {header['alg']!r:.20}")
            key = jwt.PyJWK(await self._key(str(header.get("kid", ""))), algorithm=header["alg"])
            claims = jwt.decode(
                token, key, algorithms=ALGORITHMS, audience=settings.client_id,
                issuer=settings.issuer, leeway=LEEWAY_S,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )  # fmt: skip
        except (jwt.PyJWTError, KeyError, TypeError, ValueError) as error:
            raise LoginFailed("token", f"the ID token is refused: {error}") from error
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise LoginFailed("token", "the ID token is of another login")
        if claims.get("azp", settings.client_id) != settings.client_id:
            raise LoginFailed("token", f"the ID token is for {claims['azp']!r:.100}")
        return claims

    async def _known(self) -> dict[str, Any]:
        """Return the provider's metadata. Raises LoginFailed."""
        async with self._asking:
            if time.monotonic() - self._about_at < KNOWN_FOR_S:
                return self._about
            issuer = self._settings.issuer
            url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
            about = await self._ask("GET", url)
            if about.get("issuer") != issuer:
                raise LoginFailed("provider", f"{url} is of issuer {about.get('issuer')!r:.200}")
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                try:
                    _check_url(name, str(about.get(name, "")))
                except WebConfigError as error:
                    raise LoginFailed("provider", f"{url}: {error}") from error
            self._about, self._about_at = about, time.monotonic()
            return about

    async def _key(self, key_id: str) -> Any:
        """Return a key of the provider as JWK. Raises KeyError, LoginFailed."""
        url = str((await self._known())["jwks_uri"])
        async with self._asking:
            age = time.monotonic() - self._keys_at
            if age >= KNOWN_FOR_S or (key_id not in self._keys and age >= KEYS_AGAIN_S):
                keys = (await self._ask("GET", url)).get("keys")
                result = [item for item in keys if isinstance(item, dict)] if keys else []
                self._keys = {str(item.get("kid", "")): item for item in result}
                self._keys_at = time.monotonic()
            return self._keys[key_id]

    async def _ask(self, method: str, url: str, **more: Any) -> dict[str, Any]:
        """Return the JSON object of an answer. Raises LoginFailed."""
        if self._session is None:
            jar = aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(cookie_jar=jar, trust_env=True)  # HTTPS_PROXY
        try:
            async with self._session.request(
                method, url, allow_redirects=False, ssl=self._tls, **more
            ) as answer:
                data = await read_within(answer, ANSWER_BYTES_MAX)
            reported = orjson.loads(data)
        except (aiohttp.ClientError, orjson.JSONDecodeError) as error:
            text = " ".join(str(error).split())[:200]
            raise LoginFailed("provider", f"{url}: {type(error).__name__} {text}") from error
        if answer.status != 200 or not isinstance(reported, dict):
            why = str(reported.get("error", ""))[:100] if isinstance(reported, dict) else ""
            raise LoginFailed("provider", f"{url} answers {answer.status} {why}")
        return reported


class OidcLogin:
    """The two routes. `cookie` is a session's."""

    def __init__(self, settings: OidcSettings, sessions: Sessions, cookie: Cookie) -> None:
        """Raises WebConfigError."""
        self._settings = settings
        self._sessions = sessions
        self._provider = Provider(settings)
        self._scheme = "https" if cookie.is_https else "http"
        # Lax, because the provider's page links back.
        self._login_cookie = Cookie(LOGIN_COOKIE, LOGIN_LASTS_S, cookie.is_https, PATH, "Lax")
        self._cookie = cookie
        self._exchanges = Exchanges(LOGIN_LASTS_S)

    def routes(self) -> list[RawRoute]:
        return [
            RawRoute("GET", PATH, self._start, _nobody),
            RawRoute("GET", f"{PATH}/callback", self._end, _nobody),
        ]

    async def close(self) -> None:
        await self._provider.close()

    async def _start(self, request: web.Request, _: Caller) -> web.StreamResponse:
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        digest = hashlib.sha256(verifier.encode()).digest()
        try:
            async with _in_time():
                page = await self._provider.url_for(
                    state=state,
                    nonce=nonce,
                    code_challenge=base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
                    redirect_uri=self._redirect_uri(request),
                )
        except LoginFailed as failed:
            return self._failed(failed)
        login = {"state": state, "nonce": nonce, "verifier": verifier}
        sealed = self._sessions.sealed(PURPOSE, login, int(time.time()) + LOGIN_LASTS_S)
        return _sent_to(page, self._login_cookie.holding(sealed))

    async def _end(self, request: web.Request, _: Caller) -> web.StreamResponse:
        try:
            caller = await self._caller(request)
        except LoginFailed as failed:
            return self._failed(failed)
        log.info("oidc_login name=%s role=%s", caller.name, caller.role.name.lower())
        value = self._sessions.made(caller, int(time.time()))
        return _sent_to("/", self._cookie.holding(value), self._login_cookie.removed())

    async def _caller(self, request: web.Request) -> Caller:
        """Return the caller of the login that this request completes. Raises LoginFailed."""
        shown, query = request.cookies.get(LOGIN_COOKIE, ""), request.query
        login = self._sessions.opened(PURPOSE, shown, int(time.time()))
        state = query.get("state", "")
        if login is None or not hmac.compare_digest(str(login["state"]).encode(), state.encode()):
            raise LoginFailed("again", "no login of this browser is under way")
        if query.get("iss", self._settings.issuer) != self._settings.issuer:  # RFC 9207
            raise LoginFailed("token", f"the answer is of the issuer {query['iss']!r:.200}")
        if "error" in query:
            reported = f"{query['error']} {query.get('error_description', '')}"
            raise LoginFailed("refused", f"the provider refuses: {reported!r:.200}")
        redirect_uri = self._redirect_uri(request)
        try:
            with self._exchanges.one(state, request.remote or ""):
                async with _in_time():
                    code, verifier = query.get("code", ""), str(login["verifier"])
                    claims = await self._provider.claims(
                        code, verifier, redirect_uri, str(login["nonce"])
                    )
        except NoExchange as error:
            raise LoginFailed(BUSY if error.for_now else "again", str(error)) from error
        return caller_of(claims, self._settings)

    def _redirect_uri(self, request: web.Request) -> str:
        """Return the registered target of the provider's redirect. Raises LoginFailed."""
        if not request.host.isascii():
            raise LoginFailed("again", "the Host header is no host")
        return self._settings.redirect_uri or f"{self._scheme}://{request.host}{PATH}/callback"

    def _failed(self, failed: LoginFailed) -> web.StreamResponse:
        log.warning("oidc_login_failed code=%s: %s", failed.code, failed,
                    extra={"from_peer": True})  # fmt: skip
        ended = [] if failed.code == BUSY else [self._login_cookie.removed()]
        return _sent_to(f"/?login={failed.code}", *ended)


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    """Raise LoginFailed after TIMEOUT_S."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield
    except TimeoutError as error:
        raise LoginFailed("provider", f"no answer within {TIMEOUT_S:g} s") from error


def _nobody(_: web.Request) -> None:
    """Return the role that a login needs, which is none."""


def _sent_to(position: str, *cookies: str) -> web.StreamResponse:
    response = web.Response(status=302, headers={"Location": position, "Cache-Control": "no-store"})
    for cookie in cookies:
        response.headers.add("Set-Cookie", cookie)
    return response


def _check_url(key: str, url: str) -> None:
    """Require a URL with HTTPS, or on loopback. Raises WebConfigError."""
    try:
        parts = urlsplit(url)
        safe = parts.scheme == "https" or is_loopback(parts.hostname or "")
    except ValueError:
        parts, safe = urlsplit(""), False
    if not parts.hostname or not safe:
        raise WebConfigError(f"{key}={url:.200} is no https:// URL (http:// is for loopback only)")
