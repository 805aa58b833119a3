"""`python -m raftmq.audit` is mqaudit."""

from raftmq.commands import mqaudit

if __name__ == "__main__":
    mqaudit()
