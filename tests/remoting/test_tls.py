"""Contexts from files: what is wrong with them is said, and they are renewed."""

from __future__ import annotations

import logging
import os
import ssl
import time
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from raftmq.remoting import tls
from raftmq.remoting.tls import (
    EXPIRES_SOON_S,
    Certificate,
    ClientAuth,
    ClientTls,
    Renewed,
    ServerTls,
    TlsError,
    build_client,
    build_server,
    tls_reason,
)
from tests.certificates import Authority, self_signed, trust_of


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_server_context_of_certificate_key_and_trust(ca: Authority) -> None:
    cert, key = ca.issue("server", password="open sesame")
    built = build_server(ServerTls(cert, key, "open sesame", ca.path, ClientAuth.REQUIRE))
    assert built.context.verify_mode is ssl.CERT_REQUIRED
    assert built.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert built.certificate is not None
    assert "tests, ca" in built.certificate.issuer
    optional = build_server(ServerTls(cert, key, "open sesame", ca.path, ClientAuth.OPTIONAL))
    assert optional.context.verify_mode is ssl.CERT_OPTIONAL
    assert "open sesame" not in repr(ServerTls(cert, key, "open sesame"))


def test_certificate_and_key_may_share_a_file(ca: Authority, tmp_path: Path) -> None:
    cert, key = ca.issue("server")
    both = tmp_path / "both.pem"
    both.write_bytes(Path(key).read_bytes() + Path(cert).read_bytes())
    assert build_server(ServerTls(str(both))).certificate is not None


def test_client_context_checks_certificates_by_default(ca: Authority) -> None:
    strict = build_client(ClientTls(ca.path)).context
    assert strict.check_hostname
    assert strict.verify_mode is ssl.CERT_REQUIRED
    assert build_client(ClientTls()).context.verify_mode is ssl.CERT_REQUIRED
    other_name = build_client(ClientTls(ca.path, check_host_name=False)).context
    assert not other_name.check_hostname
    assert other_name.verify_mode is ssl.CERT_REQUIRED
    anybody = build_client(ClientTls(auth_server=False)).context
    assert not anybody.check_hostname
    assert anybody.verify_mode is ssl.CERT_NONE
    cert, key = ca.issue("client")
    assert build_client(ClientTls(ca.path, cert, key)).certificate is not None


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("no certificate file", "certificate file {d}/none: No such file or directory"),
        ("no key file", "key file {d}/none: No such file or directory"),
        ("no trust file", "trust file {d}/none: No such file or directory"),
        ("certificate is text", "certificate file {d}/text: holds no certificate in PEM"),
        ("key is text", "key file {d}/text: holds no private key in PEM"),
        ("trust is text", "trust file {d}/text: holds no certificate in PEM"),
        ("certificate is damaged", "certificate file {d}/damaged, key file {d}/s.key: cannot be"),
        ("trust is damaged", "trust file {d}/damaged: cannot be read: "),
        ("key of another", "key file {d}/other.key: is not the key of {d}/s.crt"),
        ("no password", "key file {d}/locked.key: is encrypted, and no password is set"),
        ("wrong password", "key file {d}/locked.key: the password is wrong"),
        ("nothing named", "a TLS server needs a certificate: no file is named"),
        ("no trust named", "client certificates are asked for, and no trust store is named"),
    ],
)
def test_tls_errors_name_the_file_and_the_reason(
    ca: Authority, tmp_path: Path, what: str, words: str
) -> None:
    cert, key = ca.issue("s")
    _, other = ca.issue("other")
    locked_cert, locked = ca.issue("locked", password="right")
    text, damaged, none = (str(tmp_path / name) for name in ("text", "damaged", "none"))
    Path(text).write_text("hello\n")
    Path(damaged).write_text(Path(cert).read_text().replace("\nMII", "\nAAA"))
    need = ClientAuth.REQUIRE
    settings = {
        "no certificate file": ServerTls(none, key),
        "no key file": ServerTls(cert, none),
        "no trust file": ServerTls(cert, key, "", none, need),
        "certificate is text": ServerTls(text, key),
        "key is text": ServerTls(cert, text),
        "trust is text": ServerTls(cert, key, "", text, need),
        "certificate is damaged": ServerTls(damaged, key),
        "trust is damaged": ServerTls(cert, key, "", damaged, need),
        "key of another": ServerTls(cert, other),
        "no password": ServerTls(locked_cert, locked),
        "wrong password": ServerTls(locked_cert, locked, "wrong"),
        "nothing named": ServerTls(""),
        "no trust named": ServerTls(cert, key, "", "", need),
    }
    with pytest.raises(TlsError) as caught:
        build_server(settings[what])
    assert str(caught.value).startswith(words.format(d=tmp_path)), str(caught.value)


def test_key_without_a_certificate_is_rejected(ca: Authority) -> None:
    _, key = ca.issue("client")
    with pytest.raises(TlsError, match="no certificate file is named for it"):
        build_client(ClientTls(ca.path, "", key))


def test_certificate_with_the_wrong_usage_is_rejected(tmp_path: Path) -> None:
    """The purpose is looked at here, not by the first who connects."""
    cert, key = self_signed(tmp_path, ExtendedKeyUsageOID.CLIENT_AUTH)
    assert build_client(ClientTls(cert, cert, key)).certificate is not None
    with pytest.raises(TlsError, match=r"certificate file .*purpose"):
        build_server(ServerTls(cert, key))
    cert, key = self_signed(tmp_path, ExtendedKeyUsageOID.SERVER_AUTH)
    assert build_server(ServerTls(cert, key)).certificate is not None
    with pytest.raises(TlsError, match=r"certificate file .*purpose"):
        build_client(ClientTls(cert, cert, key))


def test_changed_certificate_files_are_loaded(ca: Authority) -> None:
    cert, key = ca.issue("server")
    renewed = Renewed(ServerTls(cert, key), "server")
    first, before = renewed.context, renewed.certificate
    renewed.check()
    assert renewed.context is first
    ca.issue("server")
    renewed.check()
    assert renewed.context is not first
    assert renewed.certificate != before
    assert (renewed.renewed_count, renewed.error) == (1, "")


def test_symbolic_link_to_other_certificate_files_is_a_change(
    ca: Authority, tmp_path: Path
) -> None:
    """As container orchestrators renew what they mount."""
    link = tmp_path / "current"
    for number in (1, 2):
        (tmp_path / f"v{number}").mkdir()
        for path in ca.issue("server"):
            os.replace(path, tmp_path / f"v{number}" / Path(path).name)
    link.symlink_to(tmp_path / "v1")
    renewed = Renewed(ServerTls(f"{link}/server.crt", f"{link}/server.key"), "server")
    fresh = tmp_path / "fresh"
    fresh.symlink_to(tmp_path / "v2")
    fresh.replace(link)
    renewed.check()
    assert renewed.renewed_count == 1


def test_broken_certificate_files_are_reported_and_not_loaded(
    ca: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = ca.issue("server")
    renewed = Renewed(ServerTls(cert, key), "server")
    first = renewed.context
    good = Path(cert).read_bytes()
    for broken, text in ((b"", "holds no certificate in PEM"), (good[:300], "does not end")):
        Path(cert).write_bytes(broken)
        for _ in range(3):
            renewed.check()
        assert renewed.context is first
        assert text in renewed.error or "cannot be read" in renewed.error
    assert caplog.text.count("tls_not_renewed") == 2  # once each, not at every look
    Path(cert).unlink()
    renewed.check()
    assert "No such file" in renewed.error
    Path(cert).write_bytes(good)
    renewed.check()
    assert (renewed.error, renewed.renewed_count) == ("", 1)


def test_certificate_files_replaced_during_a_read_are_read_again(
    ca: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a check would hold for other contents than those that are shown."""
    cert, key = ca.issue("server")
    renewed = Renewed(ServerTls(cert, key), "server")
    ca.issue("server")
    checked = tls._certificate

    def replaced(settings: ServerTls, purpose: ssl.Purpose) -> Certificate:
        result = checked(settings, purpose)
        ca.issue("server")
        return result

    with monkeypatch.context() as patched:
        patched.setattr(tls, "_certificate", replaced)
        renewed.check()
    assert renewed.error == f"certificate file {cert}: replaced while it was read"
    renewed.check()
    assert (renewed.error, renewed.renewed_count) == ("", 1)


def test_expired_certificate_does_not_replace_a_valid_one(
    ca: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = ca.issue("server", expired=True)
    renewed = Renewed(ServerTls(cert, key), "server")  # better than no server at all
    renewed.check()
    reported = [record.getMessage().split()[0] for record in caplog.records]
    assert reported == ["tls_certificate_expired"]  # once
    ca.issue("server")
    renewed.check()
    good = renewed.context
    assert renewed.error == ""
    ca.issue("server", expired=True)
    renewed.check()
    assert renewed.context is good
    assert "the certificate has expired" in renewed.error


def test_certificate_expiry_is_reported_before_and_at_its_end(
    ca: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once each, although the files do not change."""
    cert, key = ca.issue("server", days=90)
    renewed = Renewed(ServerTls(cert, key, "", ca.path, ClientAuth.REQUIRE), "server")
    assert renewed.certificate is not None
    end_s = renewed.certificate.not_after_s

    def told_at(now_s: float, renewed: Renewed = renewed) -> list[tuple[int, str]]:
        monkeypatch.setattr(time, "time", lambda: now_s)
        caplog.clear()
        for _ in range(3):
            renewed.check()
        result = [one for one in caplog.records if one.levelno >= logging.WARNING]
        return [(one.levelno, one.getMessage().split()[0]) for one in result]

    soon = [(logging.WARNING, "tls_certificate_expires")]
    over = [(logging.ERROR, "tls_certificate_expired")]
    assert (told_at(end_s - EXPIRES_SOON_S), renewed.expiry) == ([], "")
    assert told_at(end_s - EXPIRES_SOON_S + 1) == soon
    assert renewed.expiry.startswith("server: the certificate expires at ")
    assert "for=server certificate=" in caplog.text
    Path(ca.path).touch()
    assert told_at(end_s - 1) == []  # the same certificate, loaded again
    assert renewed.renewed_count == 1
    assert told_at(end_s) == over
    assert renewed.expiry.startswith("server: the certificate expired at ")
    assert told_at(end_s - 1) == []  # a clock that was set back
    assert told_at(end_s + 1) == []
    again = Renewed(ServerTls(cert, key), "again")  # after a restart: told at once
    assert caplog.records[-1].getMessage().startswith("tls_certificate_expired for=again ")
    assert told_at(end_s, again) == []
    monkeypatch.setattr(time, "time", lambda: end_s - 1)
    assert told_at(end_s - 1, Renewed(ServerTls(cert, key), "again")) == soon


def test_expiry_of_a_new_certificate_is_reported_again(
    ca: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = ca.issue("server", days=13)
    renewed = Renewed(ServerTls(cert, key), "server")
    renewed.check()
    ca.issue("server", days=12)
    renewed.check()
    assert caplog.text.count("tls_certificate_expires for=server") == 2
    ca.issue("server", days=15)
    renewed.check()
    assert caplog.text.count("tls_certificate_expires for=server") == 2
    assert renewed.expiry == ""


def test_expiry_of_the_last_trusted_ca_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While CAs are changed, a trust file has both, and the older one may end."""
    path = tmp_path / "trust.pem"
    renewed = Renewed(ClientTls(trust_of(path, 5, 90)), "raft client")
    renewed.check()
    assert (renewed.expiry, caplog.text) == ("", "")
    trust_of(path, 5, 3)
    renewed.check()
    assert "tls_certificate_expires for=raft client CA certificate='commonName=in 5'" in caplog.text
    assert renewed.expiry.startswith("raft client CA: the certificate expires at ")
    ((name, authority),) = renewed.watched
    assert (name, authority.subject) == ("raft client CA", "commonName=in 5")


def test_client_without_a_certificate_has_no_expiry(ca: Authority) -> None:
    renewed = Renewed(ClientTls(ca.path), "client")
    renewed.check()
    assert renewed.expiry == ""


def test_tls_error_reasons() -> None:
    assert tls_reason(ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)")) == (
        "Connection refused"
    )
    assert tls_reason(ConnectionResetError("hung up")) == "hung up"
    error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1)")
    error.reason = "WRONG_VERSION_NUMBER"
    assert tls_reason(error).endswith("the other side does not speak TLS")
