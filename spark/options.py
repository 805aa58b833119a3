"""The options of format `raftmq`, parsed and checked.

Names are compared without regard to case, as Spark does. An unknown option is an error, because a
misspelt option would silently have its default. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from raftmq.remoting.acl.signature import Credentials
from raftmq.remoting.tls import ClientTls

from .errors import FormatError
from .offset_ranges import EARLIEST, LATEST, ROWS_MAX, Queue
from .rows import DAMAGE, MESSAGE_FIELDS, PROPERTIES

TIMEOUT_MS = 60_000
_CONNECTION = (
    "namesrv",
    "timeoutMs",
    "accessKey",
    "secretKey",
    "securityToken",
    "tls",
    "tlsTrustPath",
    "tlsCertPath",
    "tlsKeyPath",
    "tlsKeyPassword",
    "tlsAuthServer",
    "tlsCheckHostName",
)
NAMES = (
    "topic",
    "topicPattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "columns",
    "includeProperties",
    "failOnDataLoss",
    "onDamage",
    "pushdown",
    "consumerGroup",
    *_CONNECTION,
)
WRITE_NAMES = ("topic", "writer", "batch", "delivery", "stagingLocation", *_CONNECTION)
CHECKPOINT = "checkpointLocation"  # Spark passes it to the sink
FAIL, NULL, SKIP = "fail", "null", "skip"  # of onDamage
EXACTLY_ONCE, AT_LEAST_ONCE = DELIVERIES = ("exactly-once", "at-least-once")


class OptionError(FormatError, ValueError):
    """An option of format `raftmq` is missing, unknown or invalid."""


@dataclass(frozen=True, slots=True)
class Connection:
    """The connection settings. A request is retried for `timeout_ms` before its task fails."""

    namesrv: str
    timeout_ms: int
    group: str
    credentials: Credentials | None
    tls: ClientTls | None


@dataclass(frozen=True, slots=True)
class StartOffset:
    """A position in every queue. It is either the named offsets, with `default` (an offset,
    EARLIEST or LATEST) for the rest, or the first message stored at or after a time in ms."""

    default: int
    named: Mapping[Queue, int] = field(default_factory=dict)
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read. `topics` are names, or a pattern for them if `pattern` is set."""

    connection: Connection
    topics: tuple[str, ...]
    pattern: str
    start: StartOffset
    end: StartOffset
    partitions_min: int
    partition_rows_max: int
    rows_max: int  # per micro-batch
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    on_damage: str
    pushdown: bool


def read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse the options of a batch read or of a stream. Raises OptionError."""
    options = _checked(given)
    topics = tuple(name.strip() for name in options.get("topic", "").split(",") if name.strip())
    pattern = options.get("topicPattern", "")
    if bool(topics) == bool(pattern):
        raise OptionError("give option topic (several with commas) or topicPattern, one of them")
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(f"topicPattern is no regular expression: {error}") from None
    start = _start_offset(options, "starting", "latest" if streaming else "earliest")
    if streaming and ("endingOffsets" in options or "endingTimestamp" in options):
        raise OptionError("a stream has no end: leave out endingOffsets and endingTimestamp")
    return ReadOptions(
        _connection(options),
        topics,
        pattern,
        start,
        _start_offset(options, "ending", "latest"),
        _number(options, "minPartitions", 1, 1),
        _number(options, "maxRecordsPerPartition", ROWS_MAX, 1),
        _number(options, "maxOffsetsPerTrigger", ROWS_MAX, 1),
        _columns(options),
        _flag(options, "failOnDataLoss", True),
        _on_damage(options),
        _flag(options, "pushdown", False),
    )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write. Without `writer`, the location has a generated name. `staging` is ""
    if no location outlives the job. `batch` is the number of a job's batch, 0 if the job
    `is_numbered` not."""

    connection: Connection
    topic: str
    writer: str
    batch: int
    is_numbered: bool
    exactly_once: bool
    staging: str


def write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Parse the options of a batch write or of a stream's sink. Raises OptionError."""
    checkpoint = next((v for name, v in given.items() if name.lower() == CHECKPOINT.lower()), "")
    given = {name: v for name, v in given.items() if name.lower() != CHECKPOINT.lower()}
    options = _checked(given, WRITE_NAMES)
    if not options.get("topic"):
        raise OptionError("option topic is missing: the topic to write to, which has to exist")
    if streaming and "batch" in options:
        raise OptionError("a stream numbers its batches itself: leave out option batch")
    delivery = options.get("delivery", EXACTLY_ONCE)
    if delivery not in DELIVERIES:
        raise OptionError(f"option delivery is {' or '.join(DELIVERIES)}, not {delivery}")
    staging = options.get("stagingLocation") or (checkpoint if streaming else "")
    if streaming and not staging:
        raise OptionError(
            "give option checkpointLocation, or stagingLocation: rows are staged there before they "
            "are sent, so that every attempt sends the same"
        )
    if "batch" in options and not staging:
        raise OptionError("option batch needs option stagingLocation")
    return WriteOptions(
        _connection(options),
        options["topic"],
        options.get("writer", ""),
        _number(options, "batch", 0, 0),
        "batch" in options,
        delivery == EXACTLY_ONCE,
        staging,
    )


def options_of(connection: Connection) -> dict[str, str]:
    given = {
        "namesrv": connection.namesrv,
        "timeoutMs": str(connection.timeout_ms),
        "consumerGroup": connection.group,
    }
    if connection.credentials is not None:
        keys = connection.credentials
        given |= {"accessKey": keys.access_key, "secretKey": keys.secret_key}
        given |= {"securityToken": keys.security_token} if keys.security_token else {}
    if connection.tls is not None:
        tls = connection.tls
        given |= {
            "tls": "true",
            "tlsTrustPath": tls.trust_path,
            "tlsCertPath": tls.cert_path,
            "tlsKeyPath": tls.key_path,
            "tlsKeyPassword": tls.key_password,
            "tlsAuthServer": str(tls.auth_server),
            "tlsCheckHostName": str(tls.check_host_name),
        }
    return given


def connection_of(given: Mapping[str, str]) -> Connection:
    """Parse the connection settings. Raises OptionError."""
    return _connection(_checked(given))


def columns_of(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the requested columns. Raises OptionError."""
    return _columns(_checked(given))


def _checked(given: Mapping[str, str], names: Sequence[str] = NAMES) -> dict[str, str]:
    options, by_lower = {}, {name.lower(): name for name in names}
    for name, value in given.items():
        if name.lower() == "provider":  # of SQL's CREATE … USING
            continue
        known = by_lower.get(name.lower())
        if known is None:
            raise OptionError(f"there is no option {name}; options are {', '.join(names)}")
        options[known] = value
    return options


def _connection(options: Mapping[str, str]) -> Connection:
    if not options.get("namesrv"):
        raise OptionError("option namesrv is missing: HOST:PORT of a name server, several with ;")
    timeout_ms = _number(options, "timeoutMs", TIMEOUT_MS, 1)
    group = options.get("consumerGroup", "TOOLS_CONSUMER")  # a group of every broker
    return Connection(options["namesrv"], timeout_ms, group, _credentials(options), _tls(options))


def _credentials(options: Mapping[str, str]) -> Credentials | None:
    keys = options.get("accessKey", ""), options.get("secretKey", "")
    if keys == ("", ""):
        return None
    if not all(keys):
        raise OptionError("options accessKey and secretKey belong together")
    return Credentials(*keys, options.get("securityToken"))


def _tls(options: Mapping[str, str]) -> ClientTls | None:
    if not _flag(options, "tls", False):
        if any(name.startswith("tls") and name != "tls" for name in options):
            raise OptionError("options tls… need tls=true")
        return None
    return ClientTls(
        options.get("tlsTrustPath", ""),
        options.get("tlsCertPath", ""),
        options.get("tlsKeyPath", ""),
        options.get("tlsKeyPassword", ""),
        _flag(options, "tlsAuthServer", True),
        _flag(options, "tlsCheckHostName", True),
    )


def _start_offset(options: Mapping[str, str], which: str, default: str) -> StartOffset:
    offsets, time = f"{which}Offsets", f"{which}Timestamp"
    if time in options:
        if offsets in options:
            raise OptionError(f"give {offsets} or {time}, not both")
        return StartOffset(LATEST, {}, _number(options, time, 0, 0))
    text = options.get(offsets, default)
    names = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in names:
        return StartOffset(names[text.lower()])
    try:
        return StartOffset(names[default], _named(orjson.loads(text)))
    except (ValueError, TypeError, AttributeError):
        raise OptionError(
            f"{offsets} is earliest, latest or JSON like "
            f'{{"topic": {{"broker": {{"0": 17}}}}}}, not {text}'
        ) from None


def _named(table: dict[str, dict[str, dict[str, int]]]) -> dict[Queue, int]:
    offsets = {}
    for topic, brokers in table.items():
        for broker, queues in brokers.items():
            for number, offset in queues.items():
                if type(offset) is not int or offset < EARLIEST:
                    raise ValueError(offset)
                offsets[Queue(topic, broker, int(number))] = offset
    return offsets


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    known = [name for name, _ in MESSAGE_FIELDS]
    extra = [PROPERTIES] if _flag(options, "includeProperties", False) else []
    extra += [DAMAGE] if _on_damage(options) == NULL else []
    everything = known + extra
    if "columns" not in options:
        return tuple(everything)
    requested = {name.strip() for name in options["columns"].split(",")}
    strange = sorted(requested.difference([*known, PROPERTIES, DAMAGE]))
    if strange:
        raise OptionError(f"there is no column {strange[0]!r}; there are {', '.join(known)}")
    return tuple(name for name in [*known, PROPERTIES, DAMAGE] if name in requested)


def _on_damage(options: Mapping[str, str]) -> str:
    value = options.get("onDamage", FAIL).lower()
    if value not in (FAIL, NULL, SKIP):
        raise OptionError(f"option onDamage is {FAIL}, {NULL} or {SKIP}, not {value}")
    return value


def _number(options: Mapping[str, str], name: str, default: int, low: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < low or int(text) > ROWS_MAX:
        raise OptionError(f"option {name} is a whole number of at least {low}, not {text}")
    return int(text)


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"option {name} is true or false, not {text}")
    return text == "true"
