"""Habits of speech in docstrings, comments and documents, counted per 1,000 words.

    python -m tests.tidy.prose             # the table
    python -m tests.tidy.prose --worst 30  # and the sentences with most of these habits

The ceilings come from code bases that read well, measured in the same way: aiokafka, httpcore,
etcd's raft, TigerBeetle, and the documents of NATS and httpx. `prose_known.json` holds the present
figures that are above a ceiling, and the present identifiers that are made of private words. They
may only fall: `RAFTMQ_REWRITE=1 pytest tests/tidy/test_prose.py` lowers them.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.tidy.sources import ROOT, parsed, product

KNOWN = Path(__file__).with_name("prose_known.json")
OTHER_CODE = ("bench", "demo", "tools", "deploy", "docs/examples")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/**/*.md")
FROM_CODE = ("docs/modules.md",)  # made of docstrings, which are counted where they are written
SLACK = 0.05  # of rounding

_COMMENT = re.compile(r"(?:^|\s)#[: ]+(?!noqa|type:|fmt:)(.+)$")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@dataclass(frozen=True, slots=True)
class Habit:
    """A pattern and its ceilings per 1,000 words, in code and in documents."""

    name: str
    pattern: re.Pattern[str]
    code: float
    documents: float


def _habit(name: str, pattern: str, code: float, documents: float) -> Habit:
    return Habit(name, re.compile(pattern, re.I), code, documents)


HABITS = (
    _habit("what as a clause", r"\bwhat\b", 1.0, 1.5),
    _habit(
        "things tell, say, know, believe, take, hear or speak",
        r"\b(tells?|says?|knows?|believes?|takes?|hears?|speaks?)\b",
        1.5,
        1.5,
    ),
    _habit("is told", r"\b(is|are|was|were|be|been) told\b", 0.0, 0.0),
    _habit("one, other, another", r"\b(one|ones|others?|another)\b", 6.0, 6.0),
    _habit("who", r"\b(whoever|whom|who|whose)\b", 0.3, 0.5),
    _habit("begin, anew", r"\b(anew|begins?|began|begun)\b", 0.6, 0.6),
    _habit("come, go", r"\b(comes?|came|goes|went|go)\b", 1.5, 2.0),
    _habit("so much, so long", r"\bso (much|many|long|far)\b", 0.1, 0.2),
    _habit("comma too", r", too\b", 0.1, 0.1),
    _habit("stand, lack, meanwhile", r"\b(stands?|stood|lacks?|meanwhile)\b", 0.2, 0.2),
    _habit(
        "a second for per second",
        r"\b(bytes|sends|messages|microseconds|times|frames|records)"
        r" a (second|send|message|frame|term|process|minute)\b",
        0.1,
        0.3,
    ),
    _habit("asides after a colon", r"[a-z]: [a-z]", 4.0, 5.0),
)

# Words of no field: docs/glossary.md has the field's.
PRIVATE = frozenset(
    "told anew whoever wanted anyhow words whole look looks place places begin begins begun mend "
    "mends mended lacking lane "
    "pulse recollection surroundings circumstances landmark milestone milestones standing relief "
    "hindrance parked asked beside".split()
)

# Words that name nothing by themselves. They are the field's in longer names, as PULL_NOT_FOUND.
PRIVATE_ALONE = frozenset({"found", "Found"})


@dataclass(frozen=True, slots=True)
class Text:
    """A docstring, a comment or a paragraph, on one line."""

    path: Path
    line: int
    text: str


def code_texts(paths: Iterable[Path]) -> Iterator[Text]:
    """Yield the docstrings and comments of Python files."""
    for path in paths:
        for node in ast.walk(parsed(path)):
            if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
                yield Text(path, node.body[0].lineno, " ".join(text.split()))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "#" in line and (found := _COMMENT.search(line)):
                yield Text(path, number, found[1])


def document_texts(paths: Iterable[Path]) -> Iterator[Text]:
    """Yield the paragraphs of Markdown files outside of code blocks."""
    for path in paths:
        lines: list[str] = []
        start, fenced = 1, False
        for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
            fence = line.lstrip().startswith(("```", "~~~"))
            fenced ^= fence
            if fence or fenced or not line.strip():
                if lines:
                    yield Text(path, start, " ".join(lines))
                lines = []
            else:
                start = start if lines else number
                lines.append(line.strip())


def code() -> list[Path]:
    """Return the Python files that are counted: all but the tests."""
    return [*product(), *(path for top in OTHER_CODE for path in (ROOT / top).rglob("*.py"))]


def documents() -> list[Path]:
    """Return the documents that are counted."""
    generated = {ROOT / name for name in FROM_CODE}
    return sorted({path for each in DOCUMENTS for path in ROOT.glob(each)} - generated)


def rates(texts: Iterable[Text]) -> dict[str, float]:
    """Return how often each habit occurs per 1,000 words."""
    blob = "\n".join(each.text for each in texts)
    count = max(1, len(blob.split()))
    return {each.name: 1_000 * len(each.pattern.findall(blob)) / count for each in HABITS}


def ceilings(kind: str) -> dict[str, float]:
    """Return the ceilings of "code" or "documents"; present figures where they are above."""
    known = read_known()[kind]
    return {each.name: known.get(each.name, getattr(each, kind)) for each in HABITS}


def read_known() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads(KNOWN.read_text())
    return found


def lowered(kind: str, figures: dict[str, float]) -> dict[str, float]:
    """Return what is to be known from now on: figures above their ceilings, none of them raised."""
    before = ceilings(kind)
    return {
        each.name: round(min(before[each.name], figures[each.name] + SLACK), 1)
        for each in HABITS
        if figures[each.name] > getattr(each, kind) + SLACK
    }


def private_identifiers(paths: Iterable[Path]) -> dict[str, str]:
    """Return the identifiers that are made of private words, each with a file that has it."""
    found: dict[str, str] = {}
    for path in paths:
        for name in set(_identifiers(parsed(path))):
            if is_private(name):
                found.setdefault(name, str(path.relative_to(ROOT)))
    return found


def is_private(name: str) -> bool:
    """Return whether a private word is a part of the identifier."""
    return name.strip("_") in PRIVATE_ALONE or not PRIVATE.isdisjoint(
        part.lower() for part in _PART.findall(name)
    )


def _identifiers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name


def worst(texts: Iterable[Text], count: int) -> list[str]:
    """Return the sentences with most habits, each with its file and line."""
    sentences = [
        (sum(len(habit.pattern.findall(sentence)) for habit in HABITS), text, sentence)
        for text in texts
        for sentence in _SENTENCE_END.split(text.text)
    ]
    sentences.sort(key=lambda row: -row[0])
    return [
        f"{hits} {text.path.relative_to(ROOT)}:{text.line}: {sentence[:220]}"
        for hits, text, sentence in sentences[:count]
    ]


def main() -> None:
    texts = {"code": list(code_texts(code())), "documents": list(document_texts(documents()))}
    for kind, found in texts.items():
        print(f"{kind}: {sum(len(each.text.split()) for each in found):,} words")
        figures, limits = rates(found), ceilings(kind)
        for habit in HABITS:
            goal = getattr(habit, kind)
            print(
                f"  {habit.name:54}{figures[habit.name]:6.1f}{limits[habit.name]:6.1f}{goal:6.1f}"
            )
    if "--worst" in sys.argv:
        count = int(sys.argv[sys.argv.index("--worst") + 1])
        print(*worst([*texts["code"], *texts["documents"]], count), sep="\n")


if __name__ == "__main__":
    main()
