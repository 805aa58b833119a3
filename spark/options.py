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
from raftmq.remoting.names import address_map
from raftmq.remoting.tls import ClientTls

from .errors import FormatError
from .offset_ranges import EARLIEST, LATEST, ROWS_MAX, Queue
from .rows import DAMAGE, MESSAGE_FIELDS, PROPERTIES

TIMEOUT_MS = 60_000
TRIGGER_DELAY_MS = 15 * 60_000
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_DURATION = re.compile("([0-9]{1,9})(ms|s|m|h)")
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
    "brokerAddressMap",
)
NAMES = (
    "topic",
    "topicPattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "commitOffsets",
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
    # By address in routes, the address that is dialled here.
    reached_at: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class StartOffset:
    """A position in every queue: the named offsets, the first messages stored at or after the
    named times in ms, and for the rest `default` (EARLIEST or LATEST), or `timestamp_ms` if set.
    With `must_exist` there has to be a message at or after each time."""

    default: int
    named: Mapping[Queue, int] = field(default_factory=dict)
    timestamp_ms: int | None = None
    times_ms: Mapping[Queue, int] = field(default_factory=dict)
    must_exist: bool = False


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read. `topics` are names, or a pattern for them if `pattern` is set.
    `assigned` are the only queues to read, if any."""

    connection: Connection
    topics: tuple[str, ...]
    pattern: str
    assigned: tuple[Queue, ...]
    start: StartOffset
    end: StartOffset
    partitions_min: int
    partition_rows_max: int
    rows_max: int  # per micro-batch
    rows_min: int  # before the next micro-batch, or
    delay_ms_max: int  # since the last one
    commits: bool
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    on_damage: str
    pushdown: bool


def read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse the options of a batch read or of a stream. Raises OptionError."""
    options = _checked(given)
    topics = tuple(name.strip() for name in options.get("topic", "").split(",") if name.strip())
    pattern = options.get("topicPattern", "")
    assigned = _assigned(options)
    if [bool(topics), bool(pattern), bool(assigned)].count(True) != 1:
        raise OptionError(
            "give option topic (several with commas), topicPattern or assign, one of them"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(f"topicPattern is no regular expression: {error}") from None
    start = _start_offset(options, "starting", "latest" if streaming else "earliest")
    if streaming and ("endingOffsets" in options or "endingTimestamp" in options):
        raise OptionError("a stream has no end: leave out endingOffsets and endingTimestamp")
    rows_max = _number(options, "maxOffsetsPerTrigger", ROWS_MAX, 1)
    rows_min = _number(options, "minOffsetsPerTrigger", 0, 0)
    if rows_min > rows_max:
        raise OptionError("minOffsetsPerTrigger is larger than maxOffsetsPerTrigger")
    commits = _flag(options, "commitOffsets", False)
    if commits and "consumerGroup" not in options:
        raise OptionError("commitOffsets needs option consumerGroup, the group of the offsets")
    return ReadOptions(
        _connection(options),
        topics or tuple(sorted({queue.topic for queue in assigned})),
        pattern,
        assigned,
        start,
        _start_offset(options, "ending", "latest"),
        _number(options, "minPartitions", 1, 1),
        _number(options, "maxRecordsPerPartition", ROWS_MAX, 1),
        rows_max,
        rows_min,
        _duration_ms(options, "maxTriggerDelay", TRIGGER_DELAY_MS),
        commits,
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
    if connection.reached_at:
        entries = (f"{address}={reached}" for address, reached in connection.reached_at.items())
        given["brokerAddressMap"] = ";".join(entries)
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
    try:
        reached_at = address_map(options.get("brokerAddressMap", ""))
    except ValueError as error:
        raise OptionError(f"brokerAddressMap is {error}") from None
    return Connection(
        *(options["namesrv"], timeout_ms, group, _credentials(options), _tls(options)), reached_at
    )


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
        return _start_time(options, time, EARLIEST if default == "earliest" else LATEST)
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


def _start_time(options: Mapping[str, str], name: str, default: int) -> StartOffset:
    strategy = options.get("startingOffsetsByTimestampStrategy", "latest").lower()
    if strategy not in ("latest", "error"):
        raise OptionError(f"startingOffsetsByTimestampStrategy is latest or error, not {strategy}")
    must_exist = strategy == "error" and name == "startingTimestamp"
    if not options[name].startswith("{"):
        return StartOffset(LATEST, {}, _number(options, name, 0, 0), must_exist=must_exist)
    try:
        times_ms = _named(orjson.loads(options[name]))
        if min(times_ms.values(), default=0) < 0:
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        raise OptionError(
            f"{name} is milliseconds since 1970, or JSON like "
            f'{{"topic": {{"broker": {{"0": 1700000000000}}}}}}, not {options[name]}'
        ) from None
    return StartOffset(default, times_ms=times_ms, must_exist=must_exist)


def _assigned(options: Mapping[str, str]) -> tuple[Queue, ...]:
    if "assign" not in options:
        return ()
    try:
        table = orjson.loads(options["assign"])
        queues = [
            Queue(topic, broker, number)
            for topic, brokers in table.items()
            for broker, numbers in brokers.items()
            for number in numbers
        ]
        if not queues or any(type(queue.queue_id) is not int for queue in queues):
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        raise OptionError(
            'assign is JSON like {"topic": {"broker": [0, 1]}}, not ' + options["assign"]
        ) from None
    return tuple(sorted(set(queues)))


def _duration_ms(options: Mapping[str, str], name: str, default: int) -> int:
    match = _DURATION.fullmatch(options.get(name, f"{default}ms"))
    if match is None:
        raise OptionError(f"option {name} is a time such as 90s, 15m or 1h, not {options[name]}")
    return int(match[1]) * _UNITS_MS[match[2]]


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
