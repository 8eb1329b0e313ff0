"""A local page on which a person compares segments: two clips side by side, and a few keys."""

from __future__ import annotations

import importlib.resources
import json
import threading
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from assay.core.errors import AssayError, ConfigError, DataError
from assay.core.types import tree_leaves
from assay.envs.make import make_env
from assay.evaluation.video import Frame, redraw, write_gif
from assay.preferences.files import UNDO, Pair, PreferenceSet, Segment
from assay.preferences.pairs import make_buffer
from assay.runs.files import replacing

HOST = "127.0.0.1"
_LARGEST = 4096  # bytes of an answer
_SIDE = 320  # pixels of the longer side at most
_SLOWEST = 15.0  # frames per second that are enough to see what happens
_FIX = "Sample from a run, with --from policy or random, or answer with --oracle or --file."


class LabelPage:
    """Serves the pairs that somebody has not answered, on this machine alone.

    Every answer is on the disk before the next pair is shown, so that the page can be left at any
    time and opened again.

    Args:
        found: The pairs.
        annotator: Who answers.
        port: Where; 0 takes a free one.

    Raises:
        ConfigError: The port is taken.
    """

    def __init__(self, found: PreferenceSet, annotator: str, *, port: int = 0) -> None:
        self.found, self.annotator = found, annotator
        self.clips = Clips(found)
        self.finished = threading.Event()
        self._lock = threading.RLock()
        self._open: list[Pair] = found.unlabelled(annotator)
        self._answered: list[Pair] = []  # in this session, which can be taken back
        self._total = len(found.pairs())
        try:
            self._server = ThreadingHTTPServer((HOST, port), _handler(self))
        except OSError as error:
            raise ConfigError(
                f"port={port}: {error.strerror}.", "Choose another --port, or 0 for a free one."
            ) from None
        self._server.daemon_threads = True
        if self._open:  # what cannot be drawn is said before a person is asked
            self.clips.clip(self._open[0].left)

    @property
    def address(self) -> str:
        """Return where the page is."""
        return f"http://{HOST}:{self._server.server_port}/"

    def serve(self) -> int:
        """Serve until the person says that it is enough; return how many pairs are left open."""
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            self.finished.wait()
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()
        return len(self._open)

    def state(self) -> dict[str, Any]:
        """Return what the page shows."""
        with self._lock:
            pair = self._open[0] if self._open else None
            return {
                "annotator": self.annotator,
                "env": self.found.facts["env"],
                "done": self._total - len(self._open),
                "total": self._total,
                "undo": bool(self._answered),
                "pair": None if pair is None else {
                    "id": pair.id,
                    "left": f"clips/{pair.left.name}.gif",
                    "right": f"clips/{pair.right.name}.gif",
                },
            }  # fmt: skip

    def answer(self, pair: str, choice: str) -> dict[str, Any]:
        """Write an answer down; one about another pair than the page shows is left out.

        Two tabs, or a key that is pressed twice, would give such answers.
        """
        with self._lock:
            if self._open and self._open[0].id == pair:
                self.found.add_labels([(pair, choice, self.annotator)])
                self._answered.append(self._open.pop(0))
            return self.state()

    def undo(self) -> dict[str, Any]:
        """Take the last answer back, and show its pair again."""
        with self._lock:
            if self._answered:
                pair = self._answered.pop()
                self.found.add_labels([(pair.id, UNDO, self.annotator)])
                self._open.insert(0, pair)
            return self.state()

    def clip(self, name: str) -> bytes | None:
        """Return the picture of a segment; None if no pair has one of this name."""
        for pair in self.found.pairs().values():
            for segment in (pair.left, pair.right):
                if segment.name == name:
                    return self.clips.clip(segment).read_bytes()
        return None


def _handler(page: LabelPage) -> type[BaseHTTPRequestHandler]:
    text = importlib.resources.files("assay.preferences").joinpath("page.html").read_bytes()

    class Handler(BaseHTTPRequestHandler):
        """Answers the page's requests."""

        def do_GET(self) -> None:
            """Send the page, its state or a clip."""
            if not self._is_local():
                return
            if self.path == "/":
                self._send(text, "text/html; charset=utf-8")
            elif self.path == "/state":
                self._send_json(page.state())
            elif (path := self.path.partition("?")[0]).startswith("/clips/"):
                self._send_clip(path.removeprefix("/clips/").removesuffix(".gif"))
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def do_POST(self) -> None:
            """Take an answer, or one back."""
            if not self._is_local():
                return
            # A form of another site cannot send JSON, and a script of one is stopped by its origin.
            if self.headers.get("Origin") not in (None, f"http://{self.headers['Host']}"):
                self.send_error(HTTPStatus.FORBIDDEN)
                return
            size = int(self.headers.get("Content-Length") or 0)
            if self.headers.get("Content-Type") != "application/json" or size > _LARGEST:
                self.send_error(HTTPStatus.BAD_REQUEST)
                return
            try:
                given = json.loads(self.rfile.read(size) or b"{}")
                if self.path == "/answer":
                    self._send_json(page.answer(str(given["pair"]), str(given["choice"])))
                elif self.path == "/undo":
                    self._send_json(page.undo())
                elif self.path == "/finish":
                    self._send_json({"finished": True})
                    page.finished.set()
                else:
                    self.send_error(HTTPStatus.NOT_FOUND)
            except (ValueError, KeyError, TypeError):
                self.send_error(HTTPStatus.BAD_REQUEST)
            except AssayError as error:
                self._send_json({"error": str(error)}, HTTPStatus.CONFLICT)

        def _send_clip(self, name: str) -> None:
            try:
                data = page.clip(name)
            except AssayError as error:
                self._send(str(error).encode(), "text/plain", HTTPStatus.CONFLICT)
                return
            if data is None:
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                self._send(data, "image/gif")

        def _is_local(self) -> bool:
            """Refuse a name that somebody else has pointed at this machine."""
            name = (self.headers.get("Host") or "").partition(":")[0]
            if name in (HOST, "localhost"):
                return True
            self.send_error(HTTPStatus.FORBIDDEN)
            return False

        def _send_json(self, value: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
            self._send(json.dumps(value).encode(), "application/json", status)

        def _send(self, data: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
            # A browser that answers before a clip is there, or is closed, stops listening.
            with suppress(ConnectionError):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: a line for every picture helps nobody."""

    return Handler


class Clips:
    """GIFs of segments, each drawn when it is first asked for, and kept in the set's directory.

    An episode is played again from its seed, and its stretch is drawn.
    """

    def __init__(self, found: PreferenceSet) -> None:
        self.found = found
        self._lock = threading.Lock()  # one environment draws at a time

    def clip(self, segment: Segment) -> Path:
        """Return the GIF of a segment.

        Raises:
            DataError: How its episode began is not known, or it came out differently.
            EnvError: The environment cannot be rendered.
        """
        path = self.found.path / "clips" / f"{segment.name}.gif"
        with self._lock:
            if not path.is_file():
                self._draw(segment, path)
        return path

    def _draw(self, segment: Segment, path: Path) -> None:
        batch = next(one for one in self.found.batches if one.number == segment.batch)
        seed = batch.seed(segment.episode)
        if seed is None:
            raise DataError(
                f"Episode {segment.episode} of batch {batch.number} cannot be drawn: its seed is "
                "not known.",
                _FIX,
            )
        episode = batch.dataset.episode(segment.episode)
        last = segment.start + self.found.length
        settings = self.found.facts["env_settings"]
        made = redraw(
            self._make,
            seed,
            episode.action[:last],
            first=segment.start,
            wrappers=settings.get("wrappers", ()),
        )
        rows = make_buffer(batch.dataset).canonical(episode.obs)
        for recorded, drawn in zip(tree_leaves(rows), _columns(made.obs), strict=True):
            expected = recorded[segment.start : last + 1]
            if not np.allclose(expected, drawn, rtol=1e-3, atol=1e-3):
                raise DataError(
                    f"Episode {segment.episode} of batch {batch.number} came out differently when "
                    "it was played again from its seed: the seed does not determine what the "
                    "environment does.",
                    _FIX,
                )
        stride = max(1, round(made.fps / _SLOWEST))
        with replacing(path) as draft, write_gif(draft, made.fps / stride) as write:
            for frame in made.frames[::stride]:
                write(_smaller(frame))

    def _make(self, render_mode: str) -> Any:
        facts = self.found.facts
        settings = facts["env_settings"]
        kwargs = {**settings.get("env_kwargs", {}), "render_mode": render_mode}
        others = {name: settings.get(name) for name in ("reset_options", "max_episode_steps")}
        return make_env(facts["env"], env_kwargs=kwargs, **others)


def _columns(trees: list[Any]) -> list[np.ndarray[Any, Any]]:
    """Return the parts of observations [K], each [K, ...]."""
    rows = [tree_leaves(tree) for tree in trees]
    return [np.concatenate(parts) for parts in zip(*rows, strict=True)]


def _smaller(frame: Frame) -> Frame:
    step = -(-max(frame.shape[:2]) // _SIDE)
    return frame[::step, ::step]
