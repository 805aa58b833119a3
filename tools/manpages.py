"""Man pages of all commands, `python -m tools.manpages [DIR]`.

Each page is generated from a command's parser, with its sub-commands as sections. The pages are in
docs/man and in the wheel (share/man/man1); a test compares them with the commands.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from raftmq.commands import COMMANDS

PAGES = Path(__file__).parent.parent / "docs" / "man"
AS_IT_IS = "\b"  # click's mark of a preformatted paragraph


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGES
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (directory / name).write_text(text)


def pages() -> dict[str, str]:
    """Return the pages by file name."""
    return {
        f"{name}.1": page(name, importlib.import_module(module).main)
        for name, (module, _) in COMMANDS.items()
    }


def page(name: str, command: click.Command) -> str:
    """Return a command's page in man's macros."""
    context = context_of(command, name)
    summary = command.get_short_help_str(limit=200).rstrip(".")
    lines = [
        f'.TH {name.upper()} 1 "" "raftmq" "raftmq"',
        ".SH NAME",
        f"{name} \\- {escaped(summary[:1].lower() + summary[1:])}",
        ".SH SYNOPSIS",
        *synopsis(context),
        ".SH DESCRIPTION",
        *described(command.help),
        *options(context, ".SH OPTIONS"),
        *commands(context, ".SH COMMANDS"),
        ".SH SEE ALSO",
    ]
    *rest, last = (f".BR {other} (1)" for other in COMMANDS if other != name)
    lines += [*(f"{other} ," for other in rest), last]
    return "\n".join(lines) + "\n"


def synopsis(context: click.Context) -> list[str]:
    """Return the usage line with names in bold."""
    pieces = escaped(" ".join(context.command.collect_usage_pieces(context)))
    return [f"\\fB{escaped(context.command_path)}\\fR {pieces}"]


def commands(context: click.Context, heading: str) -> list[str]:
    """Return a section for each sub-command, recursively."""
    lines = []
    for below in sub_contexts(context):
        lines += [
            f".SS {escaped(below.command_path)}",
            *synopsis(below),
            ".PP",
            *described(below.command.help),
            *options(below, ""),
            *commands(below, ""),
        ]
    return [heading, *lines] if lines and heading else lines


def sub_contexts(context: click.Context) -> Iterator[click.Context]:
    """Yield a context for each visible sub-command."""
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None and not command.hidden:
                yield context_of(command, name, context)


def context_of(
    command: click.Command, name: str, parent: click.Context | None = None
) -> click.Context:
    """Return the context of a call by click."""
    return click.Context(command, parent=parent, info_name=name, **command.context_settings)


def options(context: click.Context, heading: str) -> list[str]:
    """Return all options with their descriptions, with a single --help."""
    lines = []
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        shown = isinstance(parameter, click.Option) and (parameter.name != "help" or heading)
        if record is not None and shown:
            lines += [".TP", f"\\fB{escaped(record[0])}\\fR", escaped(record[1])]
    return [heading, *lines] if lines and heading else lines


def described(text: str | None) -> list[str]:
    """Return a help text's paragraphs."""
    lines: list[str] = []
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        message = paragraph.split("\n")
        if lines:
            lines.append(".PP")
        if message[0].strip() == AS_IT_IS:
            lines += [".nf", *map(escaped, message[1:]), ".fi"]
        else:
            lines.append(escaped(" ".join(word.strip() for word in message)))
    return lines


def escaped(text: str) -> str:
    """Escape text for man."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    main()
