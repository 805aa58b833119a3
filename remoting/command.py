"""`RemotingCommand`, a decoded request or response.

Flag bits: 1 is a response, 2 is one-way (no response is allowed). `ext` is the custom header with
string values; None if the frame had none. A success response to a send must have `ext`, because
Java clients dereference it unguarded. Pure, without I/O.
"""

from __future__ import annotations

from .codes import MQ_VERSION, SUCCESS, LanguageCode

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
JSON = 0  # serialize type of the header
BINARY = 1  # ROCKETMQ in Apache's terms
# Never shown, because these are an account's secret (50) and the sender's proofs.
SECRET_FIELDS = frozenset(("secretKey", "Signature", "SecurityToken"))


class RemotingCommand:
    """A request or response. Not frozen, because the sending connection sets `opaque`."""

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
        self.serialize_type = serialize_type  # of its frame; a reply uses the same

    @classmethod
    def request(
        cls, code: int, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Make a request; the sending connection chooses its opaque."""
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
        """Make the answer to `request`, with the same opaque and header codec."""
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
        """Compare except for the header codec."""
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
