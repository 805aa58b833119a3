"""The tokens of SQL92 expressions.

Identifiers are `[A-Za-z_$][A-Za-z0-9_$]*` and case-sensitive; keywords are not. Numbers are written
`0`, `17`, `17L`, `1.5`, `.5`, `5.`, `5E10`. Strings have single quotes, doubled inside. Comments
are `-- …` to the end of the line, and `/* … */`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

LENGTH_MAX = 16_384  # characters of an expression

KEYWORDS = frozenset(
    "NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH".split()
)
_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\n\r\f]+ | --[^\n\r]* | /\*.*?\*/)
    | (?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)?
        | [0-9]+[eE][+-]?[0-9]+)
    | (?P<zeros>00+)
    | (?P<integer>[1-9][0-9]*[lL]? | 0)
    | (?P<string>'(?:''|[^'])*')
    | (?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
    | (?P<symbol><> | >= | <= | [=<>(),+-])
    """,
    re.VERBOSE | re.DOTALL,
)


class Sql92Error(ValueError):
    """An invalid expression. `position` is the 0-based index of the character."""

    def __init__(self, text: str, position: int, reason: str) -> None:
        before = text[:position]
        line = before.count("\n") + 1
        column = position - (before.rfind("\n") + 1) + 1
        super().__init__(f"line {line}, column {column}: {reason}")
        self.position = position
        self.reason = reason


class Kind(Enum):
    INTEGER = "a number"
    FLOAT = "a decimal number"
    STRING = "a string"
    IDENTIFIER = "a property"
    KEYWORD = "keyword"
    SYMBOL = "symbol"
    END = "the end"


@dataclass(frozen=True, slots=True)
class Token:
    """A token. `text` is a keyword in capitals, a string without quotes, or the source text."""

    kind: Kind
    text: str
    position: int

    def __str__(self) -> str:
        if self.kind is Kind.END:
            return "the end"
        return f"'{self.text}'"


_KINDS = {"float": Kind.FLOAT, "integer": Kind.INTEGER, "symbol": Kind.SYMBOL}


def check_length(text: str) -> None:
    """Raise Sql92Error if an expression is too long."""
    if len(text) > LENGTH_MAX:
        reason = f"the expression has {len(text)} characters, allowed are {LENGTH_MAX}"
        raise Sql92Error(text, LENGTH_MAX, reason)


def tokenize(text: str) -> list[Token]:
    """Return all tokens, ending with END, in linear time. Raises Sql92Error."""
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise Sql92Error(text, position, _unreadable(text, position))
        group = match.lastgroup
        assert group is not None
        word = match.group()
        if group == "string":
            tokens.append(Token(Kind.STRING, word[1:-1].replace("''", "'"), position))
        elif group == "word":
            upper = word.upper()
            keyword = upper in KEYWORDS
            kind = Kind.KEYWORD if keyword else Kind.IDENTIFIER
            tokens.append(Token(kind, upper if keyword else word, position))
        elif group == "zeros":
            # Each 0 is a number, and two in a row are an error. Thousands of separate tokens would
            # make the number patterns quadratic.
            tokens += (Token(Kind.INTEGER, "0", at) for at in (position, position + 1))
        elif group != "space":
            tokens.append(Token(_KINDS[group], word, position))
        position = match.end()
    tokens.append(Token(Kind.END, "", len(text)))
    return tokens


def _unreadable(text: str, position: int) -> str:
    if text[position] == "'":
        return "the string that begins here has no end"
    if text.startswith("/*", position):
        return "the comment that begins here has no end"
    return f"unexpected character {text[position]!r}"
