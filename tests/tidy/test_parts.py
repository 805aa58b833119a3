"""The tidy test finds what is planted in small rooms, and nothing else with it."""

from pathlib import Path
from textwrap import dedent

import pytest

from tests.tidy import parts
from tests.tidy.report import lines_of_code
from tests.tidy.sources import circles, graph


def room(root: Path, **files: str) -> Path:
    (root / "ops").mkdir()
    for name, text in files.items():
        (root / "ops" / f"{name}.py").write_text(dedent(text))
    return root


def test_import_cycles_inside_functions_and_type_checking_are_found(tmp_path):
    room(
        tmp_path,
        a="def f():\n    from raftmq.ops import b",
        b="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from raftmq.ops.c import C",
        c="import raftmq.ops.a\nimport ops.d",
        d="import os",
    )
    assert graph(tmp_path)["ops/c.py"] == {"ops/a.py", "ops/d.py"}
    assert circles(graph(tmp_path)) == [["ops/a.py", "ops/b.py", "ops/c.py"]]


def test_base_class_from_another_file_is_found_unless_a_protocol(tmp_path):
    room(
        tmp_path,
        a="""
            class Wrong(Exception): ...
            class Says(Protocol):
                name: str
                def f(self) -> int:
                    '''Return a number.'''
            class Does(ABC):
                def f(self): return 1
        """,
        b="""
            from raftmq.ops.a import Does as Base, Says, Wrong
            from raftmq.ops import a
            class Worse(Wrong): ...
            class Speaker(Says): ...
            class One(Base): ...
            class Two(a.Does): ...
        """,
    )
    assert parts.inheritors(tmp_path) == ["ops/b.py::One(Does)", "ops/b.py::Two(Does)"]


def test_attributes_not_set_in_init_are_found(tmp_path):
    room(
        tmp_path,
        a="""
            class Late:
                annotated: int
                def __init__(self):
                    self.early, (self.other, _) = 1, (2, 3)
                def start(self):
                    self.early = self.other = 2
                    self.annotated = 3
                    with open("x") as self.file:
                        pass
            @dataclass(slots=True)
            class Record:
                field: int
                def set(self):
                    self.field = 1
        """,
    )
    assert parts.late_attributes(tmp_path) == [
        "ops/a.py::Late.annotated",
        "ops/a.py::Late.file",
    ]


@pytest.mark.parametrize("value", ["lambda: 1", "helper", "self.method", "self.part.method"])
def test_function_assigned_to_another_object_is_found(tmp_path, value):
    room(
        tmp_path,
        a=f"""
            def helper(): ...
            class Planter:
                def __init__(self, part):
                    self.part = part
                    self.own = {value}
                    self.part.number = len("x")
                    self.part.on_change = {value}
                def method(self): ...
        """,
    )
    assert parts.planted(tmp_path) == ["ops/a.py::self.part.on_change"]


def test_stub_functions_are_found(tmp_path):
    room(tmp_path, a="class A:\n    def f(self):\n        raise NotImplementedError")
    assert parts.stubs(tmp_path) == ["ops/a.py::f"]


def test_code_lines_exclude_comments_docstrings_and_blank_lines():
    says = '"""Says\nsomething."""\n\n# why\n'
    does = 'def f():  # how\n    """Return\n    x."""\n    return """\ny"""\n'
    assert lines_of_code(says + does) == {5, 8, 9}
