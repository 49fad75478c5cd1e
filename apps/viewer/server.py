"""The viewer's server: it serves the page and answers its requests, on the loopback address.

It refuses requests from other sites' pages, and requests for another host name, which may be a
name that an attacker points at this machine. Requests name models and data by number, not by path.
"""

import json
import re
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Any, Literal

from pydantic import Field

from apps.reports.asking import note_on
from apps.reports.boards import Board, asked, draw, draw_panels, panels_of
from apps.viewer.adapting import Adapter
from apps.viewer.inside import listened, looked_inside
from apps.viewer.shelf import MISTAKES, Model, Shelf, at, label
from apps.viewer.thinking import Event, Options, Thinker, svg_of
from dataset.arc.tasks import parse_task
from dataset.format.schema import ARC_PALETTE
from dataset.kinds.arc import ARC
from dataset.kinds.base import Puzzle
from dataset.kinds.sudoku import SUDOKU
from evaluation.puzzles import parse_puzzle
from runtime.errors import ConfigError, DatasetError
from runtime.schema import Count, CountOrZero, Schema, StrictBool
from runtime.text import shown
from training.checkpoint.trained_model import TrainedModel
from training.config.explain import validate
from training.config.overrides import quoted_value

_PAGE = Path(__file__).parent / "page"
_SCRIPTS = ("viewer.js", "common.js", "editor.js", "player.js", "inside.js", "task.js")
_FILES = {"": "text/html", "viewer.css": "text/css"}
_FILES |= dict.fromkeys(_SCRIPTS, "text/javascript")
_ANSWERS = ("found", "board", "example", "rows", "save", "think", "inside", "influence", "adapt")
_THIS_MACHINE = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")
_MOST_BYTES = 1_000_000
_PER_PAGE = 50
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class GivenPuzzle(Schema):
    """A puzzle: its text if it was typed or drawn, or the row of a data set."""

    text: str = Field("", max_length=200_000)
    data: CountOrZero | None = None
    row: CountOrZero = 0


class PuzzleRequest(Schema):
    model: CountOrZero
    puzzle: GivenPuzzle


class ThinkRequest(PuzzleRequest, Options):
    """A puzzle for a model to solve, with settings."""


class InsideRequest(PuzzleRequest):
    """Asks what a model does inside while it solves a puzzle."""

    steps: Count | None = Field(None, le=256)


class InfluenceRequest(InsideRequest):
    """Asks which cells listen to which after a step."""

    step: Count
    of: Literal["influence", "attention"] = "influence"


class ExampleRequest(Schema):
    """Asks for a puzzle that a model reads: one of its data, or a new one."""

    model: CountOrZero
    seed: CountOrZero = Field(0, lt=2**32)


class SaveRequest(Schema):
    thought: CountOrZero


class AdaptRequest(Schema):
    """An ARC task to learn, from a model or (`model` is null) by a new one."""

    task: dict[str, Any]
    model: CountOrZero | None = None
    minutes: float = Field(1.0, gt=0, le=600)


class RowsRequest(Schema):
    """Asks for puzzles of a data set, or of an evaluation's records, that a model reads."""

    model: CountOrZero
    of: Literal["data", "records"]
    number: CountOrZero
    text: str = Field("", max_length=200)
    wrong_only: StrictBool = True
    page: CountOrZero = 0


class Server(ThreadingTCPServer):
    """The server on a port of the loopback address (0: any free one). It calls `find` for models
    and data each time a page is opened.

    Raises:
        OSError: the port is taken.
    """

    allow_reuse_address = daemon_threads = True
    request_queue_size = 64

    def __init__(self, find: Callable[[], Shelf], port: int) -> None:
        self.api = _Api(find)
        super().__init__(("127.0.0.1", port), partial(_Handler, self.api))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: the client has closed the connection."""


class _Handler(BaseHTTPRequestHandler):
    """The handler of one request; it closes the connection."""

    timeout = 10.0  # Seconds to wait for the next byte.

    def __init__(self, api: "_Api", *given: Any) -> None:
        self._api = api
        super().__init__(*given)

    def do_GET(self) -> None:
        name = self.path.removeprefix("/")
        if refusal := self._refusal():
            self._say(*refusal)
        elif name in _FILES:
            self._send((_PAGE / (name or "index.html")).read_bytes(), _FILES[name])
        else:
            self._say("there is no such page", 404)

    def do_POST(self) -> None:
        name = self.path.removeprefix("/api/")
        if refusal := self._refusal() or self._refusal_of_body():
            return self._say(*refusal)
        if name not in _ANSWERS:
            return self._say("there is no such page", 404)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            answered = getattr(self._api, name)(_parsed(body))
        except MISTAKES as error:
            return self._say(str(error), 400)
        except Exception as error:
            return self._say(f"the viewer failed: {type(error).__name__}: {error}", 500)
        if callable(answered):
            self._begin(200, "application/x-ndjson")
            answered(lambda event: self.wfile.write(json.dumps(event).encode() + b"\n"))
            return None
        if isinstance(answered, bytes):
            return self._send(answered, "image/gif")
        self._send(json.dumps(answered).encode())

    def _refusal(self) -> tuple[str, int] | None:
        host = self.headers.get("Host", "")
        is_elsewhere = self.headers.get("Origin", f"http://{host}") != f"http://{host}"
        is_elsewhere |= self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
        if not _THIS_MACHINE.fullmatch(host):
            wrong = f"open this page as http://localhost:PORT, not at {shown(host)}; from another"
            there = "ssh -L PORT:localhost:PORT, and open that address there"
            return f"{wrong} machine: {there}", 403
        return ("requests from another site's page are refused", 403) if is_elsewhere else None

    def _refusal_of_body(self) -> tuple[str, int] | None:
        lengths = self.headers.get_all("Content-Length", [])
        if self.headers.get_content_type() != "application/json":
            return "accepted: application/json", 415
        if "Transfer-Encoding" in self.headers or len(lengths) != 1 or not lengths[0].isdecimal():
            return "the request must have one length (Content-Length)", 411
        is_large = len(lengths[0]) > 20 or int(lengths[0]) > _MOST_BYTES
        return (f"more than {_MOST_BYTES:,} bytes", 413) if is_large else None

    def _say(self, reason: str, status: int) -> None:
        self._send(json.dumps({"error": reason}).encode(), status=status)

    def _send(self, content: bytes, kind: str = "application/json", status: int = 200) -> None:
        self._begin(status, kind)
        self.wfile.write(content)

    def _begin(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def _parsed(body: bytes) -> Any:
    try:
        sent = json.loads(body)
    except (ValueError, RecursionError):
        sent = None
    if not isinstance(sent, dict):
        raise ConfigError("the request is not a JSON object")
    return sent


class _Api:
    """The answers to the page's requests; each method takes a parsed request."""

    def __init__(self, find: Callable[[], Shelf]) -> None:
        self._find, self._thinker, self._adapter = find, Thinker(), Adapter()
        self._shelf = find()

    def found(self, _: Any) -> Event:
        """Look for models, data sets and records, and list them."""
        shelf = self._shelf = self._shelf.with_more(self._find())
        return {
            "models": [_named(m.name, lambda m=m: m.facts(shelf)) for m in shelf.models],
            "data": [_named(d.name, lambda d=d: {"kind": d.kind.name}) for d in shelf.data],
            "records": [{"name": f"{r.name}: {r.data.name}"} for r in shelf.records],
            "colours": ARC_PALETTE,
        }

    def board(self, sent: Any) -> Event:
        """Draw a puzzle with the demonstrations of its task, its text and a note on it."""
        request = validate(PuzzleRequest, sent)
        _, puzzle = self._wanted(request)
        drawn = {"svg": svg_of(asked(puzzle)), "text": _text(puzzle), "note": note_on(puzzle)}
        if request.puzzle.data is None:
            return {**drawn, "label": "", "pairs": []}
        pairs = self._shelf.data[request.puzzle.data].demonstrations(puzzle)
        return {**drawn, "label": label(puzzle), "pairs": [_pair_drawn(pair) for pair in pairs]}

    def example(self, sent: Any) -> Event:
        """Choose a puzzle for a model: from its own test data if possible, else from other data;
        without data make one.
        """
        request = validate(ExampleRequest, sent)
        model = self._model(request.model)
        for number in self._shelf.offered(model)[0]:
            data = self._shelf.data[number]
            if data.known_kind is None:
                continue
            rows = data.rows(known=model.known(data))
            if len(rows):
                row = int(rows[request.seed % len(rows)])
                return {"data": number, "row": row, "text": _text(data.puzzles([row])[0])}
        made = (model.kind or SUDOKU).example(model.size, request.seed)
        if made is None:
            raise ConfigError(
                "no data of this model was found: type a puzzle, or name its data set"
            )
        return {"text": _text(made)}

    def rows(self, sent: Any) -> Event:
        """List a page of puzzles of a data set or of records."""
        request = validate(RowsRequest, sent)
        if request.of == "data":
            shown = data = at(self._shelf.data, request.number, "data set")
            found = data.rows(request.text.lower(), self._model(request.model).known(data))
        else:
            shown = at(self._shelf.records, request.number, "evaluation")
            data, found = shown.data, shown.rows(wrong_only=request.wrong_only)
        rows = found[request.page * _PER_PAGE :][:_PER_PAGE].tolist()
        puzzles = dict(zip(rows, data.puzzles(rows), strict=True))
        return {
            "total": len(found),
            "rows": [
                {"row": row, "words": shown.described(row, one), "svg": draw(asked(one)).svg()}
                for row, one in puzzles.items()
            ],
            "data": self._shelf.data.index(data),
            "per_page": _PER_PAGE,
        }

    def save(self, sent: Any) -> bytes:
        """Return the last solution as a GIF."""
        return self._thinker.saved(validate(SaveRequest, sent).thought)

    def think(self, sent: Any) -> Callable[[Callable[[Event], object]], None]:
        """Return a function that solves a puzzle and reports each event as it happens."""
        request = validate(ThinkRequest, sent)
        return partial(self._thinker.think, *self._wanted(request), request)

    def adapt(self, sent: Any) -> Callable[[Callable[[Event], object]], None]:
        """Return a function that adapts to an ARC task and reports each event as it happens."""
        request = validate(AdaptRequest, sent)
        task = parse_task(
            "task", request.task, "the page", is_evaluation=True, outputs_may_lack=True
        )
        settings = [f"adapt.max_time={max(1, round(60 * request.minutes))}s", "adapt.steps=100000"]
        model = None if request.model is None else self._model(request.model)
        if model is not None:
            if model.kind is not ARC:
                raise ConfigError("this model does not read ARC tasks: choose a new model")
            settings.append(f"checkpoint={quoted_value(str(model.path))}")
        if model is None or model.trained.run.arch.any_canvas:  # Small enough for several.
            settings.append("adapt.models=8")
        return partial(self._adapter.adapt, task.to_json(), settings)

    def inside(self, sent: Any) -> Event:
        """Return what a model does inside while it solves a puzzle."""
        request = validate(InsideRequest, sent)
        return looked_inside(*self._wanted(request), request.steps)

    def influence(self, sent: Any) -> Event:
        """Return which cells listen to which after a step."""
        request = validate(InfluenceRequest, sent)
        asked = (request.steps, request.step, request.of)
        return {"map": listened(*self._wanted(request), *asked)}

    def _model(self, number: int) -> Model:
        return at(self._shelf.models, number, "model")

    def _wanted(self, request: PuzzleRequest) -> tuple[TrainedModel, Puzzle]:
        """Return the model and the puzzle of a request.

        Raises:
            DatasetError: it is not a puzzle, or the model does not read it.
        """
        model, given = self._model(request.model), request.puzzle
        trained, kind = model.trained, model.kind
        if given.data is not None:
            data = at(self._shelf.data, given.data, "data set")
            puzzle = model.as_known(data.puzzles([given.row])[0])
        elif kind and not kind.board(model.size).hint:
            raise DatasetError(f"{kind.name} puzzles cannot be typed: choose one of a data set")
        else:
            try:
                puzzle = parse_puzzle(given.text, kind)
            except ValueError as error:
                raise DatasetError(str(error)) from None
        if kind is not None and puzzle.kind is not kind:
            read = f"the model reads {kind.name} puzzles"
            raise DatasetError(f"this is a {puzzle.kind.name} puzzle; {read}")
        if trained.cells not in (None, puzzle.question.size):
            raise DatasetError(f"{puzzle.question.size} cells; the model reads {trained.cells}")
        return trained, puzzle


def _named(name: str, describe: Callable[[], Event]) -> Event:
    """Return a name with its description, or with the error if that fails."""
    try:
        return {"name": name, **describe()}
    except MISTAKES as error:
        return {"name": name, "error": str(error)}


def _pair_drawn(pair: Puzzle) -> str:
    """Draw input and output of a demonstration."""
    assert pair.target is not None
    board = Board(pair, pair.target)
    given, made = panels_of(board)[:2]
    return draw_panels(board.look, [given, made._replace(title="output")]).svg()


def _text(puzzle: Puzzle) -> str:
    """Return a puzzle as people type it; "" if its kind cannot be typed."""
    size = len(puzzle.question)
    look = puzzle.kind.board(size)
    return look.text(puzzle.tokens.reshape(size, size)) if look.hint else ""
