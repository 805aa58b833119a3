"""The HTTP operation on a broker's rates, durations and lag over time."""

from __future__ import annotations

from raftmq.web.operation import Call, Operation
from raftmq.web.problem import not_found
from raftmq.web.resources.history import HistoryQuery, HistorySeries, HistoryView, span_of

from ..context import Context
from ..history.history import History
from ..history.samples import Series, of_broker, of_group, of_topic

PERIODS_PER_POINT = 2  # otherwise a point might have no sample


class HistoryOperations:
    def __init__(self, context: Context, history: History) -> None:
        self._context = context
        self._history = history

    def operations(self) -> list[Operation]:
        return [
            Operation("GET", "/api/v1/history", "getHistory",
                      "Rates, durations, lag and numbers of messages over time.", self.history,
                      query=HistoryQuery, answer=HistoryView, problems=(404,)),
        ]  # fmt: skip

    async def history(self, call: Call) -> HistoryView:
        query: HistoryQuery = call.query
        period_ms = self._history.period_ms
        if not period_ms:
            raise not_found("this broker keeps no history: historyPeriodMs=0")
        now_ms = self._context.wall_ms()
        since_ms, until_ms = span_of(query.since_ms, query.until_ms, now_ms)
        count = max(1, min(query.points, (until_ms - since_ms) // (PERIODS_PER_POINT * period_ms)))
        spans = await self._history.spans(since_ms, until_ms, count)
        series: list[Series]
        if query.consumer_group is not None:
            series = of_group(spans, query.consumer_group, query.topic or "")
        elif query.topic is not None:
            series = of_topic(spans, query.topic)
        else:
            series = of_broker(spans)
        return HistoryView(
            times=[since_ms + (until_ms - since_ms) * (n + 1) // count for n in range(count)],
            leading=[None if one.after is None else bool(one.after["leads"]) for one in spans],
            series=[
                HistorySeries(name=one.name, topic=one.topic, values=one.values) for one in series
            ],
        )
