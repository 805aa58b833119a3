"""Code in the pages of docs/ and the README: blocks of Python, and command lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
SHELLS = ("", "console", "bash", "sh")  # languages of blocks that may hold command lines
FENCE = re.compile(r"^(?P<indent>\s*)```(?P<info>.*)$")
TITLE = re.compile(r'title="([^"]+)"')
ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=\S*$")
OURS = re.compile(r"(?:\$\w+|http://[\w.:-]+)(/[^?]*)")  # $API/… or http://HOST:PORT/…
SEPARATORS = {"|", "||", "&&", "&", ";", "(", ")"}


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. `line` is the number of its fence, from 1."""

    page: Path
    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        return self.info.split()[0] if self.info else ""

    @property
    def title(self) -> str:
        """The file that the block shows, from the repository's root; "" for none."""
        match = TITLE.search(self.info)
        return match[1] if match else ""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, text: str | None = None) -> Iterator[Block]:
    """Every fenced block of a page. Raises AssertionError for one that does not end."""
    opened: tuple[int, str, str] | None = None
    inside: list[str] = []
    for number, line in enumerate((text or page.read_text()).splitlines(), 1):
        fence = FENCE.match(line)
        if fence is None:
            inside.append(line)
        elif opened is None:
            opened, inside = (number, fence["info"].strip(), fence["indent"]), []
        else:
            at, info, indent = opened
            body = "\n".join(row.removeprefix(indent) for row in inside)
            yield Block(page, at, info, body + "\n")
            opened = None
    assert opened is None, f"{page}:{opened} does not end"


def rewrite(page: Path) -> None:
    """Put into each titled block what its file holds now."""
    text = before = page.read_text()
    for block in blocks(page):
        if block.title:
            fence = f"```{block.info}\n"
            text = text.replace(fence + block.text, fence + (ROOT / block.title).read_text())
    if text != before:
        page.write_text(text)


def command_lines(block: Block) -> Iterator[str]:
    """The lines that a reader would type, continued ones joined. In a block with prompts only what
    stands behind a prompt; the rest is what the commands print."""
    if block.language not in SHELLS:
        return
    joined = block.text.replace("\\\n", " ")
    lines = joined.splitlines()
    prompted = [line[2:] for line in lines if line.startswith("$ ")]
    if block.language == "console":
        assert prompted, f"{block.where}: a console block without a prompt ($ )"
    yield from prompted or lines


def calls(words: list[str]) -> Iterator[tuple[str, str]]:
    """Return what a curl asks of our HTTP APIs: (method, path), the path without its query."""
    if words[0] != "curl":
        return
    posts = any(word in ("-d", "--data") for word in words)
    method = words[words.index("-X") + 1] if "-X" in words else "POST" if posts else "GET"
    for word in words[1:]:
        match = OURS.match(word)
        if match:
            yield method, match[1]


def commands(line: str) -> Iterator[list[str]]:
    """The simple commands of a line as words: no comments, assignments, pipes or redirections.
    Nothing for what is no command line (an unbalanced quote)."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        text = list(lexer)
    except ValueError:
        return
    simple: list[str] = []
    for word in [*text, ";"]:
        if word in SEPARATORS or word.startswith((">", "<")):
            if simple:
                yield simple
            simple = []
        elif simple or not ASSIGNMENT.match(word):
            simple.append(word)
