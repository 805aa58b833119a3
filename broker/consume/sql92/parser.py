"""Recursive descent parser of SQL92 expressions.

    or         = and { OR and }
    and        = equality { AND equality }
    equality   = comparison { ("=" | "<>") comparison | IS [NOT] NULL }
    comparison = unary { (">" | ">=" | "<" | "<=") unary | [NOT] BETWEEN unary AND unary
                       | [NOT] IN "(" string { "," string } ")"
                       | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string }
    unary      = "+" unary | "-" unary | NOT unary | primary
    primary    = string | number | TRUE | FALSE | NULL | property | "(" or ")"

NOT binds closest, as in Apache's grammar, so `NOT a = 1` is `(NOT a) = 1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from . import nodes
from .nodes import DEPTH_MAX, Expression, Node, Rejection
from .tokens import Kind, Sql92Error, Token, tokenize

_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}
_SUFFIXES = {"BETWEEN", "IN", *nodes.TEXT_TESTS}


def parse(text: str) -> Expression:
    """Parse an expression. Raises Sql92Error."""
    return _Parser(text).expression()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokenize(text)
        self._at = 0
        self._open = 0  # open parentheses and signs

    def expression(self) -> Expression:
        node = self._or()
        token = self._token
        if token.kind is not Kind.END:
            raise self._error(f"expected an operator or the end, found {token}")
        with self._blaming(self._tokens[0]):
            identifiers = (token for token in self._tokens if token.kind is Kind.IDENTIFIER)
            names = frozenset(token.text for token in identifiers)
            return Expression(self._text, node, names)

    def _or(self) -> Node:
        return self._chain("OR", self._and, nodes.any_of)

    def _and(self) -> Node:
        return self._chain("AND", self._equality, nodes.all_of)

    def _chain(
        self, keyword: str, rule: Callable[[], Node], make: Callable[[list[Node]], Node]
    ) -> Node:
        start = self._token
        terms = [rule()]
        while self._takes(keyword):
            terms.append(rule())
        if len(terms) == 1:
            return terms[0]
        with self._blaming(start):
            return make(terms)

    def _equality(self) -> Node:
        left = self._comparison()
        while True:
            token = self._token
            if self._takes("=") or self._takes("<>"):
                right = self._comparison()
                with self._blaming(token):
                    left = nodes.equality(left, right, unequal=token.text == "<>")
            elif self._takes("IS"):
                is_null = not self._takes("NOT")
                self._wants("NULL")
                with self._blaming(token):
                    left = nodes.null_test(left, is_null=is_null)
            else:
                return left

    def _comparison(self) -> Node:
        left = self._unary()
        while True:
            token = self._token
            if token.kind is Kind.SYMBOL and token.text in nodes.ORDERS:
                self._at += 1
                right = self._unary()
                with self._blaming(token):
                    left = nodes.comparison(token.text, left, right)
                continue
            inverted = token.kind is Kind.KEYWORD and token.text == "NOT"
            word = self._tokens[self._at + inverted]
            if word.kind is not Kind.KEYWORD or word.text not in _SUFFIXES:
                return left
            self._at += 1 + inverted
            left = self._suffixed(left, word.text, token, inverted)

    def _suffixed(self, left: Node, word: str, start: Token, inverted: bool) -> Node:
        """Return `left` with BETWEEN, IN, CONTAINS and so on applied."""
        if word == "BETWEEN":
            low = self._unary()
            self._wants("AND")
            high = self._unary()
            with self._blaming(start):
                return nodes.between(left, low, high, inverted=inverted)
        if word == "IN":
            self._wants("(")
            members = {self._string()}
            while self._takes(","):
                members.add(self._string())
            self._wants(")")
            with self._blaming(start):
                return nodes.membership(left, frozenset(members), inverted=inverted)
        text = self._string()
        with self._blaming(start):
            return nodes.text_test(word, left, text, inverted=inverted)

    def _unary(self) -> Node:
        token = self._token
        if token.kind is Kind.SYMBOL and token.text in "+-":
            node = self._inside(self._unary)
            if token.text == "+":
                return node
            with self._blaming(token):
                return nodes.minus(node)
        if token.kind is Kind.KEYWORD and token.text == "NOT":
            node = self._inside(self._unary)
            with self._blaming(token):
                return nodes.negation(node)
        return self._primary()

    def _primary(self) -> Node:
        token = self._token
        if token.kind is Kind.SYMBOL and token.text == "(":
            node = self._inside(self._or)
            self._wants(")")
            return node
        self._at += 1
        if token.kind is Kind.STRING:
            return nodes.constant(token.text, f"'{token.text}'")
        if token.kind in (Kind.INTEGER, Kind.FLOAT):
            with self._blaming(token):
                integer = token.kind is Kind.INTEGER
                return nodes.integer(token.text) if integer else nodes.decimal(token.text)
        if token.kind is Kind.IDENTIFIER:
            return nodes.variable(token.text)
        if token.kind is Kind.KEYWORD and token.text in _CONSTANTS:
            return nodes.constant(_CONSTANTS[token.text], token.text)
        self._at -= 1
        raise self._error(f"expected a property, a value or '(', found {token}")

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _takes(self, text: str) -> bool:
        """Consume this keyword or symbol if it is next. Returns True if so."""
        token = self._token
        matches = token.kind in (Kind.KEYWORD, Kind.SYMBOL) and token.text == text
        self._at += matches
        return matches

    def _wants(self, text: str) -> None:
        if not self._takes(text):
            raise self._error(f"expected '{text}', found {self._token}")

    def _string(self) -> str:
        token = self._token
        if token.kind is not Kind.STRING:
            raise self._error(f"expected a string in single quotes, found {token}")
        self._at += 1
        return token.text

    def _inside(self, rule: Callable[[], Node]) -> Node:
        """Apply a rule a level deeper, behind the current token."""
        if self._open >= DEPTH_MAX:
            raise self._error(f"the expression is nested deeper than {DEPTH_MAX}")
        self._at += 1
        self._open += 1
        node = rule()
        self._open -= 1
        return node

    @contextmanager
    def _blaming(self, token: Token) -> Iterator[None]:
        """Convert a Rejection of a node to a Sql92Error at this token."""
        try:
            yield
        except Rejection as rejection:
            raise Sql92Error(self._text, token.position, str(rejection)) from rejection

    def _error(self, reason: str) -> Sql92Error:
        return Sql92Error(self._text, self._token.position, reason)
