"""`python -m raftmq.chaos` is mqchaos."""

from raftmq.commands import mqchaos

if __name__ == "__main__":
    mqchaos()
