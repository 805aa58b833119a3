"""The nodes of a SQL92 expression, each evaluated by a closure.

Constructors check their operands as Apache does. They raise Rejection, to which the parser adds the
position. `evaluate(properties)` of a boolean node returns True, False, or None for unknown. It may
raise values.Incomparable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .values import (
    DIGITS_MAX,
    DOUBLE_MAX,
    DOUBLE_MIN,
    INT32,
    INT64,
    Incomparable,
    Long,
    Value,
    compare,
    equals,
    negated,
    order,
)

DEPTH_MAX = 64  # each level needs a few Python frames to evaluate
OPERANDS_MAX = 2_050  # per evaluation, about a microsecond each; enough for 1,000 comparisons
CHARACTERS_PER_OPERAND = 512  # a conversion or search reads this much of a property in that time
Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]
Truth = Callable[[Properties], bool | None]

# By operator, True if it holds for a result of `order`.
ORDERS: dict[str, Callable[[int], bool]] = {
    ">": lambda answer: answer > 0,
    ">=": lambda answer: answer >= 0,
    "<": lambda answer: answer < 0,
    "<=": lambda answer: answer <= 0,
}
TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class Rejection(Exception):
    """The operands do not fit the operator."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node. `truth` is set for booleans, `value` for constants. `operands` limits the properties
    and constants that an evaluation reads."""

    evaluate: Evaluate
    text: str
    truth: Truth | None = None
    is_constant: bool = False
    value: Value = None
    property_name: str = ""
    depth: int = 1
    operands: int = 1


class Expression:
    __slots__ = ("_names", "_operands", "_truth", "text")
    evaluates = True

    def __init__(self, text: str, root: Node, names: frozenset[str]) -> None:
        """`names` are the properties that it reads. Raises Rejection."""
        self.text = text
        self._truth = truth_of(root)
        self._operands = root.operands
        self._names = names

    def evaluate(self, properties: Properties) -> bool | None:
        """Evaluate; None is unknown. Raises Incomparable."""
        return self._truth(properties)

    def work(self, properties: Properties) -> int:
        """Return the maximal cost of an evaluation, in about microseconds. It is computed, not
        measured, so that reads end at the same message on all replicas."""
        longest = 0
        for name in self._names:  # a loop, because this runs for every message and pull
            value = properties.get(name)
            if value is not None and len(value) > longest:
                longest = len(value)
        return self._operands * (1 + longest // CHARACTERS_PER_OPERAND)

    def matches(self, properties: Properties) -> bool:
        try:
            return self._truth(properties) is True
        except Incomparable:
            return False


def constant(value: Value, text: str) -> Node:
    truth: Truth | None = None
    if value is None or isinstance(value, bool):
        known = value
        truth = lambda _: known  # noqa: E731 (one of many closures here)
    return Node(lambda _: value, text, truth, True, value)


def integer(text: str) -> Node:
    digits = text.rstrip("lL")
    # Python's int() rejects thousands of digits with its own error.
    if len(digits) > DIGITS_MAX or (value := int(digits)) > INT64[1]:
        raise Rejection(f"{text} is greater than {INT64[1]}")
    return constant(value if value <= INT32[1] else Long(value), text)


def decimal(text: str) -> Node:
    value = float(text)
    if value > DOUBLE_MAX:
        raise Rejection(f"{text} is greater than {DOUBLE_MAX}")
    if value < DOUBLE_MIN:  # this includes 0.0, as in Apache
        raise Rejection(f"{text} is less than {DOUBLE_MIN}; zero is written 0")
    return constant(value, text)


def variable(name: str) -> Node:
    return Node(lambda properties: properties.get(name), name, property_name=name)


def truth_of(node: Node) -> Truth:
    """Return the node's truth as a boolean. A property is accepted but never true, since its value
    is a string. Raises Rejection."""
    if node.truth is not None:
        return node.truth
    if node.property_name:
        name = node.property_name
        return lambda properties: None if properties.get(name) is None else False
    raise Rejection(f"{node.text} is neither true nor false")


def any_of(nodes: Sequence[Node]) -> Node:
    truths = [truth_of(node) for node in nodes]

    def truth(properties: Properties) -> bool | None:
        result: bool | None = False
        for term in truths:
            value = term(properties)
            if value:
                return True
            if value is None:
                result = None
        return result

    return _boolean(truth, " OR ", nodes)


def all_of(nodes: Sequence[Node]) -> Node:
    truths = [truth_of(node) for node in nodes]

    def truth(properties: Properties) -> bool | None:
        result: bool | None = True
        for term in truths:
            value = term(properties)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return _boolean(truth, " AND ", nodes)


def negation(node: Node) -> Node:
    term = truth_of(node)

    def truth(properties: Properties) -> bool | None:
        value = term(properties)
        return None if value is None else not value

    return _boolean(truth, "NOT ", (node,))


def minus(node: Node) -> Node:
    evaluate = node.evaluate
    return Node(
        lambda properties: negated(evaluate(properties)),
        f"-{node.text}",
        depth=_above((node,)),
        operands=node.operands,
    )


def equality(left: Node, right: Node, *, unequal: bool = False) -> Node:
    for node in (left, right):
        if node.is_constant and node.value is None:
            raise Rejection("NULL cannot be compared: write IS NULL or IS NOT NULL")
    if left.is_constant and left.truth and right.is_constant and not right.truth:
        raise Rejection(f"{left.text} cannot be compared with {right.text}")
    of_left, of_right = left.evaluate, right.evaluate

    def truth(properties: Properties) -> bool | None:
        value = equals(of_left(properties), of_right(properties))
        return value if value is None or not unequal else not value

    return _boolean(truth, " <> " if unequal else " = ", (left, right))


def null_test(node: Node, *, is_null: bool) -> Node:
    evaluate = node.evaluate
    symbol = " IS NULL" if is_null else " IS NOT NULL"
    return _boolean(lambda p: (evaluate(p) is None) is is_null, symbol, (node,))


def comparison(operator: str, left: Node, right: Node) -> Node:
    """Make `>` and the like, for numbers only."""
    for node in (left, right):
        if node.truth or (node.is_constant and isinstance(node.value, str)):
            raise Rejection(f"{node.text} cannot be compared by {operator}: it is no number")
    of_left, of_right, holds = left.evaluate, right.evaluate, ORDERS[operator]

    def truth(properties: Properties) -> bool | None:
        answer = order(of_left(properties), of_right(properties))
        return None if answer is None else holds(answer)

    return _boolean(truth, f" {operator} ", (left, right))


def between(node: Node, low: Node, high: Node, *, inverted: bool) -> Node:
    if inverted:
        return any_of((comparison("<", node, low), comparison(">", node, high)))
    both = all_of((comparison(">=", node, low), comparison("<=", node, high)))
    low_value, high_value = low.value, high.value  # numbers if constant
    if low_value is not None and high_value is not None and compare(high_value, low_value) < 0:
        raise Rejection(f"BETWEEN {low.text} AND {high.text}: the first must not be greater")
    return both


def membership(node: Node, members: frozenset[str], *, inverted: bool) -> Node:
    name = node.property_name
    if not name:
        raise Rejection(f"IN wants a property before it, not {node.text}")

    def truth(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else (value in members) is not inverted

    return _boolean(truth, " NOT IN" if inverted else " IN", (node,))


def text_test(keyword: str, node: Node, text: str, *, inverted: bool) -> Node:
    """Make CONTAINS, STARTSWITH or ENDSWITH. For a missing or non-string value, or for '', both the
    test and its negation are false."""
    evaluate, test = node.evaluate, TEXT_TESTS[keyword]

    def truth(properties: Properties) -> bool:
        value = evaluate(properties)
        if not text or not isinstance(value, str):
            return False
        return test(value, text) is not inverted

    return _boolean(truth, f" {keyword}", (node, constant(text, text)))


def _boolean(truth: Truth, symbol: str, nodes: Sequence[Node]) -> Node:
    operands = sum(node.operands for node in nodes)
    if operands > OPERANDS_MAX:
        raise Rejection(f"the expression has more than {OPERANDS_MAX} operands")
    text = f"the result of{symbol.rstrip()}"
    return Node(truth, text, truth, depth=_above(nodes), operands=operands)


def _above(nodes: Sequence[Node]) -> int:
    depth = 1 + max(node.depth for node in nodes)
    if depth > DEPTH_MAX:
        raise Rejection(f"the expression is nested deeper than {DEPTH_MAX}")
    return depth
