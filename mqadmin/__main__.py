"""`python -m raftmq.mqadmin` is mqadmin."""

from raftmq.commands import mqadmin

if __name__ == "__main__":
    mqadmin()
