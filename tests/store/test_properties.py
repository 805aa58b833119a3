import pytest

from raftmq.store.properties import (
    decode_properties,
    encode_properties,
    fields_sum,
    java_string_hash,
    tags_code,
)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("order_created", 848461559),
        ("标签", 857175),
        ("", 0),
        ("polygenelubricants", -2147483648),
        ("TopicTest#KEY1", -1656969516),
        ("é", 0xE9),
        ("😀", 0xD83D * 31 + 0xDE00),  # its two surrogates
        ("a😀b", ((ord("a") * 31 + 0xD83D) * 31 + 0xDE00) * 31 + ord("b")),
    ],
)
def test_java_string_hash_equals_javas(text: str, code: int) -> None:
    code = (code + (1 << 31)) % (1 << 32) - (1 << 31)
    assert java_string_hash(text) == code
    assert tags_code(text) == tags_code(text.encode()) == code


def test_tags_code_of_no_tag_is_zero_and_bad_utf8_does_not_raise() -> None:
    assert tags_code(None) == tags_code("") == tags_code(b"") == 0
    assert tags_code(b"\xff") == 0xFFFD


@pytest.mark.parametrize(
    ("stored", "pairs"),
    [
        (b"", {}),
        (b"A\x01b\x02", {"A": "b"}),
        (b"A\x01b", {"A": "b"}),  # the closing 0x02 may be missing
        (b"A\x01b\x02C\x01d\x02", {"A": "b", "C": "d"}),
        (b"\x01b\x02C\x01\x02D\x02E\x01f", {"E": "f"}),  # empty names and values are dropped
        (b"A\x01b\x02A\x01c\x02", {"A": "c"}),  # the later counts
        (b"A\x01b\x01c\x02", {"A": "b\x01c"}),
        (b"\x02\x02A\x01\xc3\xa9\x02", {"A": "é"}),
        (b"A\x01\xff", {"A": "\ufffd"}),
    ],
)
def test_properties_are_decoded(stored: bytes, pairs: dict[str, str]) -> None:
    assert decode_properties(stored) == pairs
    assert decode_properties(memoryview(stored)) == pairs
    assert decode_properties(stored.decode(errors="replace")) == pairs


def test_decode_properties_never_raises_on_a_truncation() -> None:
    stored = encode_properties({"KEYS": "a b", "TAGS": "标签", "X": "😀"})
    assert decode_properties(stored) == {"KEYS": "a b", "TAGS": "标签", "X": "😀"}
    for end in range(len(stored)):
        assert len(decode_properties(stored[:end])) <= 3


@pytest.mark.parametrize("pairs", [{"": "a"}, {"a": ""}, {"a\x01": "b"}, {"a": "b\x02"}])
def test_encode_properties_rejects_text_that_cannot_be_decoded(pairs: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        encode_properties(pairs)


def test_properties_are_limited_to_int16_bytes() -> None:
    assert len(encode_properties({"a": "x" * 32_764})) == 32_767
    with pytest.raises(ValueError, match="32767"):
        encode_properties({"a": "x" * 32_765})


@pytest.mark.parametrize(
    "added",
    [
        "UNIQ_KEY", "REAL_TOPIC", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_GROUP", "1ST_POP_TIME", "POP_CK", "TIMER_ROLL_TIMES",
        "TRAN_FIRST_STORED_MS",
    ],
)  # fmt: skip
def test_fields_sum_ignores_properties_of_clients_and_brokers(added: str) -> None:
    given = {"KEYS": "k", "TAGS": "t", "mine": "1"}
    assert fields_sum(7, given | {added: "x"}) == fields_sum(7, given)
    assert fields_sum(7, given | {"yours": "x"}) != fields_sum(7, given)
