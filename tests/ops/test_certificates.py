"""deploy/certificates.sh makes certificates, renews them, and says why it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography import x509

SCRIPT = Path(__file__).parents[2] / "deploy" / "certificates.sh"
NOBODY = 65534
FILES = {"ca.crt", "ca.key", "raft-ca.crt", "raft-ca.key"}

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """A directory of whom the script runs as: of nobody, if the tests run as root."""
    if os.getuid() == 0:
        os.chown(tmp_path, NOBODY, NOBODY)
    return tmp_path


def made(location: Path, *hosts: str) -> subprocess.CompletedProcess[str]:
    """The script comes over standard input: nobody may not search the way to it."""
    user = NOBODY if os.getuid() == 0 else None
    command = ["sh", "-s", "tls", *hosts]
    with SCRIPT.open() as script:
        return subprocess.run(
            command, stdin=script, cwd=location, user=user, capture_output=True, text=True
        )


def contents(location: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (location / "tls").rglob("*") if path.is_file()}


def test_second_run_renews_certificates_of_the_same_authorities(location: Path) -> None:
    assert made(location, "h0").returncode == 0
    before = contents(location)
    again = made(location, "h0")
    assert (again.returncode, again.stderr) == (0, "")
    after = contents(location)
    changed = {path.name for path in before if before[path] != after[path]}
    assert before.keys() == after.keys()
    assert {"server.crt", "server.key", "raft.crt", "client.key"} <= changed
    assert not changed & FILES


def test_foreign_certificate_directory_is_named_and_unchanged(location: Path) -> None:
    """As after the `chown -R 10001 tls` of docs/deployment.md."""
    assert made(location, "h0").returncode == 0
    before = contents(location)
    (location / "tls").chmod(0)
    again = made(location, "h0")
    (location / "tls").chmod(0o700)
    assert again.returncode == 1
    assert "tls" in again.stderr and "sudo" in again.stderr
    assert contents(location) == before


@pytest.mark.parametrize("name", ["ca", "raft-ca"])
def test_certificate_without_its_key_is_not_overwritten(location: Path, name: str) -> None:
    assert made(location, "h0").returncode == 0
    (location / "tls" / f"{name}.key").unlink()
    before = contents(location)
    again = made(location, "h0")
    assert again.returncode == 1 and f"{name}.key" in again.stderr
    assert contents(location) == before


def test_openssl_error_is_shown_and_leaves_no_unfinished_file(location: Path) -> None:
    assert made(location, "h0").returncode == 0
    (location / "tls" / "raft-ca.key").write_text("no key")
    again = made(location, "h0", "h1")
    assert again.returncode != 0 and "raft-ca.key" in again.stderr
    endings = {path.suffix for path in (location / "tls").rglob("*") if path.is_file()}
    assert endings <= {".crt", ".key", ".srl", ".properties"}


def test_host_may_be_longer_than_a_common_name(location: Path) -> None:
    host = f"broker-a-0.broker-a.{'n' * 40}.svc.cluster.local"
    done = made(location, host)
    assert done.returncode == 0, done.stderr
    certificate = x509.load_pem_x509_certificate(
        (location / "tls" / host / "server.crt").read_bytes()
    )
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert host in names.get_values_for_type(x509.DNSName)
