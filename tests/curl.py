"""A `curl` for the examples of pages, on machines that have none: `CURL` makes it a bash function.

It has the options that these examples use, and fails for others.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import urllib.error
import urllib.request
from types import FrameType

CURL = f'curl() {{ {shlex.quote(sys.executable)} -I {shlex.quote(__file__)} "$@"; }}\n'
FAILED, TIMED_OUT = 22, 28  # its exit statuses


def main() -> int:
    parser = argparse.ArgumentParser(prog="curl", allow_abbrev=False)
    parser.add_argument("url")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-X", dest="method")
    parser.add_argument("-d", dest="data", type=str.encode)
    parser.add_argument("-o", dest="output", choices=["/dev/null"])
    parser.add_argument("-w", dest="written", choices=["%header{etag}"])
    parser.add_argument("-f", dest="fails", action="store_true")
    parser.add_argument("--max-time", type=float, default=0)
    for silent in ("-s", "-S", "-N"):
        parser.add_argument(silent, action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, _time_out)
    signal.setitimer(signal.ITIMER_REAL, options.max_time)
    headers = dict(header.split(": ", 1) for header in options.headers)
    request = urllib.request.Request(options.url, options.data, headers, method=options.method)
    try:
        answer = urllib.request.urlopen(request)
    except urllib.error.HTTPError as error:
        if options.fails:
            print(f"curl: (22) The requested URL returned error: {error.code}", file=sys.stderr)
            return FAILED
        answer = error
    with answer:
        while part := answer.read1():
            if not options.output:
                os.write(sys.stdout.fileno(), part)
        if options.written:
            print(answer.headers.get("ETag", ""), end="")
    return 0


def _time_out(number: int, frame: FrameType | None) -> None:
    os._exit(TIMED_OUT)


if __name__ == "__main__":
    sys.exit(main())
