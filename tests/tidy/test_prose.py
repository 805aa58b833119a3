"""Prose and identifiers keep to the field's language; present exceptions may only become fewer."""

import json
import os
from pathlib import Path

import pytest

from tests.tidy import prose
from tests.tidy.sources import product

SHOW = "`python -m tests.tidy.prose --worst 30` shows the sentences"


@pytest.mark.parametrize("kind", ["code", "documents"])
def test_prose_habits_are_below_their_ceilings(kind: str) -> None:
    found = prose.code_texts(prose.code()) if kind == "code" else documents()
    figures = prose.rates(found)
    if os.environ.get("RAFTMQ_REWRITE"):
        save(kind, prose.lowered(kind, figures))
    limits = prose.ceilings(kind)
    over = [
        f"{name}: {figure:.1f} per 1,000 words, ceiling {limits[name]}"
        for name, figure in figures.items()
        if figure > limits[name] + prose.SLACK
    ]
    assert not over, f"{kind}: {'; '.join(over)}; {SHOW}"


def documents() -> list[prose.Text]:
    return list(prose.document_texts(prose.documents()))


def test_new_identifiers_have_no_private_words() -> None:
    found = prose.private_identifiers(product())
    known = prose.read_known()["identifiers"]
    if os.environ.get("RAFTMQ_REWRITE"):
        save("identifiers", {name: 0 for name in sorted(known) if name in found})
    strange = sorted(f"{name} in {found[name]}" for name in found.keys() - known.keys())
    assert not strange, f"docs/glossary.md has the field's words: {', '.join(strange)}"


def test_prose_figure_above_its_ceiling_fails() -> None:
    known = prose.read_known()
    for habit in prose.HABITS:
        for kind in ("code", "documents"):
            assert known[kind].get(habit.name, 99) > getattr(habit, kind)


def save(key: str, value: dict[str, float]) -> None:
    known = {**prose.read_known(), key: value}
    prose.KNOWN.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def test_prose_count_covers_docstrings_comments_and_paragraphs(tmp_path: Path) -> None:
    module = tmp_path / "a.py"
    module.write_text('"""Docs\nof it."""\nx = 1  # why\n\ndef f():\n    """More."""\n    # own\n')
    texts = [each.text for each in prose.code_texts([module])]
    assert texts == ["Docs of it.", "More.", "why", "own"]
    page = tmp_path / "a.md"
    page.write_text("# Title\n\nA line\nand more.\n```\nwhat\n```\n| what | it is |\n")
    paragraphs = list(prose.document_texts([page]))
    assert [each.text for each in paragraphs] == ["# Title", "A line and more.", "| what | it is |"]
    assert prose.rates(paragraphs)["what as a clause"] == pytest.approx(1_000 / 12)


@pytest.mark.parametrize(
    "name, private",
    [
        ("told_by", True),
        ("isWanted", True),
        ("stood", False),
        ("_found", True),
        ("NOT_FOUND", False),
    ],
)
def test_private_words_of_identifiers_are_detected(name: str, private: bool) -> None:
    assert prose.is_private(name) is private
