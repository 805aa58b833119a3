"""Where settings come from: a file (TOML or Java properties), the environment, the command line.

Later ones win in that order. Each setting keeps its place (`file:line`, `env NAME`, `--set`), for
messages and for `config show`. Blocking: reads the file.

TOML: tables are the declarations' sections; a key may also stand above all tables. Properties (any
other file name): `key=value` lines, `#` and `!` comments, blank lines; white space around key and
value is ignored.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from raftmq.ops.options import (
    VARIABLE_PREFIX,
    ConfigError,
    Option,
    Setting,
    nearest,
)

COMMAND_LINE = "--set"
PROPERTIES_CHARS_MAX = 256 << 10  # all keys that there are, with long values, are some thousands
QUOTED_CHARS = 80  # of a line that is wrong
# From this likeness on an unknown variable is taken for a misspelt key and refused. Others may
# belong to somebody else (an orchestrator names its services' variables by their names).
VARIABLE_LIKENESS = 0.85


def gather(
    options: Mapping[str, Option],
    path: str | None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> list[Setting]:
    """All settings, the winning ones last. Raises ConfigError."""
    settings = [] if path is None else read_file(path, options)
    settings += from_environment(options, environment or {})
    for override in overrides:
        settings += parse_properties(override, COMMAND_LINE)
    return settings


def read_file(path: str, options: Mapping[str, Option]) -> list[Setting]:
    """The settings of a file. Raises ConfigError; an unreadable file is one, too."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read configuration file {path}: {error}") from error
    if path.endswith(".toml"):
        return parse_toml(text, path, {option.section for option in options.values()})
    return parse_properties(text, path)


def parse_properties(text: str, source: str) -> list[Setting]:
    """Split properties text into settings. Raises ConfigError for a line that is none, and for more
    than PROPERTIES_CHARS_MAX characters."""
    if len(text) > PROPERTIES_CHARS_MAX:
        raise ConfigError(f"{source}: {len(text)} characters, allowed are {PROPERTIES_CHARS_MAX}")
    settings = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        place = source if source == COMMAND_LINE else f"{source}:{number}"
        key, equals, value = stripped.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{place}: expected key=value, found {stripped[:QUOTED_CHARS]!r}")
        settings.append(Setting(key.strip(), value.strip(), place))
    return settings


def parse_toml(text: str, source: str, sections: Iterable[str]) -> list[Setting]:
    """The settings of TOML text. Raises ConfigError."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r" \(at line (\d+), column (\d+)\)$", str(error))
        place = f"{source}:{where[1]}" if where else source
        words = str(error)[: where.start()] if where else str(error)
        raise ConfigError(f"{place}: not TOML: {words}") from error
    lines = _lines_of_keys(text)
    known = sorted(sections)
    settings = []
    for name, value in table.items():
        if not isinstance(value, dict):
            place = f"{source}:{lines.get(('', name), 1)}"
            settings.append(Setting(name, value, place, ""))
            continue
        if name not in known:
            place = f"{source}:{lines.get((name, ''), 1)}"
            near = nearest(name, known) or f"; there are {', '.join(known)}"
            raise ConfigError(f"{place}: unknown section [{name}]{near}")
        for key, entry in _flat(value):
            place = f"{source}:{lines.get((name, key), lines.get((name, ''), 1))}"
            settings.append(Setting(key, entry, place, name))
    return settings


def _flat(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Values by dotted key: `server.mode = …` is a table to TOML."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from ((f"{key}.{inner}", entry) for inner, entry in _flat(value))
        else:
            yield key, value


def _lines_of_keys(text: str) -> dict[tuple[str, str], int]:
    """(section, key) → line, ("section", "") → its header's. tomllib tells no lines; this looks at
    the simple forms only, and only messages depend on it."""
    found: dict[tuple[str, str], int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\s*\"?([\w.-]+)\"?\s*\]", line)
        if header is not None:
            section = header[1]
            found.setdefault((section, ""), number)
            continue
        key = re.match(r"\s*[\"']?([\w.-]+)[\"']?\s*=", line)
        if key is not None:
            found.setdefault((section, key[1]), number)
    return found


def from_environment(
    options: Mapping[str, Option], environment: Mapping[str, str]
) -> list[Setting]:
    """The overrides among the variables. Raises ConfigError for a misspelt one."""
    by_variable = {option.variable: option for option in options.values()}
    settings = []
    for name, value in sorted(environment.items()):
        if not name.startswith(VARIABLE_PREFIX):
            continue
        option = by_variable.get(name)
        if option is not None:
            settings.append(Setting(option.key, value, f"env {name}"))
            continue
        near = difflib.get_close_matches(name, by_variable, n=1, cutoff=VARIABLE_LIKENESS)
        if near:
            raise ConfigError(f"env {name}: unknown variable; did you mean {near[0]}?")
    return settings
