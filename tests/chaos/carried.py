"""A run at a load that the machine carries, repeated with a quarter of the load if it was
INVALID."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from raftmq.chaos.checks.experiment import WAS_RUN
from raftmq.chaos.checks.verdict import Verdict
from raftmq.chaos.run.judge import RunResult

ATTEMPTS = 3


async def at_a_load_it_carries(
    run: Callable[[int, str], Awaitable[RunResult]], rate_per_s: int
) -> RunResult:
    """Return the first result of `run(rate_per_s, directory's name)` with a valid experiment, or
    the last. Lost messages cause no repetition."""
    for attempt in range(ATTEMPTS):
        result = await run(max(1, rate_per_s // 4**attempt), f"attempt-{attempt}")
        verdicts = {check.name: check.verdict for check in result.checks}
        if verdicts[WAS_RUN] is not Verdict.INVALID or result.verdict is Verdict.FAIL:
            break
    return result
