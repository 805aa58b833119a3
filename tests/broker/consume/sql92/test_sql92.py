"""SQL92 expressions by themselves; tests.interop.test_sql92 compares them with Apache's."""

from time import process_time

import pytest

from raftmq.broker.consume import sql92
from raftmq.broker.consume.sql92 import CACHE_MAX, Sql92Error, compile_expression
from raftmq.broker.consume.sql92.nodes import (
    CHARACTERS_PER_OPERAND,
    DEPTH_MAX,
    OPERANDS_MAX,
    Expression,
)
from raftmq.broker.consume.sql92.parser import parse
from raftmq.broker.consume.sql92.tokens import LENGTH_MAX, tokenize
from raftmq.broker.consume.sql92.values import Incomparable, to_double

ORDER = {"price": "17", "region": "Hangzhou", "TAGS": "TagA", "vip": "true", "ratio": "0.5"}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("price > 16 AND region = 'Hangzhou'", True),
        ("price BETWEEN 1 AND 16", False),
        ("price >= 17 AND price <= 17", True),
        ("ratio < 0.6", True),
        ("region IN ('Beijing', 'Hangzhou')", True),
        ("region NOT IN ('Beijing')", True),
        ("TAGS IS NOT NULL AND nothing IS NULL", True),
        ("nothing = 1", None),
        ("NOT (nothing = 1)", None),
        ("nothing = 1 OR price = 17", True),
        ("nothing = 1 AND price = 18", False),
        ("nothing = 1 AND price = 17", None),
        ("vip = TRUE", True),
        ("vip", False),  # a property is a string, not a boolean
        ("region CONTAINS 'gz' AND region STARTSWITH 'Hang' AND region ENDSWITH 'zhou'", True),
        ("nothing NOT CONTAINS 'x'", False),
        ("price /* in cents */ = 17 -- or so", True),
        ("1 = nothing", False),
        ("missing = nothing", True),
    ],
)
def test_sql92_has_three_valued_logic(text: str, result: bool | None) -> None:
    expression = compile_expression(text)
    assert expression.evaluate(ORDER) is result
    assert expression.matches(ORDER) is (result is True)


@pytest.mark.parametrize("text", ["region > 5", "ratio = 1", "price > 5 AND TRUE = vip"])
def test_sql92_comparison_of_incomparable_values_does_not_match(text: str) -> None:
    expression = compile_expression(text)
    with pytest.raises(Incomparable):
        expression.evaluate(ORDER)
    assert not expression.matches(ORDER)
    assert not compile_expression(f"NOT ({text})").matches(ORDER)


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", 0, "expected a property, a value or '(', found the end"),
        ("a = ", 4, "found the end"),
        ("a = 1 ADN b = 2", 6, "expected an operator or the end, found 'ADN'"),
        ("a = 'it", 4, "the string that begins here has no end"),
        ("a = 1 /* b", 6, "the comment that begins here has no end"),
        ("a != 1", 2, "unexpected character '!'"),
        ("a BETWEEN 1 OR 2", 12, "expected 'AND', found 'OR'"),
        ("a BETWEEN 2 AND 1", 2, "the first must not be greater"),
        ("a IN (1)", 6, "expected a string in single quotes, found '1'"),
        ("a = NULL", 2, "write IS NULL"),
        ("a > 'x'", 2, "'x' cannot be compared by >"),
        ("a AND 5", 0, "5 is neither true nor false"),
        ("a > 0.0", 4, "zero is written 0"),
        ("a > 9223372036854775808", 4, "is greater than 9223372036854775807"),
        ("a > " + "9" * 5_000, 4, "9 is greater than 9223372036854775807"),
        ("a > " + "9" * 5_000 + ".5", 4, "is greater than 1.7976931348623157e+308"),
        ("a > 1e" + "9" * 5_000, 4, "is greater than 1.7976931348623157e+308"),
        ("a > 0." + "0" * 5_000 + "1", 4, "zero is written 0"),
        ("(a = 1", 6, "expected ')', found the end"),
        ("a = 05", 5, "expected an operator or the end, found '5'"),
        ("a = 00", 5, "expected an operator or the end, found '0'"),
        ("a = 0005", 5, "expected an operator or the end, found '0'"),
        ("a BETWEEN 00e AND 1", 11, "expected 'AND', found '0'"),
        ("a = 0L", 5, "expected an operator or the end, found 'L'"),
    ],
)
def test_sql92_error_has_its_position(text: str, position: int, reason: str) -> None:
    with pytest.raises(Sql92Error) as caught:
        compile_expression(text)
    assert caught.value.position == position
    assert reason in str(caught.value)


def test_sql92_error_counts_lines() -> None:
    with pytest.raises(Sql92Error, match="line 2, column 5:"):
        compile_expression("a = 1\nAND = 2")


def test_sql92_length_is_limited() -> None:
    text = "a = '" + "x" * (LENGTH_MAX - 6) + "'"
    assert len(text) == LENGTH_MAX
    assert not compile_expression(text).matches(ORDER)
    with pytest.raises(Sql92Error, match=f"allowed are {LENGTH_MAX}"):
        compile_expression(text + " ")


@pytest.mark.parametrize(("begin", "end"), [("(", ")"), ("NOT ", ""), ("- ", ""), ("+", "")])
def test_sql92_depth_is_limited(begin: str, end: str) -> None:
    middle = "TRUE" if begin != "- " else "a"
    tail = "" if begin != "- " else " IS NULL"
    within = DEPTH_MAX - 2
    compile_expression(begin * within + middle + end * within + tail).matches(ORDER)
    for count in (DEPTH_MAX + 1, 2_000):
        with pytest.raises(Sql92Error, match="nested deeper than"):
            compile_expression(begin * count + middle + end * count + tail)


def test_sql92_operator_chains_are_limited_except_and_and_or() -> None:
    with pytest.raises(Sql92Error, match="nested deeper than"):
        compile_expression("a" + " IS NULL" * (DEPTH_MAX + 1))
    for word in (" AND ", " OR "):
        assert compile_expression(word.join(["price = 17"] * 1_000)).matches(ORDER)


@pytest.mark.parametrize("term", ["price = 17", "region CONTAINS 'z'", "price"])
def test_sql92_operands_are_limited(term: str) -> None:
    within = OPERANDS_MAX if term == "price" else OPERANDS_MAX // 2
    length = LENGTH_MAX // len(term + " OR ")
    compile_expression(" OR ".join([term] * min(within, length)))
    if within < length:
        with pytest.raises(Sql92Error, match=f"more than {OPERANDS_MAX} operands"):
            compile_expression(" OR ".join([term] * (within + 1)))


def test_sql92_operand_evaluated_twice_counts_twice() -> None:
    text = "price = 17"
    for _ in range(15):  # the operand of each BETWEEN is evaluated twice
        text = f"-({text}) BETWEEN 1 AND 2"
    with pytest.raises(Sql92Error, match="operands"):
        compile_expression(text)


def test_sql92_work_counts_operands_and_the_characters_that_they_read() -> None:
    expression = compile_expression("price > 5 AND region CONTAINS 'x' OR vip IS NULL")
    assert expression.work({}) == 5
    assert expression.work(ORDER | {"unasked": "x" * 30_000}) == 5
    assert expression.work({"region": "x" * 2 * CHARACTERS_PER_OPERAND}) == 15
    members = ", ".join(["'x'"] * 1_000)
    assert compile_expression(f"region IN ({members})").work(ORDER) == 1
    assert compile_expression("TRUE").work(ORDER) == 1


def test_sql92_expression_is_compiled_once_and_the_cache_is_bounded() -> None:
    first = compile_expression("cached = 1")
    for number in range(2, CACHE_MAX + 1):
        compile_expression(f"cached = {number}")
    assert compile_expression("cached = 1") is first
    for number in range(2, CACHE_MAX + 2):
        compile_expression(f"cached = {number}")
    assert compile_expression("cached = 1") is not first


def test_sql92_error_is_cached_and_raised_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = list[str]()

    def noted(text: str) -> Expression:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(sql92, "parse", noted)
    said = set()
    for _ in range(3):
        with pytest.raises(Sql92Error) as caught:
            compile_expression("said = 1\nAND = 2")
        said.add((caught.value.position, str(caught.value)))
    assert said == {(13, "line 2, column 5: expected a property, a value or '(', found '='")}
    assert len(parsed) == 1
    with pytest.raises(Sql92Error):
        compile_expression("a" * (LENGTH_MAX + 1))
    assert len(parsed) == 1, "too long to be parsed, or kept"


@pytest.mark.parametrize(
    "text", ["0", "00", "9", "09", "'", "''x", ".5", "0.", "5e", " ", "-", "/"]
)
def test_sql92_rejects_every_malformed_text_quickly(text: str) -> None:
    long = (text * LENGTH_MAX)[:LENGTH_MAX]
    start = process_time()
    for attempt in (long, f"a > {long}"[:LENGTH_MAX], long[:-1] + "e"):
        try:
            tokenize(attempt)
        except Sql92Error:
            pass  # how long it takes is what matters
    assert process_time() - start < 1


def test_sql92_floats_may_have_leading_zeros() -> None:
    assert compile_expression("ratio = 000.50 AND price > 001e1").matches(ORDER)


@pytest.mark.parametrize(
    "text", ["9" * 30_000 + "x", "0x" + "f" * 30_000, "1." + "0" * 30_000 + "x", "." * 30_000]
)
def test_sql92_long_property_is_converted_in_linear_time(text: str) -> None:
    start = process_time()
    with pytest.raises(Incomparable):
        to_double(text)
    assert process_time() - start < 1


def test_sql92_doubles_are_parsed_as_in_java() -> None:
    assert to_double(" 1e3d ") == 1000
    assert to_double("-0x1p9999") == float("-inf")
    for text in ("", ".", "1_0", "1e", "infinity", "nan", "\u0665"):
        with pytest.raises(Incomparable):
            to_double(text)
