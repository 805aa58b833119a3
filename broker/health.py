"""`mqbroker health`: exit status 0 for a working broker, or 1 with the reason.

The broker must answer, a leader must be ready, a follower must follow its leader, and a classic
slave its master. At least one answering name server must list it. Known causes are printed: no
election, rejected frames, peers of a different group, unreachable peers, lost promises, a bad disk.

Warnings do not change the exit status: foreign peers, peers with different founders, duplicate ids,
different clocks or settings, a slave without the master's older messages, a clock that the log
contradicts, a disk that fills soon, expiring certificates. Containers run
`python -m raftmq.broker.health` every few seconds, so it imports little.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from raftmq.ops import health_exit as verdict

if TYPE_CHECKING:
    from raftmq.remoting.command import RemotingCommand

PORT = "10911"  # listenPort's default
PORT_VARIABLE = "RAFTMQ_LISTEN_PORT"
CAUSES = (
    "raftStandstill",
    "raftTakesNoFrames",
    "raftForeign",
    "raftUnreachable",
    "raftRecovering",
    "raftDiskReason",
)


@click.command("health")
@click.option("--address", metavar="HOST:PORT", help="The broker. [this machine's listenPort]")
@click.option("--timeout", "timeout_s", default=3.0, show_default=True, help="Seconds.")
def health(address: str | None, timeout_s: float) -> None:
    """Check whether a broker works; exit status 1 if it does not.

    For a TLS-only broker, RAFTMQ_TLS_CONFIG_FILE names the client's TLS configuration file."""
    from raftmq.remoting.acl.signature import credentials_of_environment
    from raftmq.remoting.blocking_request import complaint
    from raftmq.remoting.codes import RequestCode
    from raftmq.remoting.fast_json import loads_object
    from raftmq.remoting.tls_file import context_of

    try:
        credentials = credentials_of_environment(os.environ)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    config = None if address else verdict.configured("raftmq.broker.config")
    port = config.listen_port if config else os.environ.get(PORT_VARIABLE, PORT)
    address = address or f"127.0.0.1:{port}"
    warnings: list[str] = []

    def judge(answer: RemotingCommand) -> str:
        info = loads_object(answer.body).get("table") or {}
        warnings.extend(warnings_of(info))
        return why_not(info)

    reason = complaint(
        address,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        timeout_s,
        judge,
        context=lambda: context_of(os.environ),
        credentials=credentials,
    )
    verdict.end(address, reason, warnings)


def why_not(info: Mapping[str, str]) -> str:
    """Return why a broker with this runtime info is not healthy, with known causes, or ""."""
    reason = _membership_text(info)
    causes = [info.get(key, "") for key in CAUSES] if reason else []
    refused = info.get("registrationRefused", "")
    if refused:
        causes.append(f"in no route: {refused}")
    return "; ".join(part for part in (reason, *causes) if part)


def warnings_of(info: Mapping[str, str]) -> list[str]:
    """Return warnings about a serving broker with this runtime info."""
    texts = [info.get(key, "") for key in ("raftForeign", "diskForecast", "clockContradiction")]
    if info.get("raftDiffers"):
        texts.append(f"not as this replica's: {info['raftDiffers']}")
    if info.get("logStart"):
        texts.append(f"older messages are on the master alone: {info['logStart']}")
    if info.get("inNoRoute"):
        texts.append(f"no client finds it: {info['inNoRoute']}")
    if info.get("tlsCertificatesExpire"):
        texts.append(f"TLS: {info['tlsCertificatesExpire']}")
    return [text for text in texts if text]


def _membership_text(info: Mapping[str, str]) -> str:
    """Return why a broker's role makes it unhealthy, or ""."""
    if "raftRole" not in info:
        refused = info.get("haRefused", "")
        if refused:
            return f"follows its master no more: {refused}"
        return "no link to the master" if info.get("haConnected") == "false" else ""
    if info.get("raftMembership") == "none":
        return "is no member of its group"
    role = info["raftRole"]
    if role == "leader":
        return "" if info.get("raftLeaderReady") == "true" else "leads but is not ready yet"
    if role == "follower":
        if not info.get("raftLeader"):
            return "knows no leader"
        return "takes no frames of its leader" if info.get("raftTakesNoFrames") else ""
    return f"is {role}"


if __name__ == "__main__":
    health()
