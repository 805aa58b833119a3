"""The file of a recorded session gives back what was saved."""

from pathlib import Path

from tests.interop.recorded.session import Session, Step

EVERY_BYTE = bytes(range(256))


def test_recorded_session_round_trips_through_its_file(tmp_path: Path) -> None:
    steps = [
        Step("open", of=1),
        Step("frame", of=1, frame=EVERY_BYTE, answers=((1, EVERY_BYTE), (2, b"x"))),
        Step("clock", at_ms=1500, answers=((2, b"late"),)),
        Step("close", of=1),
    ]
    session = Session("go", 1_700_000_000_000, 10_911, steps)
    session.save(tmp_path / "go.frames.xz")
    assert Session.load(tmp_path / "go.frames.xz") == session
