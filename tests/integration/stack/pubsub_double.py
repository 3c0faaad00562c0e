"""As much of a Pub/Sub emulator's REST interface as a publisher needs."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class PubSub:
    """Keeps what was published as pairs of topic and attributes; a topic must be created first."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, dict[str, str]]] = []
        self.topics: set[str] = set()
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                double.topics.add(self.path.removeprefix("/v1/"))
                self._answer(200)

            def do_POST(self) -> None:
                topic = self.path.removeprefix("/v1/").removesuffix(":publish")
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if topic not in double.topics:
                    self._answer(404)
                    return
                double.messages += [(topic, message["attributes"]) for message in body["messages"]]
                self._answer(200)

            def _answer(self, status: int) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
