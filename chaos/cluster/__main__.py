"""`python -m raftmq.chaos.cluster` is mqcluster."""

from raftmq.commands import mqcluster

if __name__ == "__main__":
    mqcluster()
