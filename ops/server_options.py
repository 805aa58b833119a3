"""The configuration keys of all our servers, for HTTP, logs and TLS.

Configurations inherit them. Keys of TLS that Apache also has are accepted by its name
(`tls.server.mode`), which Apache reads from a system property or a separate file. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .options import option
from .ports import Listener, http_port

LOOPBACK = "127.0.0.1"
MODES = ("disabled", "permissive", "enforcing")
OFF = MODES[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The keys of brokers, name servers and proxies. All files of TLS are PEM."""

    # fmt: off
    http_enable: bool = option("http", "httpEnable", True,
        "Serve the HTTP API and `/metrics`; a name server also the dashboard.")
    http_bind_address: str = option("http", "httpBindAddress", LOOPBACK,
        "Listening address. An address other than loopback requires `httpTokensFile`.")
    http_port: int = option("http", "httpPort", -1,
        "Port; -1: the port for clients + 4, 0: any free port.", low=-1, high=65535)
    http_tokens_file: str = option("http", "httpTokensFile", "",
        "JSON file of tokens and roles, read again within 10 s of a change; empty: every loopback "
        "caller is admin.")
    http_health_port: int = option("http", "httpHealthPort", 0,
        "Port on 127.0.0.1 with `/health/live` and `/health/ready` without TLS, for local "
        "supervisors; 0: none.",
        low=0, high=65535)
    log_format: str = option("log", "logFormat", "text",
        "Events as text, or as JSON, each on a line.", choices=("text", "json"))
    tls_server_mode: str = option("tls", "tlsServerMode", OFF,
        "Connections that the ports for clients accept: plain, both, or TLS only.",
        choices=MODES, also="tls.server.mode")
    tls_server_cert_path: str = option("tls", "tlsServerCertPath", "",
        "Server certificate, followed by its intermediates.",
        also="tls.server.certPath")
    tls_server_key_path: str = option("tls", "tlsServerKeyPath", "",
        "Its key; empty: in the certificate's file.", also="tls.server.keyPath")
    tls_server_key_password: str = option("tls", "tlsServerKeyPassword", "",
        "Password of the key.", secret=True, also="tls.server.keyPassword")
    tls_server_need_client_auth: str = option("tls", "tlsServerNeedClientAuth", "none",
        "`none`: no client certificates; `optional`: a client certificate is verified if there is "
        "any; `require`: every client needs a certificate.",
        choices=("none", "optional", "require"), also="tls.server.need.client.auth")
    tls_server_trust_cert_path: str = option("tls", "tlsServerTrustCertPath", "",
        "CAs of client certificates.", also="tls.server.trustCertPath")
    tls_enable: bool = option("tls", "tlsEnable", False,
        "Use TLS for outgoing connections to name servers, brokers and masters.",
        also="tls.enable")
    tls_client_trust_cert_path: str = option("tls", "tlsClientTrustCertPath", "",
        "CAs of the servers; empty: the system's.",
        also="tls.client.trustCertPath")
    tls_client_auth_server: bool = option("tls", "tlsClientAuthServer", True,
        "Verify the servers' certificates. Otherwise an attacker in between can read and change "
        "everything.", also="tls.client.authServer")
    tls_client_check_host_name: bool = option("tls", "tlsClientCheckHostName", True,
        "Verify that a server's certificate is for the dialled host.")
    tls_client_cert_path: str = option("tls", "tlsClientCertPath", "",
        "Certificate for outgoing connections; empty: none.", also="tls.client.certPath")
    tls_client_key_path: str = option("tls", "tlsClientKeyPath", "",
        "Its key; empty: in the certificate's file.", also="tls.client.keyPath")
    tls_client_key_password: str = option("tls", "tlsClientKeyPassword", "",
        "Password of the key.", secret=True, also="tls.client.keyPassword")
    http_tls_mode: str = option("tls", "httpTlsMode", OFF,
        "Connections that the HTTP API's port accepts: HTTP, both, or HTTPS only.", choices=MODES)
    http_tls_cert_path: str = option("tls", "httpTlsCertPath", "",
        "Its certificate; empty: `tlsServerCertPath` with its key.")
    http_tls_key_path: str = option("tls", "httpTlsKeyPath", "",
        "Key of `httpTlsCertPath`.")
    # fmt: on

    def http_listeners(self, client_port: int) -> Iterator[Listener]:
        """Yield the listeners for HTTP beside that for clients."""
        if self.http_enable:
            port = http_port(self.http_port, client_port)
            yield Listener("http_port", self.http_bind_address, port)
            yield Listener("http_health_port", LOOPBACK, self.http_health_port)

    def wrong_tls(self) -> tuple[str, str] | None:
        """Return a field that contradicts other fields, and the reason; None if all fit."""
        if self.tls_server_mode != OFF and not self.tls_server_cert_path:
            return "tls_server_mode", "needs tlsServerCertPath"
        if self.tls_server_need_client_auth != "none" and not self.tls_server_trust_cert_path:
            return "tls_server_need_client_auth", "needs tlsServerTrustCertPath"
        if self.http_tls_mode != OFF and not self.http_tls_cert_path + self.tls_server_cert_path:
            return "http_tls_mode", "needs httpTlsCertPath or tlsServerCertPath"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTlsOptions(ServerOptions):
    """The TLS keys with those for links between Raft replicas, with certificates on both sides."""

    # fmt: off
    raft_tls_mode: str = option("tls", "raftTlsMode", OFF,
        "Links between replicas of a Raft group: plain, both, or TLS only, with certificates on "
        "both sides. With `permissive` a replica dials with TLS, and plain if that fails; use it "
        "for a migration only.", choices=MODES)
    raft_tls_cert_path: str = option("tls", "raftTlsCertPath", "",
        "This replica's certificate, for its host in `dLegerPeers`, for both directions; empty: "
        "`tlsServerCertPath` with its key.")
    raft_tls_key_path: str = option("tls", "raftTlsKeyPath", "",
        "Key of `raftTlsCertPath`, with the password `tlsServerKeyPassword`.")
    raft_tls_trust_cert_path: str = option("tls", "raftTlsTrustCertPath", "",
        "CA of the group. Every certificate of it may speak as a replica, so it must sign nothing "
        "else.")
    # fmt: on

    def wrong_tls(self) -> tuple[str, str] | None:
        if self.raft_tls_mode != OFF:
            if not self.raft_tls_cert_path + self.tls_server_cert_path:
                return "raft_tls_mode", "needs raftTlsCertPath or tlsServerCertPath"
            if not self.raft_tls_trust_cert_path:
                return "raft_tls_mode", "needs raftTlsTrustCertPath"
        return ServerOptions.wrong_tls(self)
