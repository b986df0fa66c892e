"""Serve the page of a run on this machine while the run goes on."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from hashlib import sha256
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any, final

from fedcohort._display import counted
from fedcohort._lock import is_locked
from fedcohort.errors import FedcohortError
from fedcohort.report.page_parts import watch_script

HOST = "127.0.0.1"
#: The endings of logs that are not there yet.
LOGS = (".jsonl", ".json", ".csv", ".txt", ".log")
WAITING = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">
<style>body {{ max-width: 40rem; margin: 4rem auto; font: 1rem/1.5 system-ui }}</style>
</head><body><h1>{title}</h1><p>{text}</p>{script}</body></html>"""


class Watched(ABC):
    """The page of a run, made again when its files have changed.

    A run that is not there yet, or has no results yet, has a page that says so. If it cannot be
    read for a moment, the last page stays.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, Lock()
        self._seen, self._version, self._page, self._text = "", "", "", ""

    def state(self) -> dict[str, str]:
        """Return the version of the current page, and one sentence about the run."""
        with self._lock:
            self._update()
            return {"version": self._version, "text": self._text}

    def page(self) -> str:
        """Return the current page as HTML."""
        with self._lock:
            self._update()
            return self._page

    def _update(self) -> None:
        """Make the page again if a file of the run, or whether it is running, has changed."""
        seen = self._fingerprint()
        if seen == self._seen:
            return
        try:
            self._page, self._text = self._made(seen)
            self._seen = self._version = seen
        except (FedcohortError, OSError) as error:  # a file may be replaced at this moment
            self._text = self._why_not(error)
            if not self._version or self._version.startswith("waiting"):
                self._version = f"waiting {sha256(self._text.encode()).hexdigest()[:16]}"
                self._page = waiting_page(self.path, self._text, self._version)

    @abstractmethod
    def _fingerprint(self) -> str:
        """Return a hash of the files of the page."""

    @abstractmethod
    def _made(self, version: str) -> tuple[str, str]:
        """Return the page of this version, and one sentence about the run."""

    @abstractmethod
    def _why_not(self, error: Exception) -> str:
        """Say why there is no page."""


@final
class WatchedRun(Watched):
    """The report of a run folder."""

    def _fingerprint(self) -> str:
        """Return a hash of the page's files, and whether the run is still running."""
        from fedcohort.experiments.run_folder import HEAD

        files = [self.path / HEAD, *self.path.glob("*.parquet"), *self.path.glob("units/*/*")]
        kept = [each for each in files if each.suffix in (".parquet", ".json", ".txt")]
        return _hash_of(kept, is_locked(self.path / "lock"))

    def _made(self, version: str) -> tuple[str, str]:
        from fedcohort.experiments import read_results
        from fedcohort.report.page import page_html

        results = read_results(self.path)
        return page_html([results], watched=version), _progress_text(results.folder.progress())

    def _why_not(self, error: Exception) -> str:
        from fedcohort.experiments.run_folder import HEAD

        if not (self.path / HEAD).exists():
            return f"There is no run in {self.path} yet. The page opens when it begins."
        if not (self.path / "federations.parquet").exists():
            return f"The run in {self.path} has no results yet. The page opens when it has."
        return str(error)


@final
class WatchedLog(Watched):
    """The audit of a log: who takes part."""

    def _fingerprint(self) -> str:
        return _hash_of([self.path])

    def _made(self, version: str) -> tuple[str, str]:
        from fedcohort.participation import audit
        from fedcohort.report.audit_page import audit_html

        found = audit(self.path, replay=False)
        own = found.participation
        text = f"{counted(own.n_rounds, 'round')} so far; the page follows the log."
        return audit_html(found, watched=version), text

    def _why_not(self, error: Exception) -> str:
        if not self.path.exists() or not self.path.stat().st_size:
            return f"There is no log {self.path} yet. The page opens when it begins."
        return str(error)


def is_log(path: Path) -> bool:
    """Return whether a path is a file, or will be one by its name."""
    return path.is_file() or (not path.exists() and path.suffix in LOGS)


def _hash_of(files: Iterable[Path], *more: object) -> str:
    """Return a hash of the times and sizes of files."""
    parts: list[object] = [*more]
    for file in sorted(files):
        try:
            found = file.stat()
        except OSError:  # replaced at this moment
            continue
        parts.append((file.name, file.parent.name, found.st_mtime_ns, found.st_size))
    return sha256(repr(parts).encode()).hexdigest()[:16]


def waiting_page(path: Path, text: str, version: str) -> str:
    """Return a page that says what it waits for, as HTML."""
    title, script = escape(path.name or str(path)), watch_script(version)
    return WAITING.format(title=title, text=escape(text), script=script)


def _progress_text(progress: Any) -> str:
    """Say how far a run is."""
    if progress.state == "complete":
        return f"The run is complete: {progress.total} rounds over all designs and seeds."
    rounds = f"{progress.done} of {progress.total} rounds over all designs and seeds"
    follows = "; the page follows it" if progress.state == "running" else ""
    return f"The run is {progress.state}: {rounds}{follows}."


@final
class WatchServer(ThreadingHTTPServer):
    """Serve one run, or the audit of one log, to this machine alone. Port 0 takes a free port."""

    daemon_threads = True

    def __init__(self, path: Path, port: int = 0) -> None:
        self.run: Watched = WatchedLog(path) if is_log(path) else WatchedRun(path)
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer

    def do_GET(self) -> None:
        """Answer with the page or the state; refuse other paths and other hosts."""
        # A page of another site may point its own name at this machine: its Host header differs.
        hosts = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        if self.headers.get("Host") not in hosts:
            self.send_error(403)
        elif self.path == "/":
            self._send("text/html; charset=utf-8", self.server.run.page())
        elif self.path == "/state":
            self._send("application/json", json.dumps(self.server.run.state()))
        else:
            self.send_error(404)

    def _send(self, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(200)
        headers = {"Content-Type": kind, "Content-Length": str(len(content))}
        fixed = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        for name, value in {**headers, **fixed}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(content)
        except ConnectionError:  # the browser has gone
            self.close_connection = True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Print nothing."""

    def log_error(self, *args: object) -> None:
        """Print nothing."""
