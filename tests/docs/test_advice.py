"""No text advises to empty or remove a store, or a file of it, without a word on how to keep it: it
may be the only copy of acknowledged messages."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.sources import product

ROOT = Path(__file__).parent.parent.parent
THING = r"(?:stores?|director(?:y|ies)|replicas?|disk|volume|file|PersistentVolumeClaim|vote file)"
ADVICE = re.compile(
    rf"\b[Ee]mpty (?:it(?=[,.;:)]| and |$)|(?:the|its|their|this|that) [^.;:]{{0,40}}?{THING})"
    rf"|\b(?:[Rr]emove|[Dd]elete|[Ww]ipe) (?:the|its|their|this|that|both|all) [^.;:]{{0,40}}?"
    rf"(?:stores?|storePathRootDir|PersistentVolumeClaim|raft/|identity|hardstate)\b"
    rf"|\b[Ss]tart\b[^.;]{{0,60}} (?:with|on|in) an empty (?:store|director|disk|volume)"
    rf"|\bbegin anew, with an empty"
)
KEPT = re.compile(r"\bcop(?:y|ies|ied)\b|\bkeep|\bkept\b|mqbroker rescue", re.I)


def paragraphs() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for text in re.split(r"\n\s*\n|\n(?=[-|]|\d+\. )", path.read_text()):
            yield str(path.relative_to(ROOT)), text
    for path in product():
        tree = ast.parse(path.read_text())
        inside = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in node.values
        }
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in inside | docs:
                text = ast.unparse(node) if isinstance(node, ast.JoinedStr) else node.value
                if isinstance(text, str):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def test_pages_advise_to_keep_what_could_be_the_only_copy() -> None:
    result = [
        f"{where}: {match[0]}: {text.strip()[:300]}"
        for where, text in paragraphs()
        if (match := ADVICE.search(text)) and not KEPT.search(text)
    ]
    assert not result, "\n".join(result)


@pytest.mark.parametrize(
    "text",
    [
        "empty it, and restore again",
        "stop it, correct its file and empty its store; it is refilled",
        "if the store is to become that of n1, remove its file identity",
        "Delete the PersistentVolumeClaim and the pod of that replica",
        "Start the broker on an empty store with the same dLegerSelfId",
        "or start with an empty directory",
    ],
)
def test_advice_to_remove_a_store_is_detected(text: str) -> None:
    assert ADVICE.search(text)
    assert not KEPT.search(text)
    assert KEPT.search(f"{text}. Keep a copy of the store")
