"""Access of brokers to the cluster's token (httpClusterTokenFile).

Impostors can register as brokers with any HTTP address, and the token gives access to every broker.
So two conditions must hold before the token is sent.

1. The address is proven to belong to a broker of the cluster. The broker signed its registration
(remoting/registration_proof.py) or, without a key for that, has a certificate of the cluster's own
CA. Public CAs issue certificates to everybody and prove nothing here.

2. The connection is private, that is HTTPS with a verified certificate, or loopback. `in_the_clear`
waives this condition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from yarl import URL

from raftmq.web.settings import is_loopback


def _nobody(_: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class ClusterToken:
    """The token and its conditions. `is_signed(http_address)` is true for addresses of signed
    registrations. `tls_verifies` means that HTTPS certificates are verified, and `own_ca` that the
    cluster's own CA issued them."""

    token: str = ""
    is_signed: Callable[[str], bool] = _nobody
    signatures_required: bool = False  # this name server has a key for registrations
    tls_verifies: bool = True
    own_ca: bool = False
    in_the_clear: bool = False

    def headers(self, url: URL, http_address: str) -> dict[str, str]:
        if not self.token or self.withheld(url, http_address):
            return {}
        return {"Authorization": f"Bearer {self.token}"}

    def distrusted(self, url: URL, http_address: str) -> str:
        """Return why a broker gets no secrets, or "". Without a token only this machine does."""
        if self.token or is_loopback(url.host or ""):
            return self.withheld(url, http_address)
        return "this name server has no token for brokers: httpClusterTokenFile"

    def withheld(self, url: URL, http_address: str) -> str:
        """Return the reason not to send a broker the token, or ""."""
        if not self.token:
            return ""
        is_private = url.scheme == "https" and self.tls_verifies
        if not (is_private or self.in_the_clear or is_loopback(url.host or "")):
            return "its HTTP is in the clear: httpTlsMode, or httpClusterTokenInTheClear=true"
        has_certificate = is_private and self.own_ca and not self.signatures_required
        if has_certificate or self.is_signed(http_address):
            return ""
        return "its registration is not signed: registrationKeyFile"
