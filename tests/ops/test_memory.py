"""Large blocks that were freed are given back, whatever came before."""

import subprocess
import sys

PROGRAM = """
from raftmq.ops.memory import return_large_blocks

def resident():
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) // 1024

assert return_large_blocks()
before = resident()
for size in (2, 8, 14, 31):  # each would raise glibc's own bound
    del [bytearray(b"x") * (size << 20) for _ in range(2)][:]
held, small = [], []
for _ in range(20):
    held.append(bytearray(b"x") * (14 << 20))
    small.append(bytes(100))
peak = resident()
held.clear()
print(before, peak, resident())
"""


def test_memory_of_large_frames_is_returned():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    before, peak, after = map(int, done.stdout.split())
    assert peak > before + 200
    assert after < before + 30
