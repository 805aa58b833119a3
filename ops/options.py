"""Declarations of configuration keys, and the checking of values against them.

A process's configuration is a frozen dataclass with fields declared by `option`: key, default,
unit, range, choices, whether it may change while the process runs, and its meaning. Reading files
(ops.settings), `config show`, the API and docs/configuration.md derive from these declarations. A
wrong key or value is a `ConfigError` with the key, its source and the expected value. Pure.

Values as text are `true|false`, integers with a unit if the key has one (`64MiB`, `5s`, `3d`,
`75%`; by default the key's own unit), or text. A typed file (TOML) may give a number or a boolean
as such, and a list for a text with separators (`a;b`).
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Config = TypeVar("Config", covariant=True)

BYTES = "bytes"
MS = "ms"
HOURS = "hours"
PERCENT = "percent"

_SIZES = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_TIMES_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
# The suffixes of numbers by the key's unit, as ({suffix: factor}, divisor). A suffix means factor /
# divisor of the unit.
_SUFFIXES: dict[str, tuple[dict[str, int], int]] = {
    BYTES: (_SIZES, 1),
    MS: (_TIMES_MS, 1),
    HOURS: (_TIMES_MS, 3_600_000),
    PERCENT: ({"%": 1}, 1),
}
_EXAMPLES = {BYTES: "64MiB", MS: "5s", HOURS: "72h", PERCENT: "75%"}
_BREAK = re.compile(r"\s*[\t\r\n]\s*")
_COMMENT = re.compile(r"\s#")  # behind a value; comments in files fill a line
NEAR_KEY = 0.6  # difflib's similarity for a suggestion
NEAR_VALUE = 0.4
MISTAKES_SHOWN_MAX = 50  # per source


class ConfigError(Exception):
    """A wrong key or value; the text has the key, its source, and the expected value."""


@dataclass(frozen=True, slots=True)
class Option:
    """A configuration key. `name` is the field; `low` and `high` are in the key's unit."""

    section: str
    key: str
    default: Any
    doc: str
    unit: str = ""
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    live: bool = False  # may be changed while the process runs
    name: str = ""
    also: str = ""  # Apache's name of the key, if ours differs
    secret: bool = False  # its value is never shown
    alike: bool = False  # should be the same on all replicas of a group
    spread: bool = False  # of several values, separated also by line breaks and tabs

    @property
    def kind(self) -> str:
        """The type of its values: boolean, integer or text."""
        if isinstance(self.default, bool):
            return "boolean"
        return "integer" if isinstance(self.default, int) else "text"

    @property
    def variable(self) -> str:
        """Return the environment variable that overrides it: RAFTMQ_LISTEN_PORT for listenPort."""
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.key.replace("dLeger", "dleger"))
        return f"{VARIABLE_PREFIX}{name.replace('DLeger', 'Dleger').upper()}"

    def parse(self, value: object, what: str) -> Any:
        """Parse and check a setting's value. Raises ConfigError, with the prefix `what`."""
        if isinstance(self.default, bool):
            return self._boolean(value, what)
        if isinstance(self.default, int):
            return self._integer(value, what)
        text = ";".join(str(v) for v in value) if isinstance(value, list) else str(value)
        if isinstance(value, bool | dict) or (isinstance(value, list) and self.choices):
            raise ConfigError(f"{what}: expected a text")
        if self.choices and text not in self.choices:
            near = nearest(text.upper(), self.choices) or nearest(text, self.choices)
            raise ConfigError(f"{what}: expected one of {', '.join(self.choices)}{near}")
        checked = _BREAK.sub(" ", text) if self.spread or self.secret else text
        if self.spread:  # so that a secret stays equal for all its readers
            text = checked.strip()
        if (at := _unfit(checked)) is not None:
            where = " at its end" if at == len(checked) - 1 else ""
            shown = one_line(checked[at])
            raise ConfigError(f"{what}: no text has such a character{where} ({shown})")
        # The path would change, and an empty store there looks like a new store.
        if not self.secret and _COMMENT.search(text):
            why = "a comment needs a line of its own, and no value has a # behind a blank"
            raise ConfigError(f"{what}: {why}")
        if not self.secret and len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
            raise ConfigError(f"{what}: quotes would be a part of it: leave them out")
        return text

    def _boolean(self, value: object, what: str) -> bool:
        if isinstance(value, bool):
            return value
        text = str(value).lower()
        if text not in ("true", "false"):
            near = nearest(text, ("true", "false"))
            raise ConfigError(f"{what}: expected true or false{near}")
        return text == "true"

    def _integer(self, value: object, what: str) -> int:
        number = value if type(value) is int else self._number(str(value), what)
        for bound, name, wrong in (
            (self.low, "at least", self.low is not None and number < self.low),
            (self.high, "at most", self.high is not None and number > self.high),
        ):
            if wrong:
                raise ConfigError(f"{what}: must be {name} {bound}; nearest right value: {bound}")
        return number

    def _number(self, text: str, what: str) -> int:
        """Parse an integer with an optional suffix of the unit."""
        match = re.fullmatch(r"([+-]?\d+)\s*([A-Za-z%]*)", text)
        example = f"{self.default} or {_EXAMPLES[self.unit]}" if self.unit else str(self.default)
        if match is None or (match[2] and not self.unit):
            raise ConfigError(f"{what}: expected a whole number, e.g. {example}")
        number = int(match[1])
        if not match[2]:
            return number
        suffixes, parts = _SUFFIXES[self.unit]
        factor = suffixes.get(match[2].lower())
        if factor is None:
            near = nearest(match[2].lower(), tuple(suffixes))
            known = ", ".join(suffixes)
            raise ConfigError(f"{what}: unknown unit {match[2]!r}, expected one of {known}{near}")
        if number * factor % parts:
            raise ConfigError(f"{what}: must be a whole number of {self.unit}")
        return number * factor // parts

    def shown(self, value: Any) -> Any:
        """Return a value for display, masked if it is a secret."""
        return MASKED if self.secret and value else value

    def text(self, value: object) -> str:
        """Write a value as in properties files."""
        value = self.shown(value)
        return str(value).lower() if isinstance(value, bool) else str(value)

    def toml(self, value: object) -> str:
        value = self.shown(value)
        if isinstance(value, bool | int):
            return self.text(value)
        escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'


def _unfit(text: str) -> int | None:
    """Return the position of a character that would split a line of a file or a log, end a property
    on the wire, or represent a byte that is not UTF-8."""
    wrong = ("Cc", "Cs", "Zl", "Zp")
    return next((at for at, c in enumerate(text) if unicodedata.category(c) in wrong), None)


def one_line(text: str) -> str:
    """Return the text with unprintable characters escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


VARIABLE_PREFIX = "RAFTMQ_"
MASKED = "******"  # in place of a secret


def option(
    section: str,
    key: str,
    default: Any,
    doc: str,
    *,
    unit: str = "",
    low: int | None = None,
    high: int | None = None,
    choices: tuple[str, ...] = (),
    live: bool = False,
    also: str = "",
    secret: bool = False,
    alike: bool = False,
    spread: bool = False,
) -> Any:
    """Declare a configuration's field. `doc` is Markdown, for docs/configuration.md."""
    declared = Option(
        section,
        key,
        default,
        doc,
        unit,
        low,
        high,
        choices,
        live,
        also=also,
        secret=secret,
        alike=alike,
        spread=spread,
    )
    return dataclasses.field(default=default, repr=not secret, metadata={"option": declared})


def options_of(cls: type) -> dict[str, Option]:
    """Return a dataclass's options by key, in its order, with inherited options last."""
    options = {}
    own = cls.__annotations__
    for field in sorted(dataclasses.fields(cls), key=lambda field: field.name not in own):
        declared = field.metadata.get("option")
        if declared is not None:
            options[declared.key] = dataclasses.replace(declared, name=field.name)
    return options


def page_of(options: Mapping[str, Option], config: object) -> dict[str, Any]:
    """Return a configuration as the HTTP APIs show it."""
    items = [
        {
            "key": option.key,
            "value": option.shown(getattr(config, option.name)),
            "default": option.default,
            "live": option.live,
            "description": option.doc,
        }
        for option in options.values()
    ]
    return {"items": items, "next": None}


@dataclass(frozen=True, slots=True)
class Loaded(Generic[Config]):
    """A configuration, and the source of each value that is not a default, by field name.
    `repeated` has keys that a file has twice, with the effective line, `warnings` probable
    mistakes, and `not_needed` skipped keys of Apache's (ops.foreign_keys)."""

    config: Config
    locations: Mapping[str, str]
    repeated: Mapping[str, str] = dataclasses.field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    not_needed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """A key as it was set, with `value` and source as given. `section` is None if the source has no
    sections, "" above the first section."""

    key: str
    value: Any
    location: str
    section: str | None = None

    def __str__(self) -> str:
        value = str(self.value).lower() if isinstance(self.value, bool) else self.value
        return one_line(f"{self.location}: {self.key}={value}")


def parse_settings(
    options: Mapping[str, Option], settings: Iterable[Setting], refused: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return values and sources by field name; later settings win. Raises ConfigError with a line
    per mistake, those of `refused` first."""
    values: dict[str, Any] = {}
    locations: dict[str, str] = {}
    mistakes = list(refused)
    for setting in settings:
        try:
            declared, value = _parsed(options, setting)
        except ConfigError as error:
            mistakes.append(str(error))
        else:
            values[declared.name] = value
            locations[declared.name] = setting.location
    refuse(mistakes)
    return values, locations


def _parsed(options: Mapping[str, Option], setting: Setting) -> tuple[Option, Any]:
    declared = find(options, setting)
    if declared is None:
        raise ConfigError(f"{setting.location}: {unknown_key(setting.key, options)}")
    if setting.section and setting.section != declared.section:
        raise ConfigError(
            f"{setting.location}: {setting.key} stands in [{setting.section}]; "
            f"it belongs in [{declared.section}]"
        )
    shown = dataclasses.replace(setting, value=declared.shown(setting.value))
    return declared, declared.parse(setting.value, str(shown))


def refuse(mistakes: Sequence[str]) -> None:
    """Raise a ConfigError for all of a source's mistakes, if there are any."""
    if len(mistakes) > MISTAKES_SHOWN_MAX:
        more = len(mistakes) - MISTAKES_SHOWN_MAX
        mistakes = [*mistakes[:MISTAKES_SHOWN_MAX], f"and {more} more"]
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def wrong_value(
    options: Mapping[str, Option], config: object, locations: Mapping[str, str], name: str, why: str
) -> ConfigError:
    """Return the error for a field with a value that contradicts other fields."""
    declared = next(declared for declared in options.values() if declared.name == name)
    value = declared.text(getattr(config, name))
    return ConfigError(f"{locations.get(name, 'default')}: {declared.key}={value}: {why}")


def find(options: Mapping[str, Option], setting: Setting) -> Option | None:
    """Find an option by its key or its alias: TOML's `server.mode` in [tls] is tls.server.mode."""
    match = options.get(setting.key)
    if match is None:
        names = {setting.key, f"{setting.section}.{setting.key}"}
        match = next((option for option in options.values() if option.also in names), None)
    return match


def unknown_key(key: str, options: Iterable[str]) -> str:
    """Return the message for an unknown key, with a suggestion."""
    lower = {name.lower(): name for name in options}
    matches = difflib.get_close_matches(key.lower(), lower, n=1, cutoff=NEAR_KEY)
    hint = f"; did you mean {lower[matches[0]]}?" if matches else ""
    return f"unknown key {key!r}{hint}"


def nearest(value: str, choices: Sequence[str]) -> str:
    """Return `; did you mean …?`, or ""."""
    matches = difflib.get_close_matches(value, choices, n=1, cutoff=NEAR_VALUE)
    return f"; did you mean {matches[0]}?" if matches else ""
