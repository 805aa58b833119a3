"""Login with a token, and logout (web.sessions)."""

from __future__ import annotations

import time
from typing import Annotated

from msgspec import Meta

from raftmq.web.auth import Access
from raftmq.web.operation import Call, Operation, Reply
from raftmq.web.problem import conflict
from raftmq.web.schema import Input, View
from raftmq.web.sessions import LASTS_S

PATH = "/api/v1/session"


class LoginBody(Input, frozen=True):
    token: Annotated[str, Meta(min_length=1, max_length=512)]


class SessionView(View, frozen=True, kw_only=True):
    name: str
    role: str
    until_ms: int


class LoginsView(View, frozen=True, kw_only=True):
    """The available logins, with a token or with an account of the provider."""

    token: bool
    oidc: bool


class Login:
    """The operations. `oidc` is true if a provider's accounts may log in (`oidc`)."""

    def __init__(self, access: Access, *, oidc: bool) -> None:
        self._access = access
        self._oidc = oidc
        self._cookie = access.session_cookie

    def operations(self) -> list[Operation]:
        return [
            Operation("GET", PATH, "getLogins", "How one may log in.", self.ways, role=None,
                      answer=LoginsView),
            Operation("POST", PATH, "logIn", "Begin a session with a token; the answer sets a "
                      "cookie.", self.start, role=None, body=LoginBody, answer=SessionView,
                      problems=(401, 409)),
            Operation("DELETE", PATH, "logOut", "End the session of this browser.", self.end,
                      role=None, status=204),
        ]  # fmt: skip

    async def ways(self, _: Call) -> LoginsView:
        return LoginsView(token=self._access.sessions is not None, oidc=self._oidc)

    async def start(self, call: Call) -> Reply:
        sessions = self._access.sessions
        if sessions is None:
            raise conflict("there are no tokens here: everybody on this machine is admin", "OPEN")
        caller = self._access.caller(f"Bearer {call.body.token}")
        now_s = int(time.time())
        cookie = self._cookie.holding(sessions.made(caller, now_s))
        view = SessionView(
            name=caller.name, role=caller.role.name.lower(), until_ms=(now_s + LASTS_S) * 1000
        )
        return Reply(view, headers={"Set-Cookie": cookie})

    async def end(self, _: Call) -> Reply:
        return Reply(status=204, headers={"Set-Cookie": self._cookie.removed()})
