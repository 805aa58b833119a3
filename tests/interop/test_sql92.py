"""SQL92 expressions: Apache's own parser and evaluator, in a JVM, against ours.

Every expression of tests.broker.consume.sql92.table is compiled by both and evaluated on every
property map there; both say true, false, unknown, or that the values do not compare. Expressions
that Apache refuses are refused here, and the other way round but for DEPARTURES.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from raftmq.broker.consume.sql92 import Sql92Error, compile_expression
from raftmq.broker.consume.sql92.values import Incomparable
from tests.broker.consume.sql92.table import DEPARTURES, EXPRESSIONS, MAPS, random_expressions
from tests.interop.apache import IVY_FILE, JARS
from tests.interop.jvm import Jvm, fetch


@pytest.fixture(scope="module")
def apache() -> Iterator[Jvm]:
    machine = Jvm(jars=fetch(IVY_FILE, JARS))
    yield machine
    machine.close()


def ours(text: str) -> list[str]:
    try:
        expression = compile_expression(text)
    except Sql92Error:
        return ["refused"]
    results = []
    for properties in MAPS:
        try:
            results.append(str(expression.evaluate(properties)).lower())
        except Incomparable:
            results.append("incomparable")
    return results


def theirs(apache: Jvm, contexts: list[Any], text: str) -> list[str]:
    try:
        expression = apache.rocketmq.filter.parser.SelectorParser.parse(text)
    except Py4JJavaError:
        return ["refused"]
    results = []
    for context in contexts:
        try:
            results.append(str(expression.evaluate(context)).lower())
        except Py4JJavaError:
            results.append("incomparable")
    return results


def test_sql92_evaluation_equals_apaches(apache: Jvm) -> None:
    context = apache.rocketmq.broker.filter.MessageEvaluationContext
    contexts = []
    for properties in MAPS:
        table = apache.gateway.jvm.java.util.HashMap()
        for name, value in properties.items():
            table.put(name, value)
        contexts.append(context(table))
    different = []
    for text in EXPRESSIONS + random_expressions(seed=92, count=300):
        expected, got = theirs(apache, contexts, text), ours(text)
        if got != expected:
            different.append((text, expected, got))
    assert different == [], "\n".join(map(str, different))
    for text in DEPARTURES:
        assert theirs(apache, contexts, text) != ["refused"], text
        assert ours(text) == ["refused"], text
