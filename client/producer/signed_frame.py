"""Encodes signed send requests: the hot path of a producer with credentials. Pure.

The signed text of a V2 header is its values in the order of their short names, a to n; `AccessKey`
and `SecurityToken` sort before them all, and are the same for every message. So a constant start
and end are prepared, and only what differs between messages is put in between
(client.producer.send_frame).
"""

from __future__ import annotations

import orjson

from raftmq.remoting.acl.signature import (
    ACCESS_KEY,
    SECURITY_TOKEN,
    SIGNATURE,
    Credentials,
    signature,
)

from .send_frame import FRAME_PREFIX, SEND_BATCH_MESSAGE, OutgoingSend, SendTemplate


class SignedTemplate:
    """A template whose frames are signed."""

    __slots__ = ("_after_properties", "_before_queue", "_extra", "_plain", "_secret")

    def __init__(
        self,
        credentials: Credentials,
        producer_group: str,
        topic: str,
        broker_name: str,
        code: int,
    ) -> None:
        self._plain = SendTemplate(producer_group, topic, broker_name, code)
        fields = {ACCESS_KEY: credentials.access_key}
        if credentials.security_token:
            fields[SECURITY_TOKEN] = credentials.security_token
        batch = "true" if code == SEND_BATCH_MESSAGE else "false"
        own = "".join(fields.values())
        self._before_queue = f"{own}{producer_group}{topic}TBW1024".encode()
        self._after_properties = f"0false{batch}{broker_name}".encode()
        self._extra = orjson.dumps(fields)[1:-1]
        self._secret = credentials.secret_key

    def frame(self, item: OutgoingSend, queue_id: int, opaque: int, rpc_flag: int = 0) -> bytes:
        changing = b"%d%d%d%d" % (queue_id, item.sys_flag, item.born_ms, item.flag)
        properties = orjson.loads(item.properties_json).encode()
        text = b"".join(
            (self._before_queue, changing, properties, self._after_properties, item.body)
        )
        plain = self._plain.frame(item, queue_id, opaque, rpc_flag)
        _, plain_size = FRAME_PREFIX.unpack_from(plain)
        start = FRAME_PREFIX.size
        header = plain[start : start + plain_size]
        # The first extFields opens right after the code, before any text that a user chose.
        at = header.index(_OPENING) + len(_OPENING)
        added = b'%s,"%s":"%s",' % (self._extra, _NAME, signature(self._secret, text).encode())
        size = plain_size + len(added)
        prefix = FRAME_PREFIX.pack(4 + size + len(item.body), size)
        return b"".join((prefix, header[:at], added, header[at:], item.body))


Template = SendTemplate | SignedTemplate
_OPENING = b'"extFields":{'
_NAME = SIGNATURE.encode()


def template_for(
    credentials: Credentials | None, producer_group: str, topic: str, broker_name: str, code: int
) -> Template:
    """Return the template for sends, signed with `credentials` if there are any."""
    if credentials is None:
        return SendTemplate(producer_group, topic, broker_name, code)
    return SignedTemplate(credentials, producer_group, topic, broker_name, code)
