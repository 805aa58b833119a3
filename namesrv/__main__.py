"""`python -m raftmq.namesrv` is mqnamesrv."""

from raftmq.commands import mqnamesrv

if __name__ == "__main__":
    mqnamesrv()
