"""An OpenID provider for tests: it lets in whoever comes, as `claims` say, and checks what a client
has to show."""

import base64
import hashlib
import json
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec

CLIENT, SECRET = "raftmq-console", "secret:with/marks"
ALICE = {"sub": "7", "preferred_username": "alice", "groups": ["staff", "ops"]}


class Provider:
    """`claims` are put over the right ones; `sign(claims)` makes the token; `said` replaces an
    answer by path."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = dict(ALICE)
        self.said: dict[str, Any] = {}
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.key_id = "one"
        self.methods: list[str] | None = None
        self.sign = self.signed
        self.requested: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> "Provider":
        app = web.Application()
        app.router.add_get("/authorize", self._authorize)
        app.router.add_route("*", "/{tail:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def let_in(self, page: str) -> str:
        """Return where the browser is sent that comes to `page`."""
        requested = {key: value for key, (value,) in parse_qs(urlsplit(page).query).items()}
        assert requested["client_id"] == CLIENT and requested["response_type"] == "code"
        assert (
            "openid" in requested["scope"].split() and requested["code_challenge_method"] == "S256"
        )
        code = f"code-{len(self._codes)}"
        self._codes[code] = requested
        return f"{requested['redirect_uri']}?code={code}&state={requested['state']}&session_state=x"

    def signed(self, claims: dict[str, Any]) -> str:
        return jwt.encode(claims, self.key, "ES256", headers={"kid": self.key_id})

    async def _authorize(self, request: web.Request) -> web.Response:
        raise web.HTTPFound(self.let_in(str(request.url)))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requested.append(request.path)
        said = self.said.get(request.path)
        if said is not None:
            return await said(request) if callable(said) else web.Response(body=said)
        if request.path == "/.well-known/openid-configuration":
            return web.json_response({
                "issuer": self.url, "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token", "jwks_uri": f"{self.url}/keys",
                "token_endpoint_auth_methods_supported": self.methods,
            })  # fmt: skip
        if request.path == "/keys":
            public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key()))
            return web.json_response({"keys": [public | {"kid": self.key_id, "use": "sig"}]})
        assert (request.method, request.path) == ("POST", "/token")
        return web.json_response(
            {"id_token": self.sign(self._claims(request, await request.post()))}
        )

    def _claims(self, request: web.Request, form: Any) -> dict[str, Any]:
        requested = self._codes.pop(form["code"])  # a code is good once
        if self.methods == ["client_secret_post"]:
            assert (form["client_id"], form["client_secret"]) == (CLIENT, SECRET)
        else:
            shown = base64.b64decode(request.headers["Authorization"].removeprefix("Basic "))
            assert shown == f"{CLIENT}:secret%3Awith%2Fmarks".encode()
        assert form["redirect_uri"] == requested["redirect_uri"]
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == requested["code_challenge"]
        now = int(time.time())
        right = {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 60}
        return {**right, "nonce": requested["nonce"], **self.claims}
