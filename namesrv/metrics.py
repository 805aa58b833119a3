"""The name server's /metrics.

Answers are counted as they happen; all further figures are read from the route table at each
scrape. At most GROUPS_MAX groups have their own series; a metric counts the omitted groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from raftmq.ops.logs import LINES_SUPPRESSED, suppressed_lines
from raftmq.ops.metrics import LAG_BOUNDS_S, Exposition, Families, LoopLag, Timings
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Answer, Connection, Handler
from raftmq.remoting.metrics import add_limits, add_tls
from raftmq.remoting.process_tls import ProcessTls
from raftmq.remoting.server import RemotingServer

from .routes import LEADER_ID, RouteTable

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

GROUPS_MAX = 1_000
LATER = "LATER"  # answered by a task, without a response code


class NameServerMetrics:
    """The metrics of a name server. Call `start` after the start of the server."""

    def __init__(self, table: RouteTable) -> None:
        # (request code, response code) → count
        self.answers: dict[tuple[int, int | None], int] = {}
        self._table = table
        self._server: RemotingServer | None = None
        self._tls: ProcessTls | None = None
        self._lag = LoopLag(Timings(LAG_BOUNDS_S))
        self._exposition = Exposition(self._collect)

    def counted(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return `handlers`, wrapped with a counter of their answers."""
        return {int(code): self._counted(handler) for code, handler in handlers.items()}

    def start(self, server: RemotingServer, tls: ProcessTls) -> None:
        self._server, self._tls = server, tls
        self._lag.start()

    def stop(self) -> None:
        self._lag.stop()

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the exposition and its content type. `accept`: the request's Accept header."""
        return self._exposition.render(accept)

    def _counted(self, handler: Handler) -> Handler:
        answers = self.answers

        def counted(connection: Connection, request: RemotingCommand) -> Answer:
            answer = handler(connection, request)
            code = answer.code if isinstance(answer, RemotingCommand) else None
            key = (request.code, code)
            answers[key] = answers.get(key, 0) + 1
            return answer

        return counted

    def _tell_registrations(self, families: Families) -> None:
        table = self._table
        signed = table.signed_broker_count
        families.gauges(
            "rocketmq_namesrv_registered_brokers",
            "Live broker addresses, by whether their registration was signed.",
            ("signed",),
            [(("true",), signed), (("false",), table.broker_count - signed)],
        )
        families.counter(
            "rocketmq_namesrv_group_id_changes_total",
            "Broker names that returned with a new group id, after all their brokers had left.",
            table.new_group_id_count,
        )

    def _collect(self) -> Iterable[Metric]:
        families = Families(())
        table = self._table
        families.counters(
            "rocketmq_namesrv_requests_total",
            "Requests answered, by request and response code; LATER: after long work or a write.",
            ("request", "code"),
            [
                ((RequestCode(request).name, LATER if code is None else ResponseCode(code).name), n)
                for (request, code), n in sorted(self.answers.items(), key=str)
            ],
        )
        register = int(RequestCode.REGISTER_BROKER)
        accepted = self._table.registered_count
        all_of_them = sum(n for (request, _), n in self.answers.items() if request == register)
        families.counters(
            "rocketmq_namesrv_registrations_total",
            "Registrations of brokers; rejected registrations claim a stale term or a foreign "
            "group's name, exceed a limit, have no required signature, or are invalid.",
            ("result",),
            [(("accepted",), accepted), (("refused",), all_of_them - accepted)],
        )
        self._tell_registrations(families)
        families.gauge("rocketmq_namesrv_topics", "Topics with a route.", table.topic_count)
        groups = list(table.groups())
        led = [group for group in groups if LEADER_ID in group.addresses]
        families.gauges(
            "rocketmq_namesrv_brokers",
            "Live broker addresses, by registered role.",
            ("role",),
            [(("leader",), len(led)), (("follower",), table.broker_count - len(led))],
        )
        families.gauges(
            "rocketmq_namesrv_groups",
            "Broker groups with a live broker, by whether a broker accepts writes.",
            ("state",),
            [(("led",), len(led)), (("leaderless",), len(groups) - len(led))],
        )
        shown = list(islice(sorted(groups, key=lambda group: group.name), GROUPS_MAX))
        labels = ("cluster", "broker")
        families.gauges(
            "rocketmq_namesrv_group_led",
            "1 if a broker of the group is registered as its leader.",
            labels,
            [((g.cluster, g.name), float(LEADER_ID in g.addresses)) for g in shown],
        )
        families.gauges(
            "rocketmq_namesrv_group_term",
            "Highest term in which a broker of the group claimed to lead.",
            labels,
            [((g.cluster, g.name), g.term) for g in shown],
        )
        families.gauges(
            "rocketmq_namesrv_group_brokers",
            "Live brokers of the group.",
            labels,
            [((g.cluster, g.name), len(g.addresses)) for g in shown],
        )
        families.gauge(
            "rocketmq_namesrv_groups_omitted",
            "Groups beyond the limit, without series of their own.",
            len(groups) - len(shown),
        )
        self._network(families)
        return families.all

    def _network(self, families: Families) -> None:
        server = self._server
        if server is not None:
            received, sent = server.traffic_bytes
            families.counter("rocketmq_namesrv_received_bytes_total", "Bytes received.", received)
            families.counter("rocketmq_namesrv_sent_bytes_total", "Bytes sent.", sent)
            families.gauge(
                "rocketmq_namesrv_connections", "Open connections.", len(server.connections)
            )
            families.counter(
                "rocketmq_namesrv_connections_refused_total",
                "Connections closed at the limit.",
                server.refused_count,
            )
            add_limits(families, "rocketmq_namesrv", server.budgets, server.watch)
        if self._tls is not None:
            add_tls(families, "rocketmq_namesrv", self._tls)
        families.counter(
            "rocketmq_namesrv_log_lines_suppressed_total", LINES_SUPPRESSED, suppressed_lines()
        )
        families.histogram(
            "rocketmq_namesrv_event_loop_lag_seconds",
            "Lateness of the event loop's timers.",
            self._lag.timings,
        )
