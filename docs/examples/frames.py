"""Print the frames of a replica's first CommitLog segment (frames.py DIR/n0/store)."""

import mmap
import sys
from pathlib import Path

from raftmq.store.frame import FrameError, FrameKind, parse_frame

segment = min((Path(sys.argv[1]) / "commitlog").iterdir())
with segment.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as log:
    position = 0
    while True:
        try:
            header = log[position : position + 60]
            size = 60 + int.from_bytes(header[40:44])  # and the payload's length
            frame = parse_frame(log[position : position + size])
        except FrameError:
            break  # unwritten zeros, or the blank record that closes a segment
        kind = FrameKind(frame.kind).name.lower()
        what = f"{kind:9} {frame.record_count:>4} records"
        print(f"{frame.index:>6} term {frame.term} {what} bytes {frame.position} to {frame.end}")
        position = frame.end
