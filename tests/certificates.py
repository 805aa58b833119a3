"""Certificates made for a test: a CA, and what it signs, as files."""

from __future__ import annotations

import datetime
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

LOCAL = ("localhost", "127.0.0.1")


class Authority:
    """A CA whose files stand below `directory`; `path` is its own certificate."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._ca = trustme.CA(organization_name=f"tests, {name}")
        self.path = str(directory / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.path)

    def issue(
        self,
        name: str,
        *hosts: str,
        expired: bool = False,
        days: int | None = None,
        password: str = "",
    ) -> tuple[str, str]:
        """Paths of a certificate (for this machine unless `hosts` says otherwise) and of its key;
        written over what had that name. `days`: until it expires."""
        left = -1 if expired else days
        now = datetime.datetime.now(datetime.UTC)
        end = None if left is None else now + datetime.timedelta(days=left)
        made = self._ca.issue_cert(*(hosts or LOCAL), not_after=end)
        cert, key = (str(self._directory / f"{name}{end}") for end in (".crt", ".key"))
        Path(cert).write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        locked = serialization.BestAvailableEncryption(password.encode() or b"-")
        pem = serialization.load_pem_private_key(made.private_key_pem.bytes(), None).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,  # all that Java reads
            locked if password else serialization.NoEncryption(),
        )
        Path(key).write_bytes(pem)
        return cert, key


def self_signed(directory: Path, usage: x509.ObjectIdentifier) -> tuple[str, str]:
    """Paths of a certificate that may be used for one thing, and of its key."""
    made, key = _signed_by_itself("alone", 1, x509.ExtendedKeyUsage([usage]))
    paths = directory / "alone.crt", directory / "alone.key"
    paths[0].write_bytes(made)
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(paths[0]), str(paths[1])


def trust_of(path: Path, *days: int) -> str:
    """Write a trust file with a CA for each of `days` until it ends; return its path."""
    is_ca = x509.BasicConstraints(ca=True, path_length=None)
    path.write_bytes(b"".join(_signed_by_itself(f"in {left}", left, is_ca)[0] for left in days))
    return str(path)


def _signed_by_itself(
    name: str, days: int, extension: x509.ExtensionType
) -> tuple[bytes, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(names)
        .issuer_name(names)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(extension, critical=False)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM), key
