"""Apache RocketMQ's configuration keys that we do not have, and conversion of its files.

A file of an Apache broker is accepted. A key that is not needed here is skipped, and a key with a
different counterpart is skipped with a warning. A key that would change where or whether messages
are stored is refused, unless it has its harmless value. Each server program has a table,
`apache_keys.toml`, which is read only if a configuration has an unknown key.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from .options import ConfigError, Option, Setting, find, unknown_key
from .settings import read_file

REFUSED, OTHERWISE, NOT_NEEDED = "refused", "otherwise", "not needed"
EVERYWHERE = "bindAddress=0.0.0.0"  # reachable from other machines
CHANGES_NOTHING = "this value changes nothing"


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A key of Apache's with its kind, the reason, and the value that is never refused."""

    kind: str
    because: str
    harmless: str = ""


@dataclass(frozen=True, slots=True)
class Separated:
    """Settings separated by a table. `own` has our options and unknown keys, `foreign` Apache's
    keys with the value's kind, which is never `refused` for a harmless value."""

    own: tuple[Setting, ...]
    foreign: tuple[tuple[Setting, str, str], ...] = ()  # (setting, kind, reason)

    @property
    def refused(self) -> tuple[str, ...]:
        return tuple(f"{setting}: {why}" for setting, kind, why in self.foreign if kind == REFUSED)

    @property
    def otherwise(self) -> tuple[str, ...]:
        return tuple(
            f"{setting.location}: {setting.key} has no effect: {why}"
            for setting, kind, why in self.foreign
            if kind == OTHERWISE
        )

    @property
    def not_needed(self) -> tuple[str, ...]:
        return tuple(setting.key for setting, kind, _ in self.foreign if kind == NOT_NEEDED)


@functools.cache
def read_table(path: Path) -> Mapping[str, ForeignKey]:
    """Read a table of Apache's keys, by name."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["keys"]
    return {
        name: ForeignKey(row["kind"], row["because"], row.get("harmless", ""))
        for row in rows
        for name in row["names"].split()
    }


def separate(options: Mapping[str, Option], settings: Sequence[Setting], table: Path) -> Separated:
    """Separate settings by the table. A key that neither the options nor the table have stays among
    our own, where it is refused as unknown."""
    if all(find(options, setting) is not None for setting in settings):
        return Separated(tuple(settings))
    keys = read_table(table)
    values = {setting.key: str(setting.value) for setting in settings}
    own, foreign = [], []
    for setting in settings:
        key = keys.get(setting.key)
        if key is None or find(options, setting) is not None:
            own.append(setting)
        else:
            harmless = key.kind == REFUSED and _is_harmless(setting, key.harmless, values)
            foreign.append(
                (setting, NOT_NEEDED, CHANGES_NOTHING)
                if harmless
                else (setting, key.kind, key.because)
            )
    return Separated(tuple(own), tuple(foreign))


def _is_harmless(setting: Setting, harmless: str, values: Mapping[str, str]) -> bool:
    """Return True if the setting has the harmless value, which may refer to another key:
    `{storePathRootDir}/commitlog`."""
    for name, value in values.items() if "{" in harmless else ():
        harmless = harmless.replace(f"{{{name}}}", value.rstrip("/"))
    return str(setting.value).rstrip("/").lower() == harmless.lower()


def converted(
    options: ModuleType, refused: Callable[[Any], Sequence[str]], program: str, path: str
) -> str:
    """Return the converted text of the file. `options` is the program's module with `OPTIONS`,
    `APACHE_KEYS` and `load`; `refused` returns the reasons for which a start with a configuration
    would fail. Raises ConfigError if the file cannot be read."""
    known: Mapping[str, Option] = options.OPTIONS
    settings = read_file(path, known)
    parted = separate(known, settings, options.APACHE_KEYS)
    own = [f"{s.key}={_text(s)}" for s in parted.own if find(known, s) is not None]
    decisions = [text.removeprefix(f"{path}:") for text in parted.refused]
    try:
        config = options.load(None, own).config
    except ConfigError as error:
        decisions += [line.removeprefix("--set: ") for line in str(error).splitlines()]
        config = _for_other_machines(options, own)
    if config is not None:
        decisions += refused(config)
    lines = [f"# Converted from {path} by `{program} config convert`.", ""]
    lines += _lines(known, settings, parted)
    if decisions:
        lines += ["", "# To decide before the first start:", *(f"# - {text}" for text in decisions)]
    return "\n".join(lines) + "\n"


def _for_other_machines(options: ModuleType, own: Sequence[str]) -> Any:
    """Return the configuration with a port that other machines reach, which leaves further
    decisions. Return None if that configuration is wrong."""
    try:
        return options.load(None, [*own, EVERYWHERE]).config
    except ConfigError:
        return None


def _lines(
    known: Mapping[str, Option], settings: Sequence[Setting], parted: Separated
) -> Iterator[str]:
    last = {setting.key: setting for setting in settings}
    foreign = {id(setting): f"{kind}: {why}" for setting, kind, why in parted.foreign}
    for setting in settings:
        declared, line = find(known, setting), f"{setting.key}={_text(setting)}"
        if last[setting.key] is not setting:
            yield f"# {line} (set again below: the last value counts)"
        elif declared is not None:
            yield f"{declared.key}={_text(setting)}"
        else:
            yield f"# {line} ({foreign.get(id(setting)) or unknown_key(setting.key, known)})"


def _text(setting: Setting) -> str:
    value = setting.value
    return str(value).lower() if isinstance(value, bool) else str(value)
