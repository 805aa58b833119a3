"""`mqadmin produce` and `consume`: what goes in comes out, in order, and every outcome is told."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from raftmq.mqadmin.command import CommandError
from raftmq.mqadmin.consume import Start, parse_start
from raftmq.mqadmin.durations import parse_duration_ms
from raftmq.mqadmin.message_format import show_as
from tests.client.test_log_rate_limit import message
from tests.mqadmin.conftest import Small
from tests.waiting import wait_until

WAIT_S = 120.0  # a bound against hanging
MQADMIN = (sys.executable, "-m", "raftmq.mqadmin")


def started(cluster: Small, *arguments: str, **pipes: Any) -> subprocess.Popen[bytes]:
    """Start mqadmin as a process, which a Ctrl-C can reach."""
    return subprocess.Popen(
        [*MQADMIN, *arguments, "-n", cluster.namesrv],
        cwd=Path(__file__).parents[2],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes},
    )


def bodies(said: str) -> list[str]:
    return [json.loads(line)["body"] for line in said.splitlines()]


def test_produced_lines_of_files_are_consumed_in_stored_order(small: Small, tmp_path: Path) -> None:
    small.make_topic("lines")
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("".join(f"line {number}\n" for number in range(300)))
    two.write_text("\nlast without an end")
    sent = small.run("produce", "lines", str(one), str(two), "--json", "--window", "1")
    assert (sent.exit_code, sent.stderr) == (0, "")
    figures = json.loads(sent.stdout)
    assert (figures["acknowledged"], figures["refused"], figures["unknown"]) == (301, 0, 0)
    read = small.run("consume", "lines", "-F", "text")
    assert read.exit_code == 0
    stored = read.stdout.splitlines()
    assert sorted(stored) == sorted([*(f"line {n}" for n in range(300)), "last without an end"])
    # One at a time: the queues' order is the lines', but for those of one millisecond.
    result = [
        json.loads(x) for x in small.run("consume", "lines", "-F", "json").stdout.splitlines()
    ]
    times = [one["storedMs"] for one in result]
    assert times == sorted(times)
    progress = small.run("consumerProgress", "--json")
    assert json.loads(progress.stdout) == []  # no group came into being


def test_consume_starts_and_ends_where_flags_say(small: Small, tmp_path: Path) -> None:
    small.make_topic("begin", queues=1)
    file = tmp_path / "lines"
    file.write_text("".join(f"{number}\n" for number in range(10)))
    assert small.run("produce", "begin", str(file), "--window", "1").exit_code == 0

    def read(*flags: str) -> list[str]:
        said = small.run("consume", "begin", "-F", "text", *flags)
        assert said.exit_code == 0, said.stderr
        return said.stdout.split()

    assert read("--from", "-3") == ["7", "8", "9"]
    assert read("--from", "last") == []
    assert read("--count", "2") == ["0", "1"]
    assert read("--from", "1h") == [str(n) for n in range(10)]
    assert read("--from", str(2**40 * 2)) == []
    assert read("-q", "0", "-c", "1") == read("-q", "group-a:0", "-c", "1") == ["0"]
    line = small.run("consume", "begin", "-c", "1").stdout
    assert "group-a:0@0  0" in line
    template = ("-F", "template", "-T", r"{queue}/{offset}\t{body}\n")
    assert small.run("consume", "begin", "-c", "1", *template).stdout == "0/0\t0\n"


def test_produced_json_fields_round_trip_through_consume(small: Small, tmp_path: Path) -> None:
    small.make_topic("json")
    given = [
        {"body": "one", "keys": ["k1", "k2"], "tags": "A", "properties": {"colour": "red"}},
        {"body": {"n": [1]}, "tags": "B"},
        {"bodyBase64": "/w=="},
    ]
    file = tmp_path / "in"
    file.write_text("\n".join(map(json.dumps, given)))
    flags = ("-F", "json", "-t", "C", "-k", "mine", "-p", "size=big", "--window", "1")
    assert small.run("produce", "json", str(file), *flags).exit_code == 0
    first = small.run("consume", "json", "-F", "json")
    result = {
        one.get("body", one.get("bodyBase64")): one
        for one in map(json.loads, first.stdout.splitlines())
    }
    assert set(result) == {"one", '{"n":[1]}', "/w=="}
    one, two, three = result["one"], result['{"n":[1]}'], result["/w=="]
    assert (one["tags"], one["keys"]) == ("A", ["k1", "k2"])
    assert one["properties"] == {"colour": "red", "size": "big"}
    assert (two["tags"], two["keys"], three["tags"]) == ("B", ["mine"], "C")
    # What consume prints, produce takes.
    small.make_topic("again")
    file.write_text(first.stdout)
    assert small.run("produce", "again", str(file), "-F", "json").exit_code == 0
    second = [
        json.loads(x) for x in small.run("consume", "again", "-F", "json").stdout.splitlines()
    ]
    kept = ("body", "bodyBase64", "tags", "keys", "properties")
    assert sorted(str([o.get(n) for n in kept]) for o in second) == sorted(
        str([o.get(n) for n in kept]) for o in result.values()
    )
    assert bodies(small.run("consume", "json", "-F", "json", "--tag", "B || A").stdout) != []
    tagged = small.run("consume", "json", "-F", "json", "--tag", "B").stdout
    assert bodies(tagged) == ['{"n":[1]}']


def test_produce_stops_at_a_rejected_line_unless_keep_going(small: Small, tmp_path: Path) -> None:
    small.make_topic("bad")
    file = tmp_path / "in"
    file.write_text('{"body":"a"}\n{"boddy":"b"}\n{"body":"c"}\n')
    sent = small.run("produce", "bad", str(file), "-F", "json", "--json")
    assert sent.exit_code == 1
    assert f"mqadmin: {file}: 2: not stored: unknown field 'boddy'" in sent.stderr
    figures = json.loads(sent.stdout)
    assert (figures["acknowledged"], figures["refused"]) == (1, 1)
    sent = small.run("produce", "bad", str(file), "-F", "json", "--json", "--keepGoing")
    figures = json.loads(sent.stdout)
    assert (sent.exit_code, figures["acknowledged"], figures["refused"]) == (1, 2, 1)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("produce", "nothing", "@"), 1, "no route to topic 'nothing'"),
        (("produce", "T", "/nowhere"), 2, "/nowhere: No such file"),
        (("produce", "T", "/"), 2, "directory"),
        (("produce", "T", "-F", "file"), 2, "name files"),
        (("produce", "T", "@", "-d", "soon"), 2, "--delay: 'soon' is not a duration"),
        (("produce", "T", "@", "-p", "KEYS=1"), 2, "KEYS has a flag, or is set by"),
        (("produce", "T", "@", "-q", "3"), 2, "is not BROKER:ID"),
        (("produce", "T", "@", "--window", "0"), 2, "--window is 1 to"),
        (("consume", "nothing"), 1, "no route to topic 'nothing'"),
        (("consume", "T", "--from", "soon"), 2, "--from: first, last"),
        (("consume", "T", "--tag", "A", "--sql", "a=1"), 2, "not both"),
        (("consume", "T", "-F", "template"), 2, "go together"),
        (("consume", "T", "-F", "template", "-T", "{x}"), 2, "no field 'x'"),
        (("consume", "T", "-c", "0"), 2, "at least 1"),
        (("consume", "T", "-g", "g", "-q", "0"), 2, "without --group"),
    ],
)
def test_produce_and_consume_reject_bad_arguments_first_in_one_line(
    small: Small, tmp_path: Path, arguments: tuple[str, ...], status: int, says: str
) -> None:
    file = tmp_path / "in"
    file.write_text("x\n")
    said = small.run(*(str(file) if a == "@" else a for a in arguments))
    assert said.exit_code == status
    assert says in said.stderr and len(said.stderr.splitlines()) == 1
    assert said.stdout == ""


def test_produce_sends_standard_input_at_once_and_ctrl_c_awaits_outcomes(small: Small) -> None:
    small.make_topic("piped")
    process = started(small, "produce", "piped", stdin=subprocess.PIPE)
    try:
        assert process.stdin is not None
        process.stdin.write(b"early\n")
        process.stdin.flush()
        wait_until(lambda: small.run("consume", "piped", "-F", "text").stdout == "early\n")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
    assert process.returncode == 130
    assert out.startswith(b"1 messages acknowledged in topic piped") and err == b""


def test_produce_ends_at_ctrl_c_without_awaiting_end_of_standard_input(small: Small) -> None:
    small.make_topic("whole")
    process = started(small, "produce", "whole", "-F", "file", "-", stdin=subprocess.PIPE)
    try:
        assert process.stdin is not None
        process.stdin.write(bytes(200_000))  # more than a pipe holds: it reads
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130
        out, err = process.communicate()
    finally:
        process.kill()
    assert out.startswith(b"0 messages acknowledged in topic whole") and err == b""


def test_consume_follow_prints_new_messages_until_ctrl_c(small: Small, tmp_path: Path) -> None:
    small.make_topic("live")
    file = tmp_path / "in"
    file.write_text("one\n")
    process = started(small, "consume", "live", "--follow", "--from", "first", "-F", "text")
    try:
        assert process.stdout is not None
        for _ in range(2):
            assert small.run("produce", "live", str(file)).exit_code == 0
            assert process.stdout.readline() == b"one\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, b"")


def test_consume_with_a_group_resumes_at_its_committed_offset(small: Small, tmp_path: Path) -> None:
    small.make_topic("grouped", queues=1)
    file = tmp_path / "in"
    file.write_text("".join(f"{number}\n" for number in range(10)))
    assert small.run("produce", "grouped", str(file), "--window", "1").exit_code == 0
    seen = [
        small.run("consume", "grouped", "-g", "readers", "-c", "4", "-F", "text").stdout.split()
        for _ in range(2)
    ]
    assert seen == [["0", "1", "2", "3"], ["4", "5", "6", "7"]]
    progress = small.run("consumerProgress", "-g", "readers", "-t", "grouped", "--json")
    assert json.loads(progress.stdout)["total"]["diffTotal"] == 2


def test_consume_commits_no_offset_of_messages_it_could_not_write(
    small: Small, tmp_path: Path
) -> None:
    small.make_topic("unwritten", queues=1)
    file = tmp_path / "in"
    file.write_text("".join(f"{number}\n" for number in range(6)))
    assert small.run("produce", "unwritten", str(file), "--window", "1").exit_code == 0
    reading = ("consume", "unwritten", "-g", "auditors", "-F", "text")
    assert small.run(*reading, "-c", "2").stdout.split() == ["0", "1"]
    with Path("/dev/full").open("wb") as full:
        process = started(small, *reading, stdout=full)
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1 and err.startswith(b"mqadmin: No space left on device")
    progress = small.run("consumerProgress", "-g", "auditors", "-t", "unwritten", "--json")
    assert json.loads(progress.stdout)["total"]["diffTotal"] == 4
    process = started(small, *reading)
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(4)] == [b"2\n", b"3\n", b"4\n", b"5\n"]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
    progress = small.run("consumerProgress", "-g", "auditors", "-t", "unwritten", "--json")
    assert json.loads(progress.stdout)["total"]["diffTotal"] == 0


def test_consume_ends_when_its_output_pipe_is_closed(small: Small, tmp_path: Path) -> None:
    small.make_topic("much")
    file = tmp_path / "in"
    file.write_text("".join(f"{number:0900}\n" for number in range(300)))  # more than a pipe holds
    assert small.run("produce", "much", str(file)).exit_code == 0
    process = started(small, "consume", "much")
    try:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(WAIT_S) == 0
        with process.stderr as errors:
            assert errors.read() == b""
    finally:
        process.kill()


def test_produce_with_delay_delivers_later(small: Small, tmp_path: Path) -> None:
    small.make_topic("later")
    file = tmp_path / "in"
    file.write_text("x\n")
    before_ms = time.time_ns() // 1_000_000
    assert small.run("produce", "later", str(file), "--delay", "1s").exit_code == 0
    wait_until(lambda: small.run("consume", "later").stdout != "")
    (result,) = small.run("consume", "later", "-F", "json").stdout.splitlines()
    assert json.loads(result)["storedMs"] >= before_ms + 900


# ---- pure


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("90s", 90_000), ("1h30m", 5_400_000), ("1.5d", 129_600_000)]
)
def test_parse_duration_reads_units(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "-5s", "5x", "5s!"])
def test_parse_duration_rejects_other_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_ms(text)


def test_parse_start_reads_first_last_counts_and_times() -> None:
    now = 1_800_000_000_000
    assert parse_start("first", now) == Start()
    assert parse_start("last", now) == Start(back=0)
    assert parse_start("-12", now) == Start(back=12)
    assert parse_start("2m", now) == Start(now - 120_000)
    assert parse_start("now", now) == Start(now)
    assert parse_start("1700000000000", now) == Start(1_700_000_000_000)


def test_consume_escapes_control_characters_at_a_terminal() -> None:
    one = message(7)
    one.body = b"a\x1b[2Jb\nc"
    assert show_as("text", "", terminal=True)(one) == b"a\\x1b[2Jb\nc\n"
    assert show_as("text", "", terminal=False)(one) == b"a\x1b[2Jb\nc\n"
    assert b"\\x1b[2Jb\\nc" in show_as("line", "", terminal=False)(one)
    one.body = b"\xff"
    assert show_as("text", "", terminal=True)(one) == b"base64:/w==\n"
    assert b"00000000  ff" in show_as("hex", "", terminal=True)(one)


def test_consume_prints_a_message_with_times_outside_the_calendar() -> None:
    one = message(7)
    one.born_timestamp_ms = one.store_timestamp_ms = 2**63 - 1
    for form, template in (("line", ""), ("template", "{born} {stored}")):
        assert str(2**63 - 1).encode() in show_as(form, template, terminal=False)(one)


def test_consume_template_fills_fields_and_rejects_unknown_ones() -> None:
    one = message(7)
    for template, said in (
        (r"{topic}\t{offset}\n", b"orders\t7\n"),
        ("{{}} {property.UNIQ_KEY} {property.x}|", b"{} ID7 |"),
        (r"\\ \q {size}", rb"\ \q 0"),
    ):
        assert show_as("template", template, terminal=False)(one) == said
    with pytest.raises(CommandError, match="no field 'nix'"):
        show_as("template", "{nix}", terminal=False)
