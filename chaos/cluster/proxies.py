"""The gRPC proxies of a cluster, their configuration, and whether they can run.

The brokers' settings of access and limits (accounts, TLS, message size) also hold for proxies.
Settings for proxies alone override them.
"""

from __future__ import annotations

from raftmq.packages import PROXY_PACKAGES, missing_package

from .clusterfile import ClusterState, Node, SettingsError

# Keys of broker.conf, or prefixes, with the same meaning for a proxy.
SHARED = ("tls", "acl", "innerClientAuthenticationCredentials", "maxMessageSize")


def check_installed(state: ClusterState) -> None:
    """Raises SettingsError if there are to be proxies and a package that they need is missing."""
    if state.grpc_proxies and (package := missing_package(PROXY_PACKAGES)):
        raise SettingsError(f"gRPC proxies need the package {package}: pip install 'raftmq[proxy]'")


def proxy_conf(state: ClusterState, node: Node) -> str:
    """Return a proxy's configuration; the user's settings are last and so override."""
    own = {
        "namesrvAddr": state.namesrv,
        "bindAddress": node.host,
        "grpcServerPort": str(node.port),
    }
    # With namespaces an API would not be on loopback and would need tokens, so there is none.
    own |= {"httpEnable": "false"} if state.netns else {"httpPort": str(node.http_port)}
    own |= {key: value for key, value in state.settings.items() if key.startswith(SHARED)}
    return "".join(f"{key}={value}\n" for key, value in (own | state.proxy_settings).items())
