"""A bucket of an S3 service: lists and reads the files of a directory of stores, NODE/store/…, and
counts the bytes that each access key reads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

NAME = "stores"


def environment(access_key: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@dataclass
class Bucket:
    """`bytes_read` is by access key and by the file or directory in a store, "" for lists."""

    root: Path
    port: int = 0
    bytes_read: Counter[tuple[str, str]] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def uri(self, path: str) -> str:
        options = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=eu-1"
        return f"s3://{NAME}/{path}?{options}"


@contextmanager
def served(root: Path) -> Iterator[Bucket]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    bucket = Bucket(root, server.server_port)
    server.bucket = bucket  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield bucket
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def bucket(self) -> Bucket:
        return self.server.bucket  # type: ignore[attr-defined]

    def do_HEAD(self) -> None:
        path = self._path()
        if path is not None and path.is_file():
            self._answer(200, b"", path.stat().st_size)
        else:
            self._answer(404, b"", 0)

    def do_GET(self) -> None:
        path, asked = self._path(), parse_qs(urlsplit(self.path).query)
        kind = ""
        if "list-type" in asked:
            content = self._listing(asked.get("prefix", [""])[0])
        elif path is None or not path.is_file():
            self._answer(404, b"", 0)
            return
        else:
            content = path.read_bytes()
            low, _, high = self.headers["Range"].removeprefix("bytes=").partition("-")
            content = content[int(low) : int(high) + 1]
            kind = path.relative_to(self.bucket.root).parts[2]  # behind node/store
        key = self.headers["Authorization"].partition("Credential=")[2].partition("/")[0]
        with self.bucket.lock:
            self.bucket.bytes_read[key, kind] += len(content)
        self._answer(206 if "Range" in self.headers else 200, content, len(content))

    def _path(self) -> Path | None:
        name = unquote(urlsplit(self.path).path)
        prefix = f"/{NAME}/"
        return self.bucket.root / name.removeprefix(prefix) if name.startswith(prefix) else None

    def _listing(self, prefix: str) -> bytes:
        root = self.bucket.root
        files = {path.relative_to(root).as_posix(): path for path in root.rglob("*")}
        rows = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{path.stat().st_size}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for name, path in sorted(files.items())
            if name.startswith(prefix) and path.is_file()
        )
        return (
            '<?xml version="1.0"?><ListBucketResult>'
            f"<Name>{NAME}</Name><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        ).encode()

    def _answer(self, status: int, content: bytes, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""
