"""Configurations as text: values in effect (`config show`, `-p`), and a document of all keys."""

from __future__ import annotations

from collections.abc import Container, Mapping

from .options import BYTES, HOURS, MS, PERCENT, Option

_GIB = 1 << 30
_UNIT_NAMES = {BYTES: "bytes", MS: "milliseconds", HOURS: "hours", PERCENT: "percent"}


def effective(
    options: Mapping[str, Option], config: object, locations: Mapping[str, str], *, changed: bool
) -> str:
    """Return every key's value, with its source in a comment, as TOML that can be read back; with
    `changed`, only values that are not defaults."""
    lines: list[str] = []
    for section, members in by_section(options):
        shown = [option for option in members if not changed or option.name in locations]
        if shown:
            lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
        for option in shown:
            value = option.toml(getattr(config, option.name))
            lines.append(f"{option.key} = {value}  # {locations.get(option.name, 'default')}")
    return "\n".join(lines) + "\n"


def properties(
    options: Mapping[str, Option], config: object, only: Container[str] | None = None
) -> str:
    """Return the values as Apache's properties text, sorted by key; with `only`, these fields."""
    return "".join(
        f"{key}={option.text(getattr(config, option.name))}\n"
        for key, option in sorted(options.items())
        if only is None or option.name in only
    )


def tables(options: Mapping[str, Option]) -> str:
    """Return all keys as Markdown, with a table per section."""
    lines: list[str] = []
    for section, members in by_section(options):
        lines += [f"### [{section}]", "", "| key | default | may be | meaning |"]
        lines.append("|---|---|---|---|")
        for option in members:
            live = " Live." if option.live else ""
            alike = " Alike on all replicas." if option.alike else ""
            key = f"`{option.key}`" + (f", `{option.also}`" if option.also else "")
            lines.append(
                f"| {key} | {_default(option)} | {_range(option)} | {option.doc}{live}{alike} |"
            )
        lines.append("")
    return "\n".join(lines)


def by_section(options: Mapping[str, Option]) -> list[tuple[str, list[Option]]]:
    """Group options by section, in the order of the sections' first keys."""
    sections: dict[str, list[Option]] = {}
    for option in options.values():
        sections.setdefault(option.section, []).append(option)
    return list(sections.items())


def _default(option: Option) -> str:
    if option.default == "":
        return "(empty)"
    return f"`{_sized(option, option.default)}`"


def _range(option: Option) -> str:
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    if option.kind != "integer":
        return "true, false" if option.kind == "boolean" else "text"
    unit = _UNIT_NAMES.get(option.unit, "")
    low = "" if option.low is None else _sized(option, option.low)
    high = "" if option.high is None else _sized(option, option.high)
    span = f"{low} to {high}" if low and high else f"from {low}" if low else f"up to {high}"
    return f"{span} {unit}".strip() if low or high else (unit or "a number")


def _sized(option: Option, value: object) -> str:
    """Return a value as text, bytes in the largest unit that divides them."""
    if option.unit == BYTES and isinstance(value, int) and value:
        for size, name in ((_GIB, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if value % size == 0:
                return f"{value // size}{name}"
    return option.text(value)
