"""The page on this machine's loopback, made anew when the dataset has changed: reload it while a sweep runs."""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

from orchestrator.analysis.sources import local_datasets
from orchestrator.analysis.sql import Where
from orchestrator.errors import UserError
from orchestrator.reporting.dashboard import data, page
from orchestrator.storage import access
from orchestrator.storage.parquet import DATA, JOURNAL

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")  # what a browser here calls us; another name in Host is a page from elsewhere reaching for us


class Pages:
    """The page of a dataset, kept until its files change."""

    def __init__(self, path: str, where: Where) -> None:
        self.path, self.where = path, where
        self._lock, self._made = Lock(), b""
        self._of: tuple[object, ...] = ()

    def page(self) -> bytes:
        with self._lock:
            if (now := self._state()) != self._of:
                self._made, self._of = page.make(self.path, self.where, served=True).encode(), now
            return self._made

    def parquet(self) -> bytes:
        return data.parquet(self.path)

    def _state(self) -> tuple[object, ...]:
        """What changes when a dataset does: its files' times and sizes. That of an object store is read again each time."""
        if access.in_objects(self.path):
            return (object(),)
        files = (file for place in local_datasets(self.path) for file in (place, place / DATA, place / JOURNAL))
        return tuple((str(f), f.stat().st_mtime_ns, f.stat().st_size) if f.exists() else None for f in files)


class Handler(BaseHTTPRequestHandler):
    """GET of the page and of the dataset's Parquet; nothing else is there."""

    server: PageServer

    def do_GET(self) -> None:
        if self.headers.get("Host", "").rpartition(":")[0] not in NAMES:
            self.send_error(HTTPStatus.FORBIDDEN, "this dashboard answers to 127.0.0.1 and localhost")
            return
        pages = self.server.pages
        try:
            match self.path.partition("?")[0]:
                case "/":
                    self._send(pages.page(), "text/html; charset=utf-8")
                case "/rows.parquet":
                    self._send(pages.parquet(), "application/vnd.apache.parquet")
                case _:
                    self.send_error(HTTPStatus.NOT_FOUND)
        except UserError as error:
            self._send(str(error).encode(), "text/plain; charset=utf-8", HTTPStatus.CONFLICT)

    def _send(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Says nothing: a terminal is for what a person asked."""


class PageServer(ThreadingHTTPServer):
    """Listens on loopback alone. Raises UserError for a port that is taken; port 0 takes any free one."""

    daemon_threads = True

    def __init__(self, path: str, where: Where, port: int) -> None:
        self.pages = Pages(path, where)
        self.pages.page()  # what is wrong with the dataset is said now
        try:
            super().__init__((LOOPBACK, port), Handler)
        except OSError as error:
            raise UserError(
                f"dashboard.port={port}: cannot be listened on ({error.strerror}); type another, or dashboard.port=0 for any"
            ) from None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/"
