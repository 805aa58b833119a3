"""`python -m raftmq.proxy`: the same as `mqproxy`."""

from .cli import main

if __name__ == "__main__":
    main(prog_name="mqproxy")
