"""`eagc open`: a small server that lets the page of a discovery save, refine and sort.

It listens only on the loopback address, and only answers requests whose address begins with its token. It
serves the page, its thumbnails and the images on the page, each by its number: no address is a path, so none
leads elsewhere. It writes edits.json, what `eagc refine` writes, and folders of links; it only reads the
images.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import mimetypes
import os
import re
import secrets
import shutil
import threading
import webbrowser
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from eagc_ops.app.files import atomic_write
from eagc_ops.discovery.edits import EDITS
from eagc_ops.discovery.page import FILES, PAGE, image_paths
from eagc_ops.discovery.places import CATEGORIES_JSON
from eagc_ops.discovery.thumbnails import upright_picture

__all__ = ["SORTED", "PageServer", "open_page"]

ADDRESS = "127.0.0.1"
SORTED = "by-category"  # folder in the output folder, for links
MOST_BYTES = 100_000_000  # of edits.json
_THUMBNAILS = re.compile(rf"{FILES}/([a-z]+-[0-9]+\.webp)")
_IMAGE = re.compile(r"(image|shown)/([0-9]{1,12})")
_SIDE = 1600  # pixels of an image that is shown in a format of browsers
_SHOWN = {"image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/avif"}  # by browsers


class PageServer(ThreadingHTTPServer):
    """Serves the page of the discovery in `folder`; `url` is its address, with the token."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder
        self.token = secrets.token_urlsafe(24)
        self.writing = threading.Lock()  # one change at a time
        self._images: tuple[tuple[int, int], list[str]] | None = None
        super().__init__((ADDRESS, port), _Handler)

    @property
    def hosts(self) -> tuple[str, str]:
        """The names under which a browser on this machine reaches the server."""
        return f"{ADDRESS}:{self.server_port}", f"localhost:{self.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.hosts[0]}/{self.token}/"

    def image(self, number: int) -> str | None:
        """The file of an image, by its number on the present page."""
        state = (self.folder / PAGE).stat()
        stamp = (state.st_mtime_ns, state.st_size)
        if self._images is None or self._images[0] != stamp:
            self._images = stamp, image_paths(self.folder)
        files = self._images[1]
        return files[number] if number < len(files) else None

    @property
    def discovery(self) -> str:
        """The identity of the answer in the folder."""
        found = json.loads((self.folder / CATEGORIES_JSON).read_text(encoding="utf-8"))
        return str(found.get("discovery", ""))


def open_page(folder: Path, port: int = 0, browser: bool = True, say: Callable[[str], None] = print) -> None:
    """Serve the page until Ctrl-C."""
    with PageServer(folder, port) as server:
        say(f"page: {server.url}")
        say("Only this machine can reach it, at this address alone. Ctrl-C ends it; your changes are saved.")
        if browser:
            webbrowser.open(server.url)
        server.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "eagc", ""

    def do_GET(self) -> None:
        name = self._asked()
        if name is None:
            return
        if name in ("", PAGE):
            self._file(self.server.folder / PAGE, "text/html; charset=utf-8")
        elif name == EDITS:
            self._edits()
        elif found := _THUMBNAILS.fullmatch(name):
            self._file(self.server.folder / FILES / found[1], "image/webp")
        elif (found := _IMAGE.fullmatch(name)) and (file := self.server.image(int(found[2]))):
            kind = mimetypes.guess_type(file)[0]
            if found[1] == "shown":
                self._shown(file)
            else:
                self._file(Path(file), kind if kind in _SHOWN else "application/octet-stream")
        else:
            self._answer(HTTPStatus.NOT_FOUND, "there is nothing with this name")

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        name, body = self._asked(), self._body()
        if name is None or body is None:
            return
        if name != EDITS:
            self._answer(HTTPStatus.NOT_FOUND, "only edits.json can be written")
            return
        with self.server.writing:
            self._save(body)

    def do_POST(self) -> None:
        acts = {"refine": _refine, "folders": _folders}
        name, body = self._asked(), self._body()
        if name is None or body is None:
            return
        if name not in acts:
            self._answer(HTTPStatus.NOT_FOUND, "there is nothing with this name")
            return
        with self.server.writing:
            try:
                text = acts[name](self.server.folder)
            except (ValueError, OSError) as error:  # in one line, as on the command line
                self._answer(HTTPStatus.CONFLICT, str(error))
                return
        self._answer(HTTPStatus.OK, text)

    # Who asks, and for what

    def _asked(self) -> str | None:
        """The address after the token; None if the request was refused."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if host not in self.server.hosts:  # another page's host name that points here
            self._answer(HTTPStatus.FORBIDDEN, "this address is not served")
        elif origin is not None and origin not in [f"http://{own}" for own in self.server.hosts]:
            self._answer(HTTPStatus.FORBIDDEN, "other pages may not ask")
        else:
            token, slash, name = self.path.partition("?")[0].removeprefix("/").partition("/")
            if slash and hmac.compare_digest(token.encode(), self.server.token.encode()):
                return name
            self._answer(HTTPStatus.FORBIDDEN, "the token is wrong: use the address that `eagc open` printed")
        return None

    def _body(self) -> bytes | None:
        """The body of the request; None if it was refused."""
        length = self.headers.get("Content-Length") or "0"
        if not length.isdecimal() or int(length) > MOST_BYTES:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {MOST_BYTES:,} bytes can be saved")
            return None
        return self.rfile.read(int(length))

    # Answers

    def _edits(self) -> None:
        file = self.server.folder / EDITS
        if not file.exists():
            self._head(HTTPStatus.NO_CONTENT, "text/plain", 0)  # nothing was changed yet
            return
        content = file.read_bytes()
        self._head(HTTPStatus.OK, "application/json", len(content), ETag=_tag(content))
        self._write(content)

    def _save(self, body: bytes) -> None:
        """Write edits.json, unless another window has changed it since."""
        file = self.server.folder / EDITS
        before = _tag(file.read_bytes()) if file.exists() else "*"
        if self.headers.get("If-Match") != before:
            self._answer(HTTPStatus.PRECONDITION_FAILED, "edits.json was changed elsewhere; reload the page")
            return
        try:
            content = json.loads(body)
            discovery = content["discovery"]
        except (ValueError, KeyError, TypeError):
            self._answer(HTTPStatus.BAD_REQUEST, "this is no edits.json")
            return
        if discovery != self.server.discovery:
            self._answer(HTTPStatus.CONFLICT, "there is a newer answer; reload the page")
            return
        try:
            atomic_write(file, body)
        except OSError as error:
            self._answer(HTTPStatus.INSUFFICIENT_STORAGE, str(error))
            return
        self._head(HTTPStatus.NO_CONTENT, "text/plain", 0, ETag=_tag(body))

    def _file(self, file: Path, kind: str) -> None:
        try:
            opened = file.open("rb")
        except OSError:
            self._answer(HTTPStatus.NOT_FOUND, "this file cannot be read")
            return
        with opened:
            self._head(HTTPStatus.OK, kind, os.fstat(opened.fileno()).st_size)
            if self.command != "HEAD":
                shutil.copyfileobj(opened, self.wfile)

    def _shown(self, file: str) -> None:
        """Serve an image that no browser can show, such as HEIC, as a JPEG."""
        data = io.BytesIO()
        try:
            picture = upright_picture(file, _SIDE)
            picture.thumbnail((_SIDE, _SIDE))
            picture.save(data, "JPEG", quality=90)
        except Exception:  # a damaged file can make PIL raise almost anything
            self._answer(HTTPStatus.NOT_FOUND, "this file cannot be read")
            return
        self._head(HTTPStatus.OK, "image/jpeg", data.tell())
        self._write(data.getvalue())

    def _answer(self, status: HTTPStatus, text: str) -> None:
        content = text.encode()
        if status >= HTTPStatus.BAD_REQUEST:
            self.close_connection = True  # the body may not have been read
        self._head(status, "text/plain; charset=utf-8", len(content))
        self._write(content)

    def _write(self, content: bytes) -> None:
        if self.command != "HEAD":
            self.wfile.write(content)

    def _head(self, status: HTTPStatus, kind: str, length: int, **more: str) -> None:
        self.send_response(status)
        fixed = {
            "Content-Type": kind,
            "Content-Length": str(length),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        if not kind.startswith("text/html"):
            fixed["Content-Security-Policy"] = "default-src 'none'; sandbox"  # an image may be no image
        if self.close_connection:
            fixed["Connection"] = "close"
        for name, value in {**fixed, **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: the terminal is for the user."""


def _tag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _refine(folder: Path) -> str:
    from eagc_ops.discovery.refinement import refine  # torch takes seconds to import

    content = refine(folder, folder / EDITS, say=lambda _: None)
    kept = folder / f"edits-{content['round']}.json"  # of which this answer was made
    os.replace(folder / EDITS, kept)
    return str(content["changes"]["sentence"])


def _folders(folder: Path) -> str:
    from eagc_ops.discovery.refinement import sorted_folders

    return sorted_folders(folder, folder / SORTED)
