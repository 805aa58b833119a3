"""The gRPC proxies of a cluster: what they are told, and whether they can run.

Settings of the brokers that say who may come in, and how, count for proxies as well: accounts, TLS,
the largest message. Further ones are for proxies alone, and win.
"""

from __future__ import annotations

from raftmq.packages import PROXY_PACKAGES, missing_package

from .clusterfile import ClusterState, Node, SettingsError

# Keys of broker.conf, or how they begin, that mean the same to a proxy.
SHARED = ("tls", "acl", "innerClientAuthenticationCredentials", "maxMessageSize")


def check_installed(state: ClusterState) -> None:
    """Raises SettingsError if there are to be proxies and a package that they need is missing."""
    if state.grpc_proxies and (package := missing_package(PROXY_PACKAGES)):
        raise SettingsError(f"gRPC proxies need the package {package}: pip install 'raftmq[proxy]'")


def proxy_conf(state: ClusterState, node: Node) -> str:
    """Return one proxy's configuration; the user's settings come last and so win."""
    own = {
        "namesrvAddr": state.namesrv,
        "bindAddress": node.host,
        "grpcServerPort": str(node.port),
    }
    # With namespaces an API would not be on loopback and would need tokens, so there is none.
    own |= {"httpEnable": "false"} if state.netns else {"httpPort": str(node.http_port)}
    own |= {key: value for key, value in state.settings.items() if key.startswith(SHARED)}
    return "".join(f"{key}={value}\n" for key, value in (own | state.proxy_settings).items())
