"""`python -m raftmq.broker` is mqbroker."""

from raftmq.commands import mqbroker

if __name__ == "__main__":
    mqbroker()
