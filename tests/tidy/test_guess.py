"""The test for a reader shows no names."""

from tests.tidy.guess import blanked


def test_names_of_code_are_blanked() -> None:
    text = "Poll `HalfBook` (book.py, broker.send.service) with `bytes_max`. Raises OSError."
    assert blanked("poll", text) == "Poll `…` (…, …) with `…`. Raises OSError."
    assert blanked("Poll", text).startswith("… `…`")
