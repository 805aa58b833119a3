"""SQL92 expressions over message properties.

`compile_expression(text)` returns an `Expression`. Its `matches(properties)` is True only for the
result true, not for false, unknown, or a failed conversion. The last CACHE_MAX expressions are
cached with their result or error, because clients repeat subscriptions in heartbeats.

Grammar and conversions are Apache's; tests/interop/test_sql92.py compares both evaluators. The
difference is that text behind a complete expression is an error. Apache's parser ignores it, so
that `a = 1 ADN b = 2` would filter by a alone.
"""

from __future__ import annotations

from functools import lru_cache

from .nodes import Expression
from .parser import parse
from .tokens import Sql92Error, check_length

__all__ = ["CACHE_MAX", "Expression", "Sql92Error", "compile_expression"]

CACHE_MAX = 1_000  # of at most tokens.LENGTH_MAX characters


def compile_expression(text: str) -> Expression:
    """Compile an expression. Raises Sql92Error with the position."""
    check_length(text)  # checked here to keep long texts out of the cache
    compiled = _compiled(text)
    if isinstance(compiled, Expression):
        return compiled
    raise Sql92Error(text, *compiled)


@lru_cache(maxsize=CACHE_MAX)
def _compiled(text: str) -> Expression | tuple[int, str]:
    """Compile an expression, or return position and reason of its error."""
    try:
        return parse(text)
    except Sql92Error as error:
        return error.position, error.reason
