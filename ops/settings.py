"""Settings from a file (TOML, JSON or Java properties), the environment and the command line.

Later sources win in that order. Each setting keeps its source (`file:line`, `env NAME`, `--set`),
for messages and for `config show`. Reading a file blocks.

In TOML, tables are the options' sections, and keys may also precede all tables. Properties (any
other file name) have `key=value` lines, `#` and `!` comments, and blank lines; white space around
key and value is ignored.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .options import VARIABLE_PREFIX, ConfigError, Option, Setting, find, nearest, refuse
from .strict_json import loads

COMMAND_LINE = "--set"
NAME_SERVERS, NAME_SERVERS_VARIABLE = "namesrvAddr", "NAMESRV_ADDR"
PROPERTIES_CHARS_MAX = 256 << 10  # enough for thousands of long values
QUOTED_CHARS = 80  # of a wrong line
# From this similarity on, an unknown variable is refused as a misspelt key. Less similar variables
# may belong to other programs (an orchestrator names variables after its services).
VARIABLE_LIKENESS = 0.85


def gather(
    options: Mapping[str, Option],
    path: str | None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> list[Setting]:
    """Return all settings, in the order of precedence, highest last. Raises ConfigError."""
    environment = environment or {}
    settings = from_apaches_environment(options, environment)
    settings += [] if path is None else read_file(path, options)
    settings += from_environment(options, environment)
    for override in overrides:
        settings += parse_properties(override, COMMAND_LINE)
    return settings


def read_file(path: str, options: Mapping[str, Option]) -> list[Setting]:
    """Read the settings of a file. Raises ConfigError, also if the file cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # some editors write a BOM
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read configuration file {path}: {error}") from error
    if path.endswith(".toml"):
        return parse_toml(text, path, {option.section for option in options.values()})
    if path.endswith(".json"):
        return parse_json(text, path)
    return parse_properties(text, path)


def repeated(options: Mapping[str, Option], settings: Iterable[Setting]) -> dict[str, str]:
    """Return the keys that a file has twice, with the source of the last, which counts."""
    seen: set[str] = set()
    locations: dict[str, str] = {}
    for setting in settings:
        declared = find(options, setting)
        if declared is None or ":" not in setting.location:  # from the environment or command line
            continue
        if declared.key in seen:
            locations[declared.key] = setting.location
        seen.add(declared.key)
    return locations


def parse_properties(text: str, source: str) -> list[Setting]:
    """Split properties text into settings. Raises ConfigError for malformed lines, and for more
    than PROPERTIES_CHARS_MAX characters."""
    if len(text) > PROPERTIES_CHARS_MAX:
        raise ConfigError(f"{source}: {len(text)} characters, allowed are {PROPERTIES_CHARS_MAX}")
    settings, mistakes = [], []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        location = source if source == COMMAND_LINE else f"{source}:{number}"
        key, equals, value = stripped.partition("=")
        if not equals or not key.strip():
            mistakes.append(f"{location}: expected key=value, found {stripped[:QUOTED_CHARS]!r}")
            continue
        settings.append(Setting(key.strip(), value.strip(), location))
    refuse(mistakes)
    return settings


def parse_toml(text: str, source: str, sections: Iterable[str]) -> list[Setting]:
    """Parse the settings of TOML text. Raises ConfigError."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r" \(at line (\d+), column (\d+)\)$", str(error))
        location = f"{source}:{where[1]}" if where else source
        problem = str(error)[: where.start()] if where else str(error)
        raise ConfigError(f"{location}: not TOML: {problem}") from error
    lines = _lines_of_keys(text)
    known = sorted(sections)
    settings, mistakes = [], []
    for name, value in table.items():
        if not isinstance(value, dict):
            location = f"{source}:{lines.get(('', name), 1)}"
            settings.append(Setting(name, value, location, ""))
            continue
        if name not in known:
            location = f"{source}:{lines.get((name, ''), 1)}"
            near = nearest(name, known) or f"; there are {', '.join(known)}"
            mistakes.append(f"{location}: unknown section [{name}]{near}")
            continue
        for key, entry in _flat(value):
            location = f"{source}:{lines.get((name, key), lines.get((name, ''), 1))}"
            settings.append(Setting(key, entry, location, name))
    refuse(mistakes)
    return settings


def parse_json(text: str, source: str) -> list[Setting]:
    """Parse a JSON object, the form of Apache's rmq-proxy.json. Raises ConfigError."""
    try:
        table = loads(text)
    except ValueError as error:
        raise ConfigError(f"{source}: not JSON: {error}") from error
    if not isinstance(table, dict):
        raise ConfigError(f"{source}: expected one JSON object of keys and values")
    nested = [key for key, value in table.items() if isinstance(value, dict | list | None)]
    refuse([f"{source}: {key}: expected a text, a number or a boolean" for key in nested])
    return [Setting(key, value, source) for key, value in table.items()]


def _flat(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield values by dotted key, since TOML reads `server.mode = …` as a table."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from ((f"{key}.{inner}", entry) for inner, entry in _flat(value))
        else:
            yield key, value


def _lines_of_keys(text: str) -> dict[tuple[str, str], int]:
    """Return (section, key) → line, and (section, "") → its header's line. tomllib gives no line
    numbers; this finds only the simple forms, and only messages depend on it."""
    numbers: dict[tuple[str, str], int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\s*\"?([\w.-]+)\"?\s*\]", line)
        if header is not None:
            section = header[1]
            numbers.setdefault((section, ""), number)
            continue
        key = re.match(r"\s*[\"']?([\w.-]+)[\"']?\s*=", line)
        if key is not None:
            numbers.setdefault((section, key[1]), number)
    return numbers


def from_apaches_environment(
    options: Mapping[str, Option], environment: Mapping[str, str]
) -> list[Setting]:
    """Return NAMESRV_ADDR, which Apache's images set, overridden by all other sources."""
    addresses = environment.get(NAME_SERVERS_VARIABLE, "").strip()
    if not addresses or NAME_SERVERS not in options:
        return []
    return [Setting(NAME_SERVERS, addresses, f"env {NAME_SERVERS_VARIABLE}")]


def from_environment(
    options: Mapping[str, Option], environment: Mapping[str, str]
) -> list[Setting]:
    """Return the settings among the variables. Raises ConfigError for misspelt variables."""
    by_variable = {option.variable: option for option in options.values()}
    settings, mistakes = [], []
    for name, value in sorted(environment.items()):
        if not name.startswith(VARIABLE_PREFIX):
            continue
        option = by_variable.get(name)
        if option is not None:
            settings.append(Setting(option.key, value, f"env {name}"))
            continue
        near = difflib.get_close_matches(name, by_variable, n=1, cutoff=VARIABLE_LIKENESS)
        if near:
            mistakes.append(f"env {name}: unknown variable; did you mean {near[0]}?")
    refuse(mistakes)
    return settings
