"""Length limits of client requests, where the protocol has none.

Settings are stored while the client is connected, sent to every replica of its broker groups, and
repeated in answers. `endpoints` limits names of topics and groups; `message_conversion` limits
messages.
"""

from __future__ import annotations

from .protocol.messaging_pb2 import (
    Code,
    Endpoints,
    FilterExpression,
    FilterType,
    Settings,
)
from .status_codes import StatusError

ID_CHARS_MAX = 255  # of clients, namespaces, messages and attempts, as at brokers
EXPRESSION_CHARS_MAX = 16_384  # as brokers' limit of SQL92
SETTINGS_BYTES_MAX = 256 * 1024
SUBSCRIPTIONS_MAX = 900  # per client; a topic each
ENDPOINTS_BYTES_MAX = 4_096  # each queue of an answered route repeats them


def expression_of(expression: FilterExpression) -> tuple[str, str]:
    """Return a filter's broker-side kind and its text. Raises StatusError."""
    text = expression.expression
    if len(text) > EXPRESSION_CHARS_MAX:
        message = f"the expression has {len(text)} characters, allowed are {EXPRESSION_CHARS_MAX}"
        raise StatusError(Code.ILLEGAL_FILTER_EXPRESSION, message)
    return ("SQL92" if expression.type == FilterType.SQL else "TAG"), text or "*"


def id_of(text: str, subject: str, code: Code = Code.BAD_REQUEST) -> str:
    """Return an id or a similar name. Raises StatusError with `code`."""
    if len(text) > ID_CHARS_MAX or not text.isprintable():
        raise StatusError(
            code, f"{subject} is longer than {ID_CHARS_MAX} characters, or not printable"
        )
    return text


def check_settings(settings: Settings) -> None:
    """Raise StatusError for settings above the limits."""
    size, count = settings.ByteSize(), len(settings.subscription.subscriptions)
    if size > SETTINGS_BYTES_MAX:
        text = f"the settings have {size} bytes; the most are {SETTINGS_BYTES_MAX}"
        raise StatusError(Code.PAYLOAD_TOO_LARGE, text)
    if count > SUBSCRIPTIONS_MAX:
        text = f"{count} subscriptions; the most are {SUBSCRIPTIONS_MAX}"
        raise StatusError(Code.BAD_REQUEST, text)


def check_endpoints(endpoints: Endpoints) -> None:
    """Raise StatusError for invalid proxy addresses."""
    if not endpoints.addresses:
        raise StatusError(Code.ILLEGAL_ACCESS_POINT, "the endpoints have no address")
    size = endpoints.ByteSize()
    if size > ENDPOINTS_BYTES_MAX:
        text = f"the endpoints have {size} bytes; the most are {ENDPOINTS_BYTES_MAX}"
        raise StatusError(Code.ILLEGAL_ACCESS_POINT, text)
