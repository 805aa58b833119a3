"""`RemotingCommand`: one request or response, decoded. Pure.

Flag bits: 1 = response, 2 = one-way (no response is wanted, and none may be sent).
`ext` is the custom header: all values are strings; None if the frame had none. A success response
to a send must have `ext` (Java clients dereference it unguarded).
"""

from __future__ import annotations

from .codes import MQ_VERSION, SUCCESS, LanguageCode

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
JSON = 0  # serialize type of the header
BINARY = 1  # Apache calls this one ROCKETMQ
# Never shown: the secret of an account that is changed (50), and the proofs of the sender.
SECRET_FIELDS = frozenset(("secretKey", "Signature", "SecurityToken"))


class RemotingCommand:
    """One request or response. Not frozen: the connection that sends a request sets `opaque`."""

    __slots__ = (
        "body",
        "code",
        "ext",
        "flag",
        "language",
        "opaque",
        "remark",
        "serialize_type",
        "version",
    )

    def __init__(
        self,
        code: int,
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        language: int = LanguageCode.PYTHON,
        version: int = MQ_VERSION,
        serialize_type: int = JSON,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.ext = ext
        self.body = body
        self.language = language
        self.version = version
        self.serialize_type = serialize_type  # of the frame it came in; a reply uses the same

    @classmethod
    def request(
        cls, code: int, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Make a request; the connection that sends it chooses its opaque."""
        return cls(int(code), ext=ext, body=body)

    @classmethod
    def response_to(
        cls,
        request: RemotingCommand,
        code: int = SUCCESS,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> RemotingCommand:
        """Make the answer to `request`: same opaque, same header codec."""
        return cls(
            int(code),
            request.opaque,
            RESPONSE_FLAG,
            remark,
            ext,
            body,
            serialize_type=request.serialize_type,
        )

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)

    def __eq__(self, other: object) -> bool:
        """Compare what the peer sees: the header codec does not count."""
        if not isinstance(other, RemotingCommand):
            return NotImplemented
        return all(
            getattr(self, name) == getattr(other, name)
            for name in self.__slots__
            if name != "serialize_type"
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        ext = self.ext and {k: "******" if k in SECRET_FIELDS else v for k, v in self.ext.items()}
        return (
            f"<{kind} code={self.code} opaque={self.opaque} remark={self.remark!r} "
            f"ext={ext!r} body={len(self.body)} bytes>"
        )
