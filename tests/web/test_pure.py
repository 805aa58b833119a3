"""Problems, pages, versions, inputs and the document, without a server."""

from http import HTTPStatus
from typing import Annotated

import pytest
from msgspec import Meta

from raftmq.ops.versions import ANY, Condition
from raftmq.web.openapi import document
from raftmq.web.operation import Operation
from raftmq.web.paging import (
    PageQuery,
    decode_cursor,
    encode_cursor,
    page,
    page_of_sorted,
)
from raftmq.web.problem import ApiProblem, invalid, not_leader
from raftmq.web.schema import Count, Input, View, from_json, from_texts, to_json
from raftmq.web.versions import condition_of, etag, unmet


class Thing(Input, frozen=True, kw_only=True):
    how_many: Annotated[int, Meta(ge=1, le=9)]
    name: str = ""


class ThingView(View, frozen=True, kw_only=True):
    how_many: Count


def problem(call, *given):
    with pytest.raises(ApiProblem) as caught:
        call(*given)
    return caught.value


def test_problem_has_the_fields_of_rfc_9457():
    reported = invalid([("a", "too small"), ("b", "missing")]).to_json("/x")
    assert reported == {
        "type": "about:blank",
        "title": HTTPStatus(422).phrase,  # RFC 9110 renamed it, and Python 3.13 with it
        "status": 422,
        "detail": "a: too small; b: missing",
        "instance": "/x",
        "code": "INVALID",
        "errors": [{"field": "a", "message": "too small"}, {"field": "b", "message": "missing"}],
    }
    refused = not_leader("h:1")
    assert (refused.status, refused.headers) == (503, {"X-Leader-Http": "h:1"})
    assert not_leader("").to_json("/")["leaderHttpAddress"] is None


def test_pages_continue_where_they_ended():
    keys, seen, cursor = [f"k{n:02}" for n in range(7)], [], ""
    while cursor is not None:
        one = page(reversed(keys), str, str, PageQuery(limit=3, cursor=cursor))
        assert len(one["items"]) <= 3
        seen += one["items"]
        cursor = one["next"]
        keys = [key for key in keys if key != "k01"]  # gone meanwhile: nothing else is missed
    assert seen == [f"k{n:02}" for n in range(7)]


@pytest.mark.parametrize("key", ["", "a", "%RETRY%g", "äöü", "x" * 300])
def test_cursor_round_trip(key):
    assert decode_cursor(encode_cursor(key)) == key


@pytest.mark.parametrize("cursor", ["a", "=", "ä", "ab c"])
def test_malformed_cursor_is_rejected(cursor):
    assert problem(decode_cursor, cursor).status == 422


@pytest.mark.parametrize(
    ("if_match", "if_none_match", "condition"),
    [
        (None, "*", Condition(absent=True)),
        ("*", None, Condition((ANY,))),
        ('"a"', None, Condition(("a",))),
        ('"a", "b"', None, Condition(("a", "b"))),
        ('W/"a"', None, Condition(())),
        (None, None, 428),
        ("a", None, 422),
        ("", None, 422),
        (None, '"a"', 422),
        ('"a"', "*", 412),
        (", ".join(['"a"'] * 17), None, 422),
    ],
)
def test_conditions_are_parsed_from_headers(if_match, if_none_match, condition):
    if isinstance(condition, int):
        assert problem(condition_of, if_match, if_none_match).status == condition
    else:
        assert condition_of(if_match, if_none_match) == condition


def test_precondition_failure_states_the_present_version():
    assert unmet("w").headers == {"ETag": etag("w")}
    assert (unmet(None).status, unmet(None).headers) == (412, {})


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"{", 400, None),
        (b"\xff", 400, None),
        (b"[" * 5_000, 400, None),
        (b"[]", 422, ""),
        (b"{}", 422, "howMany"),
        (b'{"howMany":0}', 422, "howMany"),
        (b'{"howMany":1.5}', 422, "howMany"),
        (b'{"howMany":true}', 422, "howMany"),
        (b'{"howMany":1,"hoMany":1}', 422, "hoMany"),
        (b'{"howMany":1e400}', 400, None),
    ],
)
def test_wrong_bodies_name_the_field(body, status, field):
    result = problem(from_json, body, Thing)
    assert result.status == status, result
    if field is not None:
        assert result.more["errors"][0]["field"] == field


def test_correct_bodies_and_queries_are_read():
    assert from_json(b'{"howMany":5.0}', Thing) == Thing(how_many=5)
    assert from_texts({"howMany": "5", "name": "null"}, Thing) == Thing(how_many=5, name="null")
    assert problem(from_texts, {"howMany": "x"}, Thing).more["errors"][0]["field"] == "howMany"
    assert to_json(ThingView(how_many=1)) == b'{"howMany":1}'


def test_openapi_document_is_made_of_the_declarations():
    async def nothing(call):
        return None

    operation = Operation(
        "PUT", "/things/{name}", "putThing", "Put it.", nothing, parameters=Thing, body=Thing,
        answer=ThingView, conditional=True, problems=(404,),
    )  # fmt: skip
    reported = document("Title", "1", [operation])["paths"]["/things/{name}"]["put"]
    assert reported["operationId"] == "putThing"
    assert reported["requestBody"]["required"] is True
    assert {"200", "400", "401", "403", "404", "412", "413", "415", "422", "428"} <= set(
        reported["responses"]
    )
    names = {(p["name"], p["in"], p["required"]) for p in reported["parameters"]}
    assert ("howMany", "path", True) in names and ("If-Match", "header", False) in names


def test_every_successful_answer_is_described():
    async def nothing(call):
        return None

    operation = Operation(
        "POST", "/things", "makeThings", "Make them.", nothing, body=dict, body_schema=Thing,
        answer=ThingView, also=(207,),
    )  # fmt: skip
    text = Operation("GET", "/text", "getText", "Text.", nothing, media="text/plain")
    paths = document("Title", "1", [operation, text])["paths"]
    reported = paths["/things"]["post"]
    for status in ("200", "207"):
        (content,) = reported["responses"][status]["content"].values()
        assert content["schema"] == {"$ref": "#/components/schemas/ThingView"}
    (content,) = reported["requestBody"]["content"].values()
    assert content["schema"] == {"$ref": "#/components/schemas/Thing"}
    assert paths["/text"]["get"]["responses"]["200"]["content"] == {
        "text/plain": {"schema": {"type": "string"}}
    }


def test_pages_of_sorted_names_check_only_the_shown_names() -> None:
    names = [f"t{number:04d}" for number in range(1_000)]
    looked: list[str] = []

    def fits(name: str) -> bool:
        looked.append(name)
        return not name.endswith("7")

    expected = [name for name in names if not name.endswith("7")]
    got: list[str] = []
    cursor = ""
    while True:
        looked.clear()
        result = page_of_sorted(names, fits, str, PageQuery(limit=50, cursor=cursor))
        assert result == page(filter(fits, names), str, str, PageQuery(limit=50, cursor=cursor))
        assert looked.index(result["items"][0]) <= 1, "nothing before the page"
        got += result["items"]
        if result["next"] is None:
            break
        cursor = result["next"]
    assert got == expected


def test_page_of_sorted_names_stops_after_its_last_name() -> None:
    names = [f"t{number:04d}" for number in range(1_000)]
    looked: list[str] = []

    def fits(name: str) -> bool:
        looked.append(name)
        return True

    cursor = encode_cursor("t0500")
    result = page_of_sorted(names, fits, str, PageQuery(limit=10, cursor=cursor))
    assert result["items"] == names[501:511]
    assert looked == names[501:512]
