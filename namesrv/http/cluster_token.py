"""Decides which broker is shown the cluster's token (httpClusterTokenFile). Pure.

Anything can register as a broker and name an HTTP address, even an impostor, and whoever sees the
token can use it at every broker. So it is shown on two conditions:

1. It is proven that the address belongs to a broker of the cluster: the broker signed its
   registration (remoting/registration_proof.py) or, if this name server has no key for that, has a
   certificate of the cluster's own CA. CAs that the system trusts give certificates to everybody,
   so a certificate of theirs proves nothing here.
2. Nobody can listen in: the connection is HTTPS with a verified certificate, or stays on this
   machine. `in_the_clear` waives this condition.
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
    """The token, and the decision to which broker it is shown. `is_signed(http_address)`: whether a
    live broker has registered that address with a signature. `tls_verifies`: certificates of HTTPS
    are checked; `own_ca`: against the cluster's own CA."""

    token: str = ""
    is_signed: Callable[[str], bool] = _nobody
    signatures_wanted: bool = False  # this name server has a key for registrations
    tls_verifies: bool = True
    own_ca: bool = False
    in_the_clear: bool = False

    def headers(self, url: URL, http_address: str) -> dict[str, str]:
        """Return the header that shows it to a broker; empty if it is not shown."""
        if not self.token or self.withheld(url, http_address):
            return {}
        return {"Authorization": f"Bearer {self.token}"}

    def distrusted(self, url: URL, http_address: str) -> str:
        """Return why a broker is told no secret; "" if it may be. Without a token there is only
        trust in this machine."""
        if self.token or is_loopback(url.host or ""):
            return self.withheld(url, http_address)
        return "this name server has no token for brokers: httpClusterTokenFile"

    def withheld(self, url: URL, http_address: str) -> str:
        """Return why a broker is not shown the token; "" if it is, or if there is none."""
        if not self.token:
            return ""
        is_private = url.scheme == "https" and self.tls_verifies
        if not (is_private or self.in_the_clear or is_loopback(url.host or "")):
            return "its HTTP is in the clear: httpTlsMode, or httpClusterTokenInTheClear=true"
        has_certificate = is_private and self.own_ca and not self.signatures_wanted
        if has_certificate or self.is_signed(http_address):
            return ""
        return "its registration is not signed: registrationKeyFile"
