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
from raftmq.ops.server_options import ServerOptions
from raftmq.ops.settings import gather, repeated
from raftmq.remoting.address import parse_address_list
from raftmq.remoting.names import address_problem
from raftmq.remoting.registration import BODY_BYTES_MAX, BodyLimits
from raftmq.web.settings import WebSettings

from .http.reach import host_problem

__all__ = ["OPTIONS", "ConfigError", "Loaded", "NameServerConfig", "load"]

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"
HEADER_BYTES_MAX = 2 << 20  # of a request, added to the largest registration


@dataclass(frozen=True, slots=True)
class NameServerConfig(ServerOptions):
    """All settings of a name server; the declarations have the units."""

    # fmt: off

    bind: str = option("network", "bindAddress", LOOPBACK,
        "Listening address. With `aclEnable` the default is `0.0.0.0`.")
    port: int = option("network", "listenPort", 9876,
        "Port for brokers and clients; 0: any free port.", low=0, high=65535)

    store: str = option("store", "storePath", "",
        "Directory of the key-value configuration; empty: not stored. Routes need no file, "
        "because brokers register.")

    registration_bytes_max: int = option("limits", "registrationBytesMax", BODY_BYTES_MAX,
        "Bytes of a registration, as JSON or decompressed; a registration beyond is rejected. 18 "
        "MiB are some 110,000 topics as JSON, as from Apache's brokers.",
        unit=BYTES, low=64 * 1024, high=1 << 30)

    registration_key_file: str = option("registration", "registrationKeyFile", "",
        "File with the keys of brokers' signed registrations, each on a line, private. Only "
        "signed brokers may register a name of a signed leader ([Security](security.md)); empty: "
        "signatures are ignored.")
    registrations_must_be_signed: bool = option("registration", "registrationsMustBeSigned", True,
        "With `registrationKeyFile`: accept signed registrations only. `false` also accepts "
        "unsigned registrations, of Apache's brokers for example, for names that no signed broker "
        "holds.")

    acl_enable: bool = option("acl", "aclEnable", False,
        "Only admins of `aclFile` register brokers and make changes ([Security](security.md)).")
    acl_file: str = option("acl", "aclFile", "conf/plain_acl.yml",
        "Accounts, in the format of Apache's plain_acl.yml. Edits are in force without a restart.")
    acl_reads_need_account: bool = option("acl", "aclReadsNeedAccount", False,
        "Routes also require an account of `aclFile`. Accounts that were created at a broker's "
        "run time must be in the file.")

    http_advertised_address: str = option("http", "httpAdvertisedAddress", "",
        "`host:port` for brokers and browsers; empty: the listening address.")
    http_broker_hosts: str = option("http", "httpBrokerHosts", "",
        "Hosts of unsigned brokers whose HTTP APIs are asked: names, addresses and networks "
        "(`10.1.0.0/16`), separated by semicolons. Without `registrationKeyFile` a broker is "
        "asked at the host of its registration ([Security](security.md)).",
        spread=True)
    http_cluster_token_file: str = option("http", "httpClusterTokenFile", "",
        "File with the token of this name server for brokers. Only brokers with a proven address "
        "get it ([Trust between processes](http-api.md#trust-between-processes)).")
    http_cluster_token_in_the_clear: bool = option("http", "httpClusterTokenInTheClear", False,
        "Send that token over plain HTTP to brokers on remote machines; every listener there gets "
        "it.")

    oidc_issuer: str = option("oidc", "oidcIssuer", "",
        "`https://` URL of an OpenID provider for logins to the dashboard "
        "([Login](dashboard.md#login)); empty: tokens only.")
    oidc_client_id: str = option("oidc", "oidcClientId", "",
        "Client id of the name servers at the provider.")
    oidc_client_secret_file: str = option("oidc", "oidcClientSecretFile", "",
        "File with the client's secret, which also signs sessions; equal at all name servers.")
    oidc_roles: str = option("oidc", "oidcRoles", "",
        "Roles: `role=value of the claim`, separated by semicolons, as in "
        "`admin=platform;operator=on call;viewer=*`. `*` is every account of the provider.",
        spread=True)
    oidc_roles_claim: str = option("oidc", "oidcRolesClaim", "groups",
        "Claim of the ID token with these values, with dots into objects (`realm_access.roles`).")
    oidc_name_claim: str = option("oidc", "oidcNameClaim", "preferred_username",
        "Claim with the person's name; without it `sub`.")
    oidc_scopes: str = option("oidc", "oidcScopes", "openid profile",
        "Requested scopes.")
    oidc_redirect_uri: str = option("oidc", "oidcRedirectUri", "",
        "Address to which the provider redirects browsers; empty: their original host, "
        "`/api/v1/session/oidc/callback`.")
    oidc_ca_file: str = option("oidc", "oidcCaFile", "",
        "CA of the provider's certificate; empty: the system's.")

    log_level: str = option("log", "logLevel", "INFO",
        "Lowest severity of logged events.", choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        live=True)

    # fmt: on

    @property
    def frame_size_max(self) -> int:
        return self.registration_bytes_max + HEADER_BYTES_MAX

    @property
    def web(self) -> WebSettings:
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
    values, locations = parse_settings(OPTIONS, parted.own, parted.refused)
    if values.get("acl_enable") and "bind" not in values:
        values["bind"], locations["bind"] = EVERYWHERE, "default with aclEnable"
    config = NameServerConfig(**values)
    if (wrong := config.wrong_tls()) is not None:
        raise wrong_value(OPTIONS, config, locations, *wrong)
    advertised = config.http_advertised_address
    if advertised and (problem := address_problem("address", advertised)):
        raise wrong_value(OPTIONS, config, locations, "http_advertised_address", problem)
    where = locations.get("registrations_must_be_signed")
    if where and config.registrations_must_be_signed and not config.registration_key_file:
        raise ConfigError(f"{where}: registrationsMustBeSigned=true needs registrationKeyFile")
    for host in config.broker_hosts:
        if problem := host_problem(host):
            raise wrong_value(OPTIONS, config, locations, "http_broker_hosts", problem)
    check_ports(OPTIONS, config, locations, _listeners(config))
    return Loaded(
        config, locations, repeated(OPTIONS, settings), parted.otherwise, parted.not_needed
    )


def _listeners(config: NameServerConfig) -> Iterator[Listener]:
    yield Listener("port", config.bind, config.port)
    yield from config.http_listeners(config.port)
