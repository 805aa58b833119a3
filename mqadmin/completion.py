"""`mqadmin completion SHELL`, for the completion of all our commands.

Click's scripts ask the command itself for completions, so they survive upgrades. For bash and zsh
`--install` writes a file, and a line of the shell's start-up file that reads it. That needs neither
the package bash-completion nor zsh's function path. Fish reads its own directory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

SHELLS = ("bash", "zsh", "fish")
FAILED = 1
MARK = "# completion of raftmq's commands"
# zsh defines `compdef` only after compinit.
ZSH_HEAD = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS), metavar="bash|zsh|fish")
@click.option("--install", is_flag=True, help="Have the shell read it from now on.")
def completion_command(shell: str, install: bool) -> None:
    """Print the script that completes all raftmq commands in a shell, or install it.

    \b
      mqadmin completion bash --install
      source <(mqadmin completion bash)    (for this session only)

    Installed for bash and zsh, it is a file in ~/.local/share/raftmq and a line in ~/.bashrc or
    ~/.zshrc; for fish, files in ~/.config/fish/completions. Doing it again changes nothing.
    """
    if not install:
        click.echo("\n".join(scripts(shell).values()), nl=False)
        return
    try:
        reported = install_for(shell, os.environ)
    except OSError as error:
        click.echo(f"mqadmin: {error.filename}: {error.strerror}", err=True)
        sys.exit(FAILED)
    for text in reported:
        click.echo(text)


def scripts(shell: str) -> dict[str, str]:
    from click.shell_completion import get_completion_class

    from raftmq.commands import COMMANDS

    kind = get_completion_class(shell)
    assert kind is not None
    result = {}
    for name in COMMANDS:
        # Not `source()`, which asks the installed bash for its version.
        item = kind(click.Command(name), {}, name, f"_{name.upper()}_COMPLETE")
        result[name] = item.source_template % item.source_vars()
    return result


def install_for(shell: str, environment: Mapping[str, str]) -> list[str]:
    """Write the scripts to the shell's directories; return the changes. Raises OSError."""
    if shell == "fish":
        base = _base(environment, "XDG_CONFIG_HOME", ".config") / "fish" / "completions"
        for name, text in scripts(shell).items():
            _write(base / f"{name}.fish", text)
        return [f"wrote {base}/{{{','.join(scripts(shell))}}}.fish", "new fish sessions complete"]
    file = _base(environment, "XDG_DATA_HOME", ".local/share") / "raftmq" / f"completion.{shell}"
    head = ZSH_HEAD if shell == "zsh" else ""
    _write(file, head + "\n".join(scripts(shell).values()))
    home = environment.get("ZDOTDIR") if shell == "zsh" else None
    start = Path(home or os.path.expanduser("~")) / f".{shell}rc"
    quoted = "'" + str(file).replace("'", "'\\''") + "'"
    line = f"[ -r {quoted} ] && source {quoted}  {MARK}"
    before = start.read_text() if start.exists() else ""
    reported = [f"wrote {file}"]
    if line not in before.splitlines():
        with start.open("a") as rc:
            rc.write(("" if before.endswith("\n") or not before else "\n") + line + "\n")
        reported.append(f"added to {start}: {line}")
    return [*reported, f"new {shell} sessions complete"]


def _base(environment: Mapping[str, str], variable: str, usual: str) -> Path:
    given = environment.get(variable, "")
    return Path(given if os.path.isabs(given) else os.path.expanduser(f"~/{usual}"))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
