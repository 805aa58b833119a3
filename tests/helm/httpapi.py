"""An HTTP API that answers as told and remembers what it was asked."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Asked = tuple[str, str, str | None]  # method, path, Authorization


class HttpApi:
    """`with HttpApi() as api:` serves on loopback. `answers`: path without query → JSON; {} to
    every other."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.answers: dict[str, Any] = {}
        self.seen: list[Asked] = []
        self._server = ThreadingHTTPServer((host, port), self._handler())
        self._thread = Thread(target=self._server.serve_forever)
        self.port = int(self._server.server_address[1])

    def __enter__(self) -> "HttpApi":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                api.seen.append((self.command, self.path, self.headers["Authorization"]))
                content = json.dumps(api.answers.get(self.path.partition("?")[0], {})).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, *_: object) -> None:
                pass

        return Handler
