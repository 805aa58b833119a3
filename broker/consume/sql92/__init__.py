"""SQL92 expressions over message properties. Pure.

`compile_expression(text)` parses once and returns an `Expression` whose `matches(properties)` says
whether a message passes; a result that is not true (false, unknown, or a value that cannot be
converted) does not pass. The CACHE_MAX expressions used last are kept, compiled or refused: a
client repeats its subscriptions with each heartbeat.

The grammar and the conversions are Apache's (tests/interop/test_sql92.py compares with its own
evaluator), with one difference: text behind a complete expression is an error here. Apache's parser
leaves it unread, so that `a = 1 ADN b = 2` would filter by a alone.
"""

from __future__ import annotations

from functools import lru_cache

from .nodes import Expression
from .parser import parse
from .tokens import Sql92Error, check_length

__all__ = ["CACHE_MAX", "Expression", "Sql92Error", "compile_expression"]

CACHE_MAX = 1_000  # expressions; one is at most tokens.LENGTH_MAX characters long


def compile_expression(text: str) -> Expression:
    """Compile an expression. Raises Sql92Error, which says where."""
    check_length(text)  # here, so that what is longer is not kept either
    compiled = _compiled(text)
    if isinstance(compiled, Expression):
        return compiled
    raise Sql92Error(text, *compiled)


@lru_cache(maxsize=CACHE_MAX)
def _compiled(text: str) -> Expression | tuple[int, str]:
    """Compile an expression, or return the position and the reason of its refusal."""
    try:
        return parse(text)
    except Sql92Error as error:
        return error.position, error.reason
