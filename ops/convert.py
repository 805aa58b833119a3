"""Converts a configuration file of Apache RocketMQ's programs to one of ours.

The result keeps the form `key=value`, which both read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from .foreign_keys import Separated, separate
from .options import ConfigError, Option, Setting, find, unknown_key
from .settings import read_file

EVERYWHERE = "bindAddress=0.0.0.0"


def converted(
    options: ModuleType, refused: Callable[[Any], Sequence[str]], program: str, path: str
) -> str:
    """Return the converted text of the file. `options` is the program's module with `OPTIONS`,
    `APACHE_KEYS` and `load`; `refused` returns the reasons for which a start with a configuration
    would end. Raises ConfigError if the file cannot be read."""
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
