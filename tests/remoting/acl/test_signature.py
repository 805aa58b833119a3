"""The signature: the known vector, the order of keys, both header codecs, our producer's frames."""

import pytest

from raftmq.client.message import Message
from raftmq.client.producer.send_frame import (
    SendTemplate,
    SignedTemplate,
    outgoing,
    outgoing_batch,
    template_for,
)
from raftmq.remoting.acl import Credentials
from raftmq.remoting.acl.signature import is_signed_by, signature, signed_text
from raftmq.remoting.codec import FrameReader, decode_command, encode_command
from raftmq.remoting.command import BINARY, JSON, RemotingCommand

SECRET = "12345678"
CREDENTIALS = Credentials("rocketmq2", SECRET)


def test_signature_test_vector():
    ext = {"AccessKey": "rocketmq2", "topic": "T"}
    assert signed_text(ext, b"hello") == b"rocketmq2Thello"
    assert signature(SECRET, b"rocketmq2Thello") == "kPUKNh0ggWAX+mpM4EHuxapYvSo="


def test_signed_fields_are_ordered_as_in_java_without_the_signature():
    # U+1F600 is D83D DE00 in UTF-16: before U+FF21, although its code point is behind.
    ext = {"\uff21": "3", "\U0001f600": "2", "b": "1", "Z": "0", "Signature": "no"}
    assert signed_text(ext, b"") == b"0123"


def test_signing_replaces_an_existing_signature():
    command = RemotingCommand.request(105, {"topic": "T", "Signature": "x", "SecurityToken": "old"})
    CREDENTIALS.sign(command)
    assert command.ext is not None
    assert set(command.ext) == {"topic", "AccessKey", "Signature"}
    assert is_signed_by(SECRET, command.ext, command.body)


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
def test_signature_is_valid_in_both_header_codecs(serialize_type):
    command = RemotingCommand.request(310, {"b": "订单", "i": 'a\x01"q"\x02', "e": ""}, b"\x00\xff")
    Credentials("rocketmq2", SECRET, "token").sign(command)
    reader = FrameReader()
    reader.receive_data(encode_command(command, serialize_type))
    raw = reader.next_frame()
    assert raw is not None
    read = decode_command(raw)
    assert read.ext is not None and read.ext["SecurityToken"] == "token"
    assert is_signed_by(SECRET, read.ext, read.body)
    assert not is_signed_by(SECRET + "9", read.ext, read.body)
    assert not is_signed_by(SECRET, read.ext, read.body + b"!")
    assert not is_signed_by(SECRET, read.ext | {"b": "other"}, read.body)
    del read.ext["Signature"]
    assert not is_signed_by(SECRET, read.ext, read.body)


def test_field_added_by_some_clients_after_signing_is_accepted():
    before = RemotingCommand.request(12, {"topic": "T", "_UNIQUE_KEY_QUERY": "true"})
    CREDENTIALS.sign(before)
    after = RemotingCommand.request(12, {"topic": "T"})
    CREDENTIALS.sign(after)
    assert before.ext is not None and after.ext is not None
    assert is_signed_by(SECRET, before.ext, b"")
    assert is_signed_by(SECRET, after.ext | {"_UNIQUE_KEY_QUERY": "true"}, b"")
    assert not is_signed_by(SECRET, after.ext | {"_UNIQUE_KEY": "true"}, b"")


@pytest.mark.parametrize("token", [None, 'to"ken'])
def test_signed_producer_frames_differ_only_by_the_signature(token):
    credentials = Credentials("rocketmq2", SECRET, token)
    message = Message("to%pic", "körper".encode(), tags="T", keys='k"ey')
    items = [outgoing(message, "ID", 17), outgoing_batch([message, message], ["A", "B"], 18)]
    for item in items:
        names = ("gr%up", message.topic, "b-0", item.code)
        signed = _decoded(SignedTemplate(credentials, *names).frame(item, 3, 99, 2))
        plain = _decoded(SendTemplate(*names).frame(item, 3, 99, 2))
        assert signed.ext is not None and plain.ext is not None
        assert is_signed_by(SECRET, signed.ext, signed.body)
        added = {k: v for k, v in signed.ext.items() if k not in plain.ext}
        assert added.pop("Signature")
        expected = {"AccessKey": "rocketmq2"} | ({"SecurityToken": token} if token else {})
        assert added == expected
        signed.ext = plain.ext
        assert signed == plain


def test_send_template_without_credentials_is_the_plain_one():
    assert type(template_for(None, "g", "t", "b", 310)) is SendTemplate


def test_repr_of_credentials_has_no_secret():
    command = RemotingCommand.request(50, {"accessKey": "somebody", "secretKey": "sesame-open"})
    Credentials("rocketmq2", SECRET, "token-1").sign(command)
    shown = f"{command!r} {Credentials('rocketmq2', SECRET, 'token-1')!r}"
    for secret in (SECRET, "sesame-open", "token-1", (command.ext or {})["Signature"]):
        assert secret not in shown


def test_incomplete_credentials_are_rejected():
    with pytest.raises(ValueError, match="access key and a secret key"):
        Credentials("rocketmq2", "")


def _decoded(frame):
    reader = FrameReader()
    reader.receive_data(frame)
    raw = reader.next_frame()
    assert raw is not None and reader.next_frame() is None
    return decode_command(raw)
