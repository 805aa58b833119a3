"""The proxy's configuration, from TOML or Java properties.

A frozen object per process, built at the edge by `load`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raftmq.ops.foreign_keys import separate
from raftmq.ops.options import (
    BYTES,
    MS,
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
from raftmq.remoting.acl.signature import Credentials, credentials_of
from raftmq.remoting.address import parse_address_list
from raftmq.remoting.names import address_map, address_problem
from raftmq.web.settings import WebSettings

__all__ = ["OPTIONS", "ConfigError", "Loaded", "ProxyConfig", "load"]

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"
CALLS_PER_CLIENT = 2  # a waiting receive and a Telemetry stream


@dataclass(frozen=True, slots=True)
class ProxyConfig(ServerOptions):
    """All settings of a proxy; the declarations have the units."""

    # fmt: off

    namesrv: str = option("network", "namesrvAddr", "127.0.0.1:9876",
        "Name servers of the cluster, `host1:9876;host2:9876`.", spread=True)
    broker_address_map: str = option("network", "brokerAddressMap", "",
        "Reachable addresses of brokers, if they differ from the advertised ones: "
        "`127.0.0.1:10911=broker-a0:10911;…`.", spread=True)
    bind: str = option("network", "bindAddress", LOOPBACK,
        "Listening address. With `aclEnable` the default is `0.0.0.0`.")
    port: int = option("network", "grpcServerPort", 8081,
        "Port for gRPC clients; 0: any free port.", low=0, high=65535)

    message_size_max: int = option("limits", "maxMessageSize", 4 << 20,
        "Size of a message's body; a larger body is answered MESSAGE_BODY_TOO_LARGE.",
        unit=BYTES, low=1024, high=64 << 20)
    call_size_max: int = option("limits", "grpcMaxInboundMessageSize", 16 << 20,
        "Size of a call with all its messages.", unit=BYTES, low=1024, high=256 << 20)
    clients_max: int = option("limits", "clientsMax", 10_000,
        "Clients at a time; a client beyond is answered TOO_MANY_REQUESTS. Twice as many "
        "calls may be in progress, with waiting receives and open Telemetry streams; a call beyond "
        "is answered RESOURCE_EXHAUSTED.", low=1)

    idempotent_sends: bool = option("calls", "idempotentSends", False,
        "Mark every message IDEMPOTENT: repeated sends, by the proxy or by its client, are stored "
        "once ([Idempotent sends](idempotent-sends.md)). Costs brokers CPU time.")
    delay_ms_max: int = option("calls", "maxDelayTimeMills", 86_400_000,
        "Maximum time until a message is delivered; 0: the brokers' limit (`timerMaxDelaySec`).",
        unit=MS, low=0)
    topic_message_type_check: bool = option("calls", "enableTopicMessageTypeCheck", True,
        "Reject a message whose type differs from its topic's `message.type`, and let clients "
        "check it.")

    acl_enable: bool = option("acl", "aclEnable", False,
        "Clients need an account of `aclFile` ([Security](security.md)).")
    acl_file: str = option("acl", "aclFile", "conf/plain_acl.yml",
        "The brokers' accounts, in the format of Apache's plain_acl.yml. Edits are in force "
        "without a restart. Accounts that were created at a broker's run time must be in the "
        "file.")
    inner_client_authentication_credentials: str = option(
        "acl", "innerClientAuthenticationCredentials", "",
        'Admin\'s account for requests to brokers and name servers: '
        '`{"accessKey":"…","secretKey":"…"}`. Never shown.', secret=True, spread=True)

    log_level: str = option("log", "logLevel", "INFO",
        "Lowest severity of logged events.", choices=("DEBUG", "INFO", "WARNING", "ERROR"))

    # fmt: on

    @property
    def calls_max(self) -> int:
        """Return the limit of calls in progress, without those of strangers."""
        return CALLS_PER_CLIENT * self.clients_max

    def web(self, port: int) -> WebSettings:
        """Return the settings of the HTTP port; `port` is gRPC's."""
        return WebSettings(
            self.http_enable,
            self.http_bind_address,
            http_port(self.http_port, self.port and port),
            "",
            self.http_tokens_file,
            self.http_health_port,
        )

    @property
    def inner_credentials(self) -> Credentials | None:
        """Return the proxy's own credentials. Raises ValueError without revealing them."""
        return credentials_of(self.inner_client_authentication_credentials)

    @property
    def reached_at(self) -> dict[str, str]:
        """Return `brokerAddressMap` as a table. Raises ValueError."""
        return address_map(self.broker_address_map)

    def wrong(self) -> tuple[str, str] | None:
        """Return a field that contradicts the rest and the reason, or None."""
        name_servers = parse_address_list(self.namesrv)
        if not name_servers:
            return "namesrv", "names no name server"
        for address in name_servers:
            if problem := address_problem("address", address):
                return "namesrv", problem
        try:
            _ = self.reached_at
        except ValueError as error:
            return "broker_address_map", str(error)
        try:
            credentials = self.inner_credentials
        except ValueError as error:
            return "inner_client_authentication_credentials", str(error)
        if self.acl_enable and credentials is None:
            return "acl_enable", "needs innerClientAuthenticationCredentials"
        return self.wrong_tls()


OPTIONS: dict[str, Option] = options_of(ProxyConfig)
APACHE_KEYS = Path(__file__).with_name("apache_keys.toml")


def load(
    path: str | None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Loaded[ProxyConfig]:
    """Build the configuration. Command-line overrides win over `environment` (RAFTMQ_…), the file
    at `path` and the defaults, in this order. Raises ConfigError."""
    settings = gather(OPTIONS, path, overrides, environment)
    parted = separate(OPTIONS, settings, APACHE_KEYS)
    values, locations = parse_settings(OPTIONS, parted.own, parted.refused)
    if values.get("acl_enable") and "bind" not in values:
        values["bind"], locations["bind"] = EVERYWHERE, "default with aclEnable"
    config = ProxyConfig(**values)
    if (wrong := config.wrong()) is not None:
        raise wrong_value(OPTIONS, config, locations, *wrong)
    check_ports(OPTIONS, config, locations, _listeners(config))
    return Loaded(
        config, locations, repeated(OPTIONS, settings), parted.otherwise, parted.not_needed
    )


def _listeners(config: ProxyConfig) -> Iterator[Listener]:
    yield Listener("port", config.bind, config.port)
    yield from config.http_listeners(config.port)
