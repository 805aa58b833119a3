"""Signed registrations: what one connection's signature is worth, and nothing else."""

import random

import pytest

from raftmq.remoting.acl import Credentials
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.registration_proof import (
    COUNTER,
    NONCE,
    SIGNATURE,
    KeyFileError,
    RegistrationChallenge,
    RegistrationSigner,
    is_signed,
    keys_of,
    load_registration_keys,
    nonce_of,
)

KEY, OTHER = b"a-key-of-the-cluster", b"a-key-of-someone-else"
NONCE_A, NONCE_B = bytes(16), bytes(range(16))


def signed(key=KEY, nonce=NONCE_A, code=103, ext=None, body=b"body", times=1):
    signer = RegistrationSigner(key, nonce)
    for _ in range(times):
        command = RemotingCommand.request(code, dict(ext or {"brokerName": "b"}), body)
        signer.sign(command)
    return command


def test_registration_signature_is_valid_once_in_order_on_its_connection():
    challenge = RegistrationChallenge(NONCE_A)
    command = signed()
    assert is_signed(command) and not is_signed(RemotingCommand.request(103, {"a": "b"}))
    assert not RegistrationChallenge(NONCE_B).proves([KEY], command)
    assert not challenge.proves([OTHER], command)
    assert challenge.proves([OTHER, KEY], command)
    assert not challenge.proves([KEY], command), "a second time"
    assert challenge.proves([KEY], signed(times=5))
    assert not challenge.proves([KEY], signed(times=4)), "out of order"
    assert challenge.counter == 5


def test_registration_signature_precedes_the_access_control_signature():
    command = signed()
    Credentials("administrator", "sesame-open").sign(command)
    assert RegistrationChallenge(NONCE_A).proves([KEY], command)


@pytest.mark.parametrize("seed", range(200))
def test_any_change_invalidates_a_registration_signature(seed):
    rng = random.Random(seed)
    ext = {"brokerName": "b", "brokerAddr": "h:1", "raftTerm": "7", "raftGroupId": "0a" * 16}
    command = signed(ext=ext, body=b"topics")
    fields = dict(command.ext)
    kind = rng.choice(["value", "name", "more", "less", "move", "body", "code", "counter", "mark"])
    name = rng.choice(sorted(ext))
    if kind == "value":
        fields[name] += rng.choice(["x", " ", "\0", "1"])
    elif kind == "name":
        fields[name + "x"] = fields.pop(name)
    elif kind == "more":
        fields[f"z{seed}"] = ""
    elif kind == "less":
        del fields[name]
    elif kind == "move":  # the same text, cut elsewhere
        fields[name + fields[name]] = ""
        del fields[name]
    elif kind == "body":
        command.body += b"x"
    elif kind == "code":
        command.code = rng.choice([104, 322, -1])
    elif kind == "counter":
        fields[COUNTER] = rng.choice(["2", "0", "-1", "", "x", "9" * 40, "\u0661"])
    else:
        at = rng.randrange(64)
        mark = fields[SIGNATURE]
        fields[SIGNATURE] = mark[:at] + ("0" if mark[at] != "0" else "1") + mark[at + 1 :]
    command.ext = fields
    challenge = RegistrationChallenge(NONCE_A)
    assert not challenge.proves([KEY], command), kind
    assert challenge.counter == 0


def test_registration_nonces_and_keys_are_validated(tmp_path):
    for text, result in (("00" * 16, bytes(16)), ("00" * 15, None), ("zz", None), ("", None)):
        assert nonce_of(RemotingCommand.response_to(signed(), ext={NONCE: text})) == result
    refused = RemotingCommand.response_to(signed(), 3, "not supported", {NONCE: "00" * 16})
    assert nonce_of(refused) is None
    assert keys_of("\n one-key-that-is-long \n\nanother-key-as-long\n")[1] == b"another-key-as-long"
    path = tmp_path / "key"
    assert load_registration_keys("") == ()
    for content in (
        b"",
        b"short\n",
        b"\xff" * 20,
        b"long-enough-to-be-a-key\n" * 11,
        b"x" * 70_000,
    ):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(KeyFileError) as raised:
            load_registration_keys(str(path))
        assert "long-enough" not in str(raised.value) and "xff" not in str(raised.value)
    path.write_text("long-enough-to-be-a-key\n")
    assert load_registration_keys(str(path)) == (b"long-enough-to-be-a-key",)
    path.chmod(0o644)
    with pytest.raises(KeyFileError, match="open to everybody"):
        load_registration_keys(str(path))
    with pytest.raises(KeyFileError, match="No such file"):
        load_registration_keys(str(tmp_path / "none"))
