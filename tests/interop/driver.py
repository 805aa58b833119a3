"""A foreign client in a process of its own, which we tell what to do in lines of JSON.

A request is `{"id": 7, "do": "send", …}`; its answer `{"id": 7, "ok": …}` or `{"id": 7, "error":
"…"}`. What the client is handed comes as an event: `{"event": "message", "of": consumer, "body",
"queue", "offset", "reconsumed", …}` in the order of consumption, `{"event": "check", "of":
producer, …}` when the broker asks after a transaction. All drivers (java/, go/, node/) know

- `producer`: name, group, namesrv, retries, transactional, selector
- `send`: producer, topic, how (sync, async, oneway, batch, ordered, queue, transaction), messages
  (body, tags, keys, shard, queue, delay, decide, properties) → for each: ok, status, queue, offset
- `consumer`: name, group, namesrv, topic, kind (push, orderly, lite, pull), expression, sql, from,
  timestamp, broadcast, strategy (with queues, rooms), failures (so often a message is refused),
  delay, reconsume_max
- `stop`: name;

and those whose client can do it `pull`, `lookup`, `request`, `reset`. One process serves all
scenarios, several at a time; it ends when its standard input does.
"""

import itertools
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.interop.toolchain import CLIENTS

CALL_TIMEOUT_S = 300.0  # a bound against hanging: a client that starts on a busy machine is slow
STOP_TIMEOUT_S = 20.0
LOG_TAIL = 4000  # characters of what the client complained of


class ClientError(Exception):
    """An error that the foreign client raised."""


class Driver:
    """`call("send", …)` → its answer; `events(name)` → what that client was given so far."""

    def __init__(self, client: str, directory: Path) -> None:
        """`directory`: the client's home, for its logs and local offsets."""
        self.client = client
        self._log = directory / f"{client}.log"
        launch = CLIENTS[client]()
        home = directory / f"home-{client}"
        home.mkdir()
        environment = {
            **os.environ,
            **launch.environment,
            "HOME": str(home),
            "ROCKETMQ_GO_LOG_LEVEL": "warn",
            "rocketmq.client.localOffsetStoreDir": str(home / "offsets"),
        }
        if client.startswith("java"):
            environment["JAVA_TOOL_OPTIONS"] = f"-Duser.home={home}"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                launch.command,
                env=environment,
                cwd=home,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._events: dict[str, list[dict[str, Any]]] = {}
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def call(self, do: str, timeout_s: float = CALL_TIMEOUT_S, **fields: Any) -> Any:
        """Raises ClientError with the client's words; AssertionError when it does not answer."""
        number = next(self._ids)
        future: Future[Any] = Future()
        with self._changed:
            self._waiting[number] = future
        line = json.dumps({"id": number, "do": do, **fields}).encode() + b"\n"
        assert self._process.stdin is not None
        try:
            with self._sending:
                self._process.stdin.write(line)
                self._process.stdin.flush()
        except OSError:
            raise AssertionError(self._ended()) from None
        try:
            return future.result(timeout_s)
        except TimeoutError:
            raise AssertionError(f"{do} took over {timeout_s} s\n{self.log_text()}") from None

    def events(self, name: str, kind: str = "message") -> list[Mapping[str, Any]]:
        with self._changed:
            return [event for event in self._events.get(name, ()) if event["event"] == kind]

    def wait(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Whether `done` came about, asked again after each event."""
        deadline = time.monotonic() + timeout_s
        while not done():
            with self._changed:
                left = deadline - time.monotonic()
                if left <= 0:
                    return done()
                self._changed.wait(min(left, 1.0))
        return True

    def log_text(self) -> str:
        """The end of what it complained of."""
        return self._log.read_text(errors="replace")[-LOG_TAIL:]

    def close(self) -> None:
        """Its input ends, and so does it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it ended before: whoever called it was told
            self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            with self._changed:
                if "event" in said:
                    self._events.setdefault(said["of"], []).append(said)
                    self._changed.notify_all()
                    continue
                future = self._waiting.pop(said["id"])
            if "error" in said:
                future.set_exception(ClientError(said["error"]))
            else:
                future.set_result(said.get("ok"))
        with self._changed:
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(AssertionError(self._ended()))

    def _ended(self) -> str:
        """Return what it said last; a crash in Go begins with a line and goes on with all
        goroutines."""
        said = self._log.read_text(errors="replace")
        crash = re.search(r"(?m)^(panic|fatal error|FATAL ERROR): ", said)
        text = said[crash.start() :][:LOG_TAIL] if crash else said[-LOG_TAIL:]
        return f"{self.client} ended: {self._process.wait()}\n{text}"
