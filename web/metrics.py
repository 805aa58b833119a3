"""GET /metrics: a process's metrics, for callers with the viewer role."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from .app import RawRoute
from .operation import Caller, Role

PATH = "/metrics"
Render = Callable[[str], tuple[bytes, str]]


def metrics_route(render: Render) -> RawRoute:
    """Make the route; `render(accept)` returns the text and its content type."""

    async def handle(request: web.Request, _: Caller) -> web.StreamResponse:
        text, content_type = render(request.headers.get("Accept", ""))
        return web.Response(body=text, headers={"Content-Type": content_type})

    return RawRoute("GET", PATH, handle, lambda _: Role.VIEWER)
