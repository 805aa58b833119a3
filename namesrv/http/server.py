"""The HTTP server of a name server, for the cluster API, the dashboard and /metrics."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raftmq.ops.options import page_of
from raftmq.remoting.process_tls import ProcessTls
from raftmq.remoting.tls_listener import listening_with
from raftmq.web import levels
from raftmq.web.app import CONNECTIONS_MAX, Page, Render, WebServer, metrics_route
from raftmq.web.auth import Access, load_token
from raftmq.web.events import EventHub
from raftmq.web.operation import Call, Operation, Reply
from raftmq.web.schema import Listing
from raftmq.web.settings import WebSettings

from ..config import OPTIONS, NameServerConfig
from ..routes import RouteTable
from .broker_fanout import Leaders
from .broker_http import Nodes
from .changes import Changes, Everywhere
from .client_access import ClientAccess
from .cluster import ClusterView
from .cluster_token import ClusterToken
from .definitions import Definitions
from .directory import Directory
from .history import Histories
from .login import Login
from .proxy import Proxy
from .reach import Reach
from .reads import Reads
from .scaling import Scaling
from .topic_messages import TopicMessages
from .views import CallerView, OptionView, ServesView, UpView

if TYPE_CHECKING:
    from .oidc import OidcLogin

API_VERSION = "1"
DASHBOARD = "dashboard"
STREAMS_MIN = 128  # brokers whose events are followed, also with few descriptors
# All content is from our files, without inline scripts, inline styles and foreign origins.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
MEDIA = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


class ClusterApi:
    """The HTTP server. Call `start` and `stop` once each, on the loop that owns `table`."""

    def __init__(
        self,
        config: NameServerConfig,
        table: RouteTable,
        host: str,
        port: int,
        render_metrics: Render,
        tls: ProcessTls | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """`host` and `port` are the name server's. `connections_max` is for clients, and for
        streams of brokers' events. `tls` must be loaded. Reads the files of the
        tokens and the dashboard. Raises WebConfigError."""
        self._config = config
        self._settings = config.web
        self._host = host
        self.hub = EventHub()
        self._tls = tls or ProcessTls(config)
        reach = Reach(bool(config.registration_key_file), config.broker_hosts)
        directory = Directory(table, reach)
        token = _cluster_token(config, table)
        self._nodes = Nodes(token, directory.contact, tls=lambda: self._tls.https)
        self.cluster = ClusterView(
            table, directory, self._nodes, self.hub, f"{host}:{port}",
            streams_max=max(STREAMS_MIN, connections_max),
        )  # fmt: skip
        leaders = Leaders(self.cluster)
        everywhere = Everywhere(self.cluster, leaders)
        is_https = _seen_as_https(config, self._tls)
        access, self._oidc = _access(config, self._settings, is_https=is_https)
        self.operations = operations = [
            *Login(access, oidc=self._oidc is not None).operations(),
            *Reads(self.cluster, leaders).operations(),
            *TopicMessages(self.cluster, leaders).operations(),
            *Histories(self.cluster, leaders).operations(),
            *Changes(self.cluster, leaders, everywhere).operations(),
            *ClientAccess(self.cluster, leaders, everywhere).operations(),
            *Scaling(self.cluster, leaders).operations(),
            *Definitions(self.cluster, leaders).operations(),
            *self._own(),
            *levels.operations(),
            self.hub.operation(),
        ]
        self._server = WebServer(
            self._settings,
            access,
            operations,
            title="raftmq cluster API",
            version=API_VERSION,
            pages=pages(),
            raw=[
                *Proxy(self.cluster).routes(),
                metrics_route(render_metrics),
                *([] if self._oidc is None else self._oidc.routes()),
            ],
            closing=self.hub.close,
            connections_max=connections_max,
            listen=listening_with(self._tls.http),
        )

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def address(self) -> str:
        return self._settings.advertised_address(self._host, self.port)

    @property
    def url(self) -> str:
        return f"{self._tls.http_scheme}://{self.address}/"

    async def start(self) -> None:
        """Start serving. Raises OSError if the port is taken."""
        await self._nodes.start()
        self.cluster.start()
        await self._server.start()

    async def stop(self) -> None:
        """Stop serving, also after a failed start."""
        await self._server.stop()
        await self.cluster.stop()
        await self._nodes.stop()
        if self._oidc is not None:
            await self._oidc.close()

    def _own(self) -> list[Operation]:
        def get(path: str, name: str, summary: str, handler: Any, **more: Any) -> Operation:
            return Operation("GET", path, name, summary, handler, **more)

        return [
            get("/health/live", "getLive", "It runs.", self._live, role=None, answer=UpView),
            get(
                "/health/ready",
                "getReady",
                "It serves routes.",
                self._ready,
                role=None,
                answer=ServesView,
            ),
            get(
                "/api/v1/config",
                "getConfig",
                "This name server's configuration.",
                self._shown,
                answer=Listing[OptionView],
            ),
            get(
                "/api/v1/whoami",
                "getCaller",
                "Who the caller is taken for.",
                self._caller,
                answer=CallerView,
            ),
        ]

    async def _live(self, _: Call) -> Mapping[str, Any]:
        return {"status": "up"}

    async def _ready(self, _: Call) -> Reply:
        # A name server without brokers is ready, and answers "unknown".
        count = self.cluster.table.broker_count
        return Reply({"status": "ready", "brokers": count, "warnings": self._tls.warnings})

    async def _caller(self, call: Call) -> Mapping[str, Any]:
        return {"name": call.caller.name, "role": call.caller.role.name.lower()}

    async def _shown(self, _: Call) -> Mapping[str, Any]:
        return page_of(OPTIONS, self._config)


def _seen_as_https(config: NameServerConfig, tls: ProcessTls) -> bool:
    """Return whether browsers use HTTPS, by the redirect URI (possibly a TLS-terminating proxy's)
    or by this process's port."""
    if config.oidc_issuer and config.oidc_redirect_uri:
        return config.oidc_redirect_uri.lower().startswith("https:")
    return tls.http_scheme == "https"


def _access(
    config: NameServerConfig, settings: WebSettings, *, is_https: bool
) -> tuple[Access, OidcLogin | None]:
    """Return the access control, and the provider's logins or None. Raises WebConfigError."""
    if not config.oidc_issuer:
        return Access.of(settings, with_sessions=True, is_https=is_https), None
    from .oidc import OidcLogin, OidcSettings  # 10 MB, rarely needed

    oidc = OidcSettings.of(config)
    access = Access.of(
        settings, with_sessions=True, session_secret=oidc.client_secret, is_https=is_https
    )
    assert access.sessions is not None
    return access, OidcLogin(oidc, access.sessions, access.session_cookie)


def _cluster_token(config: NameServerConfig, table: RouteTable) -> ClusterToken:
    """Read the token. Raises WebConfigError."""
    path = config.http_cluster_token_file
    if not path:
        return ClusterToken()
    checks = config.tls_client_auth_server and config.tls_client_check_host_name
    return ClusterToken(
        load_token(Path(path), "httpClusterTokenFile"),
        is_signed=table.is_signed_http,
        signatures_required=bool(config.registration_key_file),
        tls_verifies=checks,
        own_ca=bool(config.tls_client_trust_cert_path),
        in_the_clear=config.http_cluster_token_in_the_clear,
    )


def pages() -> list[Page]:
    """Read the dashboard's files, as `/` and `/dashboard/NAME`."""
    result = []
    for file in sorted(resources.files(__package__).joinpath(DASHBOARD).iterdir(), key=_name):
        media = MEDIA.get(Path(file.name).suffix)
        if media is None:
            continue
        content = file.read_bytes()
        result.append(Page(f"/{DASHBOARD}/{file.name}", media, content, POLICY))
        if file.name == "index.html":
            result.append(Page("/", media, content, POLICY))
    return result


def _name(file: Any) -> str:
    return str(file.name)
