"""Counters of a proxy and its /metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raftmq.ops.logs import LINES_SUPPRESSED, suppressed_lines
from raftmq.ops.metrics import LAG_BOUNDS_S, Exposition, Families, LoopLag, Timings
from raftmq.remoting.metrics import add_tls
from raftmq.remoting.process_tls import ProcessTls

from .protocol.messaging_pb2 import Code

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

TIMED = ("SendMessage", "AckMessage")  # calls that brokers answer at once


class Counts:
    def __init__(self) -> None:
        self.answers: dict[tuple[str, int], int] = {}
        self.received = 0  # messages sent to consumers
        self.timings = {name: Timings() for name in TIMED}

    def answered(self, call: str, code: int, seconds: float) -> None:
        key = (call, code)
        self.answers[key] = self.answers.get(key, 0) + 1
        timings = self.timings.get(call)
        if timings is not None:
            timings.observe(seconds)


@dataclass(frozen=True, slots=True)
class Figures:
    """The state of a proxy at a scrape."""

    calls: int
    refused: Mapping[str, int]
    connections: int
    connections_refused: int
    clients: int
    streams: int
    kept_bytes: int
    sends: int
    send_bytes: int
    answer_bytes: int
    returned: int
    checks: int
    checks_dropped: int
    unauthorized: int


class ProxyMetrics:
    """The metrics of a proxy. Call `start` after the start of the server."""

    def __init__(self, counts: Counts, figures: Callable[[], Figures], tls: ProcessTls) -> None:
        self._counts = counts
        self._figures = figures
        self._tls = tls
        self._lag = LoopLag(Timings(LAG_BOUNDS_S))
        self._exposition = Exposition(self._collect)

    def start(self) -> None:
        self._lag.start()

    def stop(self) -> None:
        self._lag.stop()

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the exposition and its content type. `accept`: the request's Accept header."""
        return self._exposition.render(accept)

    def _collect(self) -> Iterable[Metric]:
        families = Families(())
        counts, now = self._counts, self._figures()
        families.counters(
            "rocketmq_proxy_calls_total",
            "Calls answered, by the code of the answer; Telemetry: ended streams.",
            ("call", "code"),
            [
                ((call, Code.Name(code) if code in Code.values() else str(code)), n)
                for (call, code), n in sorted(counts.answers.items())
            ],
        )
        families.gauge("rocketmq_proxy_calls", "Calls of clients in progress.", now.calls)
        families.counters(
            "rocketmq_proxy_calls_ended_total",
            "Calls ended unread, by the limit; unfinished: by time.",
            ("bound",),
            [((bound,), n) for bound, n in now.refused.items()],
        )
        families.counter(
            "rocketmq_proxy_messages_received_total",
            "Messages delivered to consumers.",
            counts.received,
        )
        for call, timings in counts.timings.items():
            families.histogram(
                f"rocketmq_proxy_{'send' if call == 'SendMessage' else 'ack'}_seconds",
                f"How long calls of {call} took.",
                timings,
            )
        families.gauge("rocketmq_proxy_connections", "Connections of clients.", now.connections)
        families.counter(
            "rocketmq_proxy_connections_refused_total",
            "Client connections rejected at the limit, of all or of an address.",
            now.connections_refused,
        )
        families.gauge("rocketmq_proxy_clients", "Connected clients.", now.clients)
        families.gauge("rocketmq_proxy_telemetry_streams", "Open Telemetry streams.", now.streams)
        families.gauge(
            "rocketmq_proxy_kept_bytes",
            "Client data, and commands that wait for clients.",
            now.kept_bytes,
        )
        families.gauge("rocketmq_proxy_sends", "Messages being sent to brokers.", now.sends)
        families.gauge("rocketmq_proxy_send_bytes", "Their bytes.", now.send_bytes)
        families.gauge(
            "rocketmq_proxy_answer_bytes",
            "Bytes of messages on their way to consumers.",
            now.answer_bytes,
        )
        families.counter(
            "rocketmq_proxy_messages_returned_total",
            "Received messages that could not be delivered to their client, and were returned.",
            now.returned,
        )
        families.counters(
            "rocketmq_proxy_transaction_checks_total",
            "Transaction checks by brokers, by whether a producer was connected.",
            ("asked",),
            [(("true",), now.checks), (("false",), now.checks_dropped)],
        )
        families.counter(
            "rocketmq_proxy_unauthorized_total",
            "Calls rejected for a missing account, signature or right.",
            now.unauthorized,
        )
        add_tls(families, "rocketmq_proxy", self._tls)
        families.counter(
            "rocketmq_proxy_log_lines_suppressed_total", LINES_SUPPRESSED, suppressed_lines()
        )
        families.histogram(
            "rocketmq_proxy_event_loop_lag_seconds",
            "Lateness of the event loop's timers.",
            self._lag.timings,
        )
        return families.all
