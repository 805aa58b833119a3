#!/usr/bin/env python3
"""Audits all broker groups whose volumes are below /stores against one run, by mqaudit.

    /stores/GROUP/NODE/store    a stopped broker's store, read-only
    /runs/RUN/history.jsonl     what clients were told

usage: raftmq-audit --run RUN [--topic TOPIC] [GROUP...]      (default: every group that has stores)

Exit status: the gravest of mqaudit's, one for each group; 2 if there is nothing to audit.
"""

import argparse
import sys
from pathlib import Path

STORES, RUNS = Path("/stores"), Path("/runs")
EXIT_LOST, EXIT_UNUSABLE = 1, 2
GRAVEST_FIRST = (EXIT_LOST, 3, 4, EXIT_UNUSABLE, 0)  # of mqaudit


def main() -> int:
    parser = argparse.ArgumentParser(prog="raftmq-audit")
    parser.add_argument("--run", default="run", help="a directory below /runs")
    parser.add_argument("--topic", default="", help="judge the sends to this topic alone")
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    options = parser.parse_args()
    history = RUNS / options.run / "history.jsonl"
    if not history.is_file():
        print(f"raftmq-audit: there is no {history}; mqchaos writes it", file=sys.stderr)
        return EXIT_UNUSABLE
    stores = stores_of(STORES)
    unknown = [group for group in options.groups if group not in stores]
    if unknown or not stores:
        reason = f"no stores of {', '.join(unknown) or 'any group'}; there are: {', '.join(stores)}"
        print(f"raftmq-audit: {reason}", file=sys.stderr)
        return EXIT_UNUSABLE
    status = audit(history, options.topic, {g: stores[g] for g in options.groups or stores})
    if status == EXIT_LOST and len(list(RUNS.glob("*/history.jsonl"))) > 1:
        print(
            "raftmq-audit: there were several runs. Messages of another run that stand in the same "
            "volumes were never sent as far as this one knows: audit the first run of new volumes."
        )
    return status


def stores_of(root: Path) -> dict[str, list[Path]]:
    """Return by group the directories of its nodes that have a log."""
    stores: dict[str, list[Path]] = {}
    for node in sorted(root.glob("*/*")):
        if (node / "store" / "commitlog").is_dir():
            stores.setdefault(node.parent.name, []).append(node)
    return stores


def audit(history: Path, topic: str, groups: dict[str, list[Path]]) -> int:
    """Audit each group; return the gravest exit status."""
    from raftmq.audit.cli import main as mqaudit

    statuses = []
    for group, nodes in groups.items():
        command = [f"--history={history}", f"--group={group}"]
        command += [f"--topic={topic}"] if topic else []
        command += [f"--store={node.name}={node / 'store'}" for node in nodes]
        try:
            mqaudit(command)
        except SystemExit as end:
            statuses.append(int(end.code or 0))
    return min(statuses, key=GRAVEST_FIRST.index)


if __name__ == "__main__":
    sys.exit(main())
