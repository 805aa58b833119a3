"""The TLS configuration keys of all our servers, in the section `[tls]`.

Configurations inherit them. Keys that Apache also has are accepted by its name (`tls.server.mode`),
which Apache reads from a system property or a separate file. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from .options import option

MODES = ("disabled", "permissive", "enforcing")
OFF = MODES[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """The TLS keys of brokers and name servers. All files are PEM."""

    # fmt: off
    tls_server_mode: str = option("tls", "tlsServerMode", OFF,
        "What the ports for clients take: plain connections, both, or TLS only.",
        choices=MODES, also="tls.server.mode")
    tls_server_cert_path: str = option("tls", "tlsServerCertPath", "",
        "The server's certificate, and behind it those between it and the CA.",
        also="tls.server.certPath")
    tls_server_key_path: str = option("tls", "tlsServerKeyPath", "",
        "Its key; empty: in the certificate's file.", also="tls.server.keyPath")
    tls_server_key_password: str = option("tls", "tlsServerKeyPassword", "",
        "The key's password.", secret=True, also="tls.server.keyPassword")
    tls_server_need_client_auth: str = option("tls", "tlsServerNeedClientAuth", "none",
        "Whether clients show certificates: with `none` they are not asked for any, with `optional`"
        " one that is shown is checked, with `require` each must show one.",
        choices=("none", "optional", "require"), also="tls.server.need.client.auth")
    tls_server_trust_cert_path: str = option("tls", "tlsServerTrustCertPath", "",
        "The CAs of clients' certificates.", also="tls.server.trustCertPath")
    tls_enable: bool = option("tls", "tlsEnable", False,
        "Use TLS for this process's own connections: to name servers, brokers, masters.",
        also="tls.enable")
    tls_client_trust_cert_path: str = option("tls", "tlsClientTrustCertPath", "",
        "The CAs of the servers it connects to; empty: those that the system trusts.",
        also="tls.client.trustCertPath")
    tls_client_auth_server: bool = option("tls", "tlsClientAuthServer", True,
        "Check the servers' certificates. Without, whoever is between can read and change"
        " everything.", also="tls.client.authServer")
    tls_client_check_host_name: bool = option("tls", "tlsClientCheckHostName", True,
        "A server's certificate must be for the host that was dialled; else any that the CA has"
        " signed will do.")
    tls_client_cert_path: str = option("tls", "tlsClientCertPath", "",
        "The certificate that this process shows; empty: none.", also="tls.client.certPath")
    tls_client_key_path: str = option("tls", "tlsClientKeyPath", "",
        "Its key; empty: in the certificate's file.", also="tls.client.keyPath")
    tls_client_key_password: str = option("tls", "tlsClientKeyPassword", "",
        "The key's password.", secret=True, also="tls.client.keyPassword")
    http_tls_mode: str = option("tls", "httpTlsMode", OFF,
        "What the HTTP API's port takes: HTTP, both, or HTTPS only.", choices=MODES)
    http_tls_cert_path: str = option("tls", "httpTlsCertPath", "",
        "Its certificate; empty: `tlsServerCertPath` and what belongs to that.")
    http_tls_key_path: str = option("tls", "httpTlsKeyPath", "",
        "The key of `httpTlsCertPath`; `tlsServerKeyPassword` opens it, too.")
    # fmt: on

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
class PeerTlsOptions(TlsOptions):
    """The TLS keys with those for links between Raft replicas, with certificates on both sides."""

    # fmt: off
    raft_tls_mode: str = option("tls", "raftTlsMode", OFF,
        "The links of a Raft group's replicas: plain, both, or TLS only, with certificates on both"
        " sides. With `permissive` a replica dials with TLS, and plain where that fails: for the"
        " way from one to the other, not to stay.", choices=MODES)
    raft_tls_cert_path: str = option("tls", "raftTlsCertPath", "",
        "This replica's certificate, for its host in `dLegerPeers`, to serve and to dial with;"
        " empty: `tlsServerCertPath` and what belongs to that.")
    raft_tls_key_path: str = option("tls", "raftTlsKeyPath", "", "The key of `raftTlsCertPath`.")
    raft_tls_key_password: str = option("tls", "raftTlsKeyPassword", "",
        "The key's password.", secret=True)
    raft_tls_trust_cert_path: str = option("tls", "raftTlsTrustCertPath", "",
        "The group's CA. Whoever has a certificate of it may speak as a replica: it must sign"
        " nothing else, clients' certificates least of all.")
    # fmt: on

    def wrong_tls(self) -> tuple[str, str] | None:
        if self.raft_tls_mode != OFF:
            if not self.raft_tls_cert_path + self.tls_server_cert_path:
                return "raft_tls_mode", "needs raftTlsCertPath or tlsServerCertPath"
            if not self.raft_tls_trust_cert_path:
                return "raft_tls_mode", "needs raftTlsTrustCertPath"
        return TlsOptions.wrong_tls(self)
