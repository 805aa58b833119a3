"""The name server's configuration, from TOML or Java properties.

A frozen object per process, built at the edge by `load`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raftmq.ops.foreign_keys import separate
from raftmq.ops.options import (
    BYTES,
    ConfigError,
    Loaded,
    Option,
    option,
    options_of,
    parse_settings,
    wrong_value,
)
from raftmq.ops.ports import Listener, check_ports, http_port
from raftmq.ops.settings import gather, repeated
from raftmq.ops.tls_options import TlsOptions
from raftmq.remoting.address import parse_address_list
from raftmq.remoting.names import address_problem
from raftmq.remoting.registration import BODY_BYTES_MAX, BodyLimits
from raftmq.web.settings import WebSettings

from .http.reach import host_problem

__all__ = ["OPTIONS", "ConfigError", "Loaded", "NameServerConfig", "load"]

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"
HEADER_BYTES_MAX = 2 << 20  # of a request, added to the largest registration


@dataclass(frozen=True, slots=True)
class NameServerConfig(TlsOptions):
    """All settings of a name server; the declarations have the units."""

    # fmt: off

    # [network]
    bind: str = option("network", "bindAddress", LOOPBACK,
        "The address listened on. With `aclEnable` the default is `0.0.0.0`.")
    port: int = option("network", "listenPort", 9876,
        "Where brokers and clients connect; 0 takes any free port.", low=0, high=65535)

    # [store]
    store: str = option("store", "storePath", "",
        "Directory of the key-value configuration; empty: that is lost at exit. "
        "Routes never need a file, brokers bring them.")

    # [limits]
    registration_bytes_max: int = option("limits", "registrationBytesMax", BODY_BYTES_MAX,
        "Bytes of one registration, as JSON or once it is unpacked; a registration beyond is"
        " refused. 18 MiB are some 110,000 topics as JSON, which Apache's brokers send.",
        unit=BYTES, low=64 * 1024, high=1 << 30)

    # [registration]
    registration_key_file: str = option("registration", "registrationKeyFile", "",
        "File of the key that brokers sign their registrations with, one key a line, which nobody"
        " else may read. A name that a signed broker leads is then taken by signed ones alone"
        " ([Security](security.md)); empty: signatures count for nothing.")
    registrations_must_be_signed: bool = option("registration", "registrationsMustBeSigned", True,
        "With `registrationKeyFile`: take signed registrations only. `false` also takes unsigned"
        " ones, of Apache's brokers for example, for names that no signed broker holds.")

    # [acl]
    acl_enable: bool = option("acl", "aclEnable", False,
        "Only admins of `aclFile` register brokers and change anything ([Security](security.md)).")
    acl_file: str = option("acl", "aclFile", "conf/plain_acl.yml",
        "The accounts, in the form of Apache's plain_acl.yml. An edited file is taken over.")
    acl_reads_need_account: bool = option("acl", "aclReadsNeedAccount", False,
        "Routes, too, are for accounts of `aclFile` alone. Accounts that were made at a broker's"
        " run time are not known here: put them into the file.")

    # [http]
    http_enable: bool = option("http", "httpEnable", True,
        "Serve the cluster's HTTP API, the dashboard and `/metrics`.")
    http_bind_address: str = option("http", "httpBindAddress", "127.0.0.1",
        "The address listened on. One that is not loopback needs `httpTokensFile`.")
    http_port: int = option("http", "httpPort", -1,
        "The port; -1: `listenPort` + 4, 0: any free one.", low=-1, high=65535)
    http_advertised_address: str = option("http", "httpAdvertisedAddress", "",
        "The `host:port` that others are told; empty: the address listened on.")
    http_tokens_file: str = option("http", "httpTokensFile", "",
        "JSON file of tokens and roles, read again within 10 s of a change; empty: every loopback"
        " caller is admin.")
    http_health_port: int = option("http", "httpHealthPort", 0,
        "Serve `/health/live` and `/health/ready` at this port of 127.0.0.1, too, without TLS: what"
        " looks after the process on its own machine needs no certificate; 0: nowhere.",
        low=0, high=65535)
    http_broker_hosts: str = option("http", "httpBrokerHosts", "",
        "Hosts whose HTTP APIs are asked although brokers there register unsigned: names, addresses"
        " and networks (`10.1.0.0/16`), separated by semicolons. Without `registrationKeyFile` a"
        " broker is asked at the host from which it registers ([Security](security.md)).",
        spread=True)
    http_cluster_token_file: str = option("http", "httpClusterTokenFile", "",
        "File of the token by which brokers know this name server. Only brokers whose address is"
        " proven see it ([Trust between processes](http-api.md#trust-between-processes)).")
    http_cluster_token_in_the_clear: bool = option("http", "httpClusterTokenInTheClear", False,
        "Show that token over plain HTTP to brokers on other machines, too: whoever listens there"
        " has it.")

    # [oidc]
    oidc_issuer: str = option("oidc", "oidcIssuer", "",
        "The `https://` URL of an OpenID provider with whose accounts people log in to the"
        " dashboard ([Logging in](dashboard.md#login)); empty: with tokens only.")
    oidc_client_id: str = option("oidc", "oidcClientId", "",
        "The name servers' client id at the provider.")
    oidc_client_secret_file: str = option("oidc", "oidcClientSecretFile", "",
        "File of the client's secret, which signs sessions, too: alike at all name servers.")
    oidc_roles: str = option("oidc", "oidcRoles", "",
        "Who is what: `role=value of the claim`, separated by semicolons, as in"
        " `admin=platform;operator=on call;viewer=*`. `*` is everybody whom the provider knows.",
        spread=True)
    oidc_roles_claim: str = option("oidc", "oidcRolesClaim", "groups",
        "The claim of the ID token that has these values, with dots into objects"
        " (`realm_access.roles`).")
    oidc_name_claim: str = option("oidc", "oidcNameClaim", "preferred_username",
        "The claim by which people are named; without it `sub`.")
    oidc_scopes: str = option("oidc", "oidcScopes", "openid profile",
        "What the provider is asked for.")
    oidc_redirect_uri: str = option("oidc", "oidcRedirectUri", "",
        "Where the provider sends browsers back; empty: to the host they came from,"
        " `/api/v1/session/oidc/callback`.")
    oidc_ca_file: str = option("oidc", "oidcCaFile", "",
        "The CA of the provider's certificate; empty: those that the system trusts.")

    # [log]
    log_format: str = option("log", "logFormat", "text",
        "Events as text, or as JSON, one a line.", choices=("text", "json"))
    log_level: str = option("log", "logLevel", "INFO",
        "The least severe events written.", choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        live=True)

    # fmt: on

    @property
    def frame_size_max(self) -> int:
        """Return the size of the largest request, a registration with its header."""
        return self.registration_bytes_max + HEADER_BYTES_MAX

    @property
    def web(self) -> WebSettings:
        """Return the settings of the HTTP port."""
        return WebSettings(
            self.http_enable,
            self.http_bind_address,
            http_port(self.http_port, self.port),
            self.http_advertised_address,
            self.http_tokens_file,
            self.http_health_port,
        )

    @property
    def broker_hosts(self) -> list[str]:
        return parse_address_list(self.http_broker_hosts)

    @property
    def signed_only(self) -> bool:
        return self.registrations_must_be_signed and bool(self.registration_key_file)

    @property
    def body_limits(self) -> BodyLimits:
        return BodyLimits(self.registration_bytes_max)


OPTIONS: dict[str, Option] = options_of(NameServerConfig)
APACHE_KEYS = Path(__file__).with_name("apache_keys.toml")


def load(
    path: str | None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Loaded[NameServerConfig]:
    """Build the configuration. Command-line overrides win over `environment` (RAFTMQ_…), the file
    at `path` and the defaults, in this order. Raises ConfigError."""
    settings = gather(OPTIONS, path, overrides, environment)
    parted = separate(OPTIONS, settings, APACHE_KEYS)
    values, places = parse_settings(OPTIONS, parted.own, parted.refused)
    if values.get("acl_enable") and "bind" not in values:
        values["bind"], places["bind"] = EVERYWHERE, "default with aclEnable"
    config = NameServerConfig(**values)
    if (wrong := config.wrong_tls()) is not None:
        raise wrong_value(OPTIONS, config, places, *wrong)
    advertised = config.http_advertised_address
    if advertised and (problem := address_problem("address", advertised)):
        raise wrong_value(OPTIONS, config, places, "http_advertised_address", problem)
    where = places.get("registrations_must_be_signed")
    if where and config.registrations_must_be_signed and not config.registration_key_file:
        raise ConfigError(f"{where}: registrationsMustBeSigned=true needs registrationKeyFile")
    for host in config.broker_hosts:
        if problem := host_problem(host):
            raise wrong_value(OPTIONS, config, places, "http_broker_hosts", problem)
    check_ports(OPTIONS, config, places, _listeners(config))
    return Loaded(config, places, repeated(OPTIONS, settings), parted.otherwise, parted.not_needed)


def _listeners(config: NameServerConfig) -> Iterator[Listener]:
    yield Listener("port", config.bind, config.port)
    if config.http_enable:
        http = http_port(config.http_port, config.port)
        yield Listener("http_port", config.http_bind_address, http)
        yield Listener("http_health_port", LOOPBACK, config.http_health_port)
