"""mqadmin's tables: control characters in names and messages are shown, not obeyed."""

import io

import pytest
from rich.console import Console

from raftmq.mqadmin.command import Done, Fields, Section, Table
from raftmq.mqadmin.output import as_json
from raftmq.mqadmin.tables import show

EVIL = "a\x1b[2J\x07b\x9bc\u202ed\r\ne\tf"
SHOWN = "a\\x1b[2J\\x07b\\x9bc\\u202ed\\r"


@pytest.mark.parametrize(
    "part",
    [
        Table([{"tags": EVIL}]),
        Table([{"tags": "x"}], title=EVIL),
        Fields({"body": EVIL}),
        Fields({"properties": {EVIL: [EVIL]}}),
        Fields({EVIL: 1}),
        Done(EVIL),
    ],
)
def test_table_escapes_control_characters(part: Section) -> None:
    out = io.StringIO()
    show([part], Console(file=out, force_terminal=True, width=200, highlight=False))
    printed = out.getvalue()
    assert SHOWN in printed
    assert not {"\x07", "\x9b", "\u202e", "\r"} & set(printed)
    assert "\x1b[2J" not in printed
    assert "\\x1b" not in as_json([part]).decode()  # a document keeps what it is given
