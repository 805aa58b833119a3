"""A client's settings in Apache's tls.properties."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftmq.remoting.tls import ClientTls, TlsError
from raftmq.remoting.tls_file import VARIABLE, client_tls_of, context_of, read_client_tls


def test_apaches_tls_properties_are_read(tmp_path: Path) -> None:
    path = tmp_path / "tls.properties"
    path.write_text(
        "# of a client\n"
        "tls.test.mode.enable=false\n"
        "tls.server.mode=enforcing\n"
        "tls.client.trustCertPath=ca.pem\n"
        "tls.client.certPath = /etc/client.crt\n"
        "tls.client.keyPath=client.key\n"
        "tls.client.keyPassword=a=b\n"
        "tls.client.authServer=false\n"
        "tls.client.checkHostName=false\n"
    )
    here = str(tmp_path)
    expected = ClientTls(
        f"{here}/ca.pem", "/etc/client.crt", f"{here}/client.key", "a=b", False, False
    )
    assert read_client_tls(str(path)) == expected
    assert client_tls_of({VARIABLE: str(path)}) == expected


def test_tls_off_and_missing_tls_properties(tmp_path: Path) -> None:
    path = tmp_path / "tls.properties"
    path.write_text("tls.enable=false\n")
    assert read_client_tls(str(path)) is None
    assert client_tls_of({}) is None
    assert context_of({VARIABLE: ""}) is None
    path.write_text("")
    assert read_client_tls(str(path)) == ClientTls()  # the system's CAs, and everything checked


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello\n", ":1: expected key=value"),
        ("\nlistenPort=1\n", ":2: unknown key 'listenPort'"),
        ("tls.enable=yes\n", "tls.enable=yes: expected true or false"),
        ("tls.client.authServer=1\n", "tls.client.authServer=1: expected true or false"),
        (None, ": No such file or directory"),
    ],
)
def test_malformed_tls_properties_are_reported(
    tmp_path: Path, text: str | None, words: str
) -> None:
    path = tmp_path / "tls.properties"
    if text is not None:
        path.write_text(text)
    with pytest.raises(TlsError) as caught:
        read_client_tls(str(path))
    assert str(caught.value).startswith(f"TLS settings {path}")
    assert str(caught.value).endswith(words)
