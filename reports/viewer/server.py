"""The viewer's server: a page, and answers to what it asks. It listens on the loopback address.

Only a page of its own may ask: requests for another host (whose name may lead here) or from another
site's page are refused. What it names are numbers of what was found at the start, never paths.
"""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dataset.arc.tasks import parse_task
from dataset.maze import rules as maze
from evaluation.puzzles import (
    ARC,
    MAZE,
    SUDOKU,
    Kind,
    Puzzle,
    arc_puzzles,
    parse_maze,
    parse_sudoku,
)
from reports.asking import note_on
from reports.boards import asked as asked_board
from reports.boards import draw
from reports.viewer.shelf import MISTAKES, Data, Filter, Model, Shelf
from reports.viewer.thinking import Asked, Event, Thinker
from runtime.errors import ConfigError, DatasetError
from runtime.schema import CountOrZero, Schema, StrictBool
from runtime.text import shown
from training.config.explain import validate

_PAGE = Path(__file__).parent / "page"
_FILES = {"": "text/html", "viewer.css": "text/css", "viewer.js": "text/javascript"}
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


class Typed(Schema):
    """A puzzle that was typed, drawn or loaded; or (data, row) one of a data set."""

    text: str | None = Field(None, max_length=200_000)
    task: dict[str, Any] | None = None
    task_name: str = Field("", max_length=200)
    test_input: CountOrZero = 0
    data: CountOrZero | None = None
    row: CountOrZero | None = None


class ThinkRequest(Asked):
    model: CountOrZero
    puzzle: Typed


class PuzzleRequest(Schema):
    model: CountOrZero
    puzzle: Typed


class RowsRequest(Schema):
    """Rows of a data set, or of an evaluation's records."""

    of: Literal["data", "records"]
    number: CountOrZero
    text: str = Field("", max_length=200)
    bounds: dict[str, tuple[float, float]] = {}
    wrong_only: StrictBool = True
    page: CountOrZero = 0


class _Guard:
    """Refuses requests for other hosts and of other sites' pages, and bodies that are too large."""

    def __init__(self, app: ASGIApp, hosts: set[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        if refusal := self._refusal(scope["method"], headers):
            status, reason = refusal
            return await _said(reason, status)(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(n.lower().encode(), v.encode()) for n, v in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: dict[str, str]) -> tuple[int, str] | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self._hosts:
            return (
                403,
                f"this page is for {' and '.join(sorted(self._hosts))}, not for another host",
            )
        if origin is not None and origin.removeprefix("http://") not in self._hosts:
            return 403, "another site's page may not ask here"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "another site's page may not ask here"
        if method not in ("GET", "POST"):
            return 405, f"{shown(method)} is not accepted; GET and POST are"
        if method == "POST":
            if headers.get("content-type", "").split(";")[0].strip() != "application/json":
                return 415, "accepted: application/json"
            length = headers.get("content-length", "")
            if not (length.isascii() and length.isdecimal()):
                return 411, "the length of what is sent must be told"
            if len(length) > 20 or int(length) > _MOST_BYTES:
                return 413, f"more than {_MOST_BYTES:,} bytes"
        return None


def build_app(find: Callable[[], Shelf], port: int) -> Starlette:
    """Return the server's application, to be served on a port, for what `find` finds: it is asked
    each time a page is opened.
    """
    desk = _Desk(find)
    routes = [Route(f"/{name}", _file(name)) for name in _FILES]
    for name, answer in (
        ("found", desk.found),
        ("board", desk.board),
        ("maze", desk.new_maze),
        ("rows", desk.rows),
    ):
        routes.append(Route(f"/api/{name}", _json(answer), methods=["POST"]))
    routes.append(Route("/api/think", desk.think, methods=["POST"]))
    hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
    guard = Middleware(_Guard, hosts=hosts)  # pyright: ignore[reportArgumentType]
    errors: Any = {HTTPException: _http_error, Exception: _failed}
    return Starlette(routes=routes, middleware=[guard], exception_handlers=errors)


def _said(reason: str, status: int) -> JSONResponse:
    return JSONResponse({"error": reason}, status)


def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _said(error.detail, error.status_code)


def _failed(_: Request, error: Exception) -> Response:
    return _said(f"the viewer failed: {type(error).__name__}: {error}", 500)


@cache
def _content(name: str) -> bytes:
    return (_PAGE / (name or "index.html")).read_bytes()


def _file(name: str) -> Callable[[Request], Response]:
    return lambda _: Response(_content(name), media_type=_FILES[name])


def _json(answer: Callable[[Any], Any]) -> Callable[[Request], Any]:
    """Return what answers a request with JSON; mistakes with the status 400 and a sentence."""

    async def respond(request: Request) -> Response:
        try:
            return JSONResponse(await run_in_threadpool(answer, await _body(request)))
        except MISTAKES as error:
            return _said(str(error), 400)

    return respond


async def _body(request: Request) -> Any:
    try:
        sent = json.loads(await request.body())
    except (ValueError, RecursionError):
        sent = None
    if not isinstance(sent, dict):
        raise ConfigError("what was sent is not a JSON object")
    return sent


class _Desk:
    """Answers what the page asks; each method takes what was sent."""

    def __init__(self, find: Callable[[], Shelf]) -> None:
        self._find, self._thinker = find, Thinker()
        self._shelf = find()

    def found(self, _: Any) -> Event:
        """List the models, data sets and records that there are by now."""
        self._shelf = self._shelf.with_more(self._find())
        data = [self._data_said(each) for each in self._shelf.data]
        records = [{"name": each.name} for each in self._shelf.records]
        return {
            "models": [_model_said(m) for m in self._shelf.models],
            "data": data,
            "records": records,
        }

    def _data_said(self, data: Data) -> Event:
        try:
            return {"name": data.name, "kind": data.kind.name, "count": data.num_puzzles}
        except MISTAKES as error:
            return {"name": data.name, "error": str(error)}

    def board(self, sent: Any) -> Event:
        """Draw a puzzle, and say what a plain program knows of it."""
        asked = validate(PuzzleRequest, sent)
        puzzle = self._puzzle(asked.puzzle, self._model(asked.model))
        text = ""
        if puzzle.kind is SUDOKU:
            text = "".join(str(digit or ".") for digit in puzzle.question.flat)
        if puzzle.kind is MAZE:
            text = "\n".join(maze.tokens_to_text(row) for row in puzzle.question)
        svg, note = draw(asked_board(puzzle)).svg(), note_on(puzzle)
        return {"svg": svg, "text": text, "name": puzzle.name, "note": note}

    def new_maze(self, sent: Any) -> Event:
        """Make a maze that can be solved, of the size that a model reads."""
        from dataset.maze.generator import generate_mazes
        from runtime.streams import Stream

        asked = validate(_MazeRequest, sent)
        model = self._model(asked.model)
        facts = model.trained.facts
        if model.kind is not MAZE or facts is None:
            raise ConfigError("this model reads no mazes")
        size = maze.grid_size(facts.seq_len)
        made = generate_mazes(
            1, seed=asked.seed, stream=Stream.NEW_TEST, size=size, min_length=size, taken=set()
        )
        grid = made.mazes[0].reshape(size, size)
        return {"text": "\n".join(maze.tokens_to_text(row) for row in grid)}

    def rows(self, sent: Any) -> Event:
        """List puzzles of a data set or of records, as many as a page takes."""
        asked = validate(RowsRequest, sent)
        wanted = Filter(asked.text, asked.bounds)
        first = asked.page * _PER_PAGE
        if asked.of == "data":
            data = _at(self._shelf.data, asked.number, "data set")
            rows = data.rows(wanted)
            shown_rows = rows[first : first + _PER_PAGE].tolist()
            some = [{"row": row, "words": data.described(row)} for row in shown_rows]
            figures = data.figures.items()
            bounds = {name: [int(v.min()), int(v.max())] for name, v in figures if len(v)}
            number = asked.number
        else:
            records = _at(self._shelf.records, asked.number, "evaluation")
            rows = records.chosen(wanted, wrong_only=asked.wrong_only)
            some = [
                {"row": line.row, "words": _figures_said(line.figures, line.row)}
                for line in rows[first : first + _PER_PAGE]
            ]
            names = dict.fromkeys(name for line in records.lines for name in line.figures)
            bounds = {}
            for name in names:
                values = [line.figures[name] for line in records.lines if name in line.figures]
                bounds[name] = [min(values), max(values)]
            number = self._shelf.data.index(records.data)
        return {
            "total": len(rows),
            "rows": some,
            "bounds": bounds,
            "data": number,
            "per_page": _PER_PAGE,
        }

    async def think(self, request: Request) -> Response:
        """Stream what a model does, a line of JSON for each event."""
        try:
            asked = validate(ThinkRequest, await _body(request))
            model = self._model(asked.model)
            puzzle = await run_in_threadpool(self._puzzle, asked.puzzle, model)
        except MISTAKES as error:
            return _said(str(error), 400)
        events = self._thinker.events(model.trained, puzzle, asked)
        return StreamingResponse(_lines(events), media_type="application/x-ndjson")

    def _model(self, number: int) -> Model:
        return _at(self._shelf.models, number, "model")

    def _puzzle(self, typed: Typed, model: Model) -> Puzzle:
        """Return the puzzle that was sent.

        Raises:
            DatasetError: it is none, or not one that the model reads.
        """
        kind = model.kind
        if typed.data is not None:
            data = _at(self._shelf.data, typed.data, "data set")
            puzzle = model.as_known(data.puzzle(typed.row or 0))
        elif typed.task is not None:
            name = typed.task_name or "task"
            task = parse_task(
                name, typed.task, "the task", is_evaluation=True, outputs_may_lack=True
            )
            puzzles = arc_puzzles(task, model.identifiers)
            puzzle = _at(puzzles, typed.test_input, "test input")
        else:
            puzzle = _parsed(typed.text or "", kind)
        facts = model.trained.facts
        if kind is not None and puzzle.kind is not kind:
            raise DatasetError(
                f"a {puzzle.kind.name} puzzle, and the model reads {kind.name} puzzles"
            )
        if facts is not None and puzzle.question.size != facts.seq_len:
            raise DatasetError(f"{puzzle.question.size} cells; the model reads {facts.seq_len}")
        return puzzle


class _MazeRequest(Schema):
    model: CountOrZero
    seed: CountOrZero = Field(0, lt=2**32)


def _parsed(text: str, kind: Kind | None) -> Puzzle:
    if kind is ARC:
        raise DatasetError("an ARC task is loaded from a file, or chosen from a data set")
    try:
        return parse_maze(text) if kind is MAZE else parse_sudoku(text)
    except ValueError as error:
        raise DatasetError(str(error)) from None


def _model_said(model: Model) -> Event:
    try:
        trained, kind = model.trained, model.kind
        facts = trained.facts
        return {
            "name": model.name,
            "kind": kind.name if kind else SUDOKU.name,
            "size": maze.grid_size(facts.seq_len) if facts else 9,
            "train_step": trained.step,
            "steps": getattr(trained.run.arch, "halt_max_steps", None),
            "searches": trained.run.arch.name == "lattice",
        }
    except MISTAKES as error:
        return {"name": model.name, "error": str(error)}


def _figures_said(figures: dict[str, float], row: int) -> str:
    said = ", ".join(f"{name} {value:g}" for name, value in figures.items())
    return f"puzzle {row + 1:,}, {said}"


def _at(found: Any, number: int, what: str) -> Any:
    if number >= len(found):
        raise ConfigError(f"there is no {what} with number {number}")
    return found[number]


def _lines(events: Iterator[Event]) -> Iterator[bytes]:
    for event in events:
        yield json.dumps(event).encode() + b"\n"
