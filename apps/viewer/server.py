"""The viewer's server: a page, and answers to what it asks. It listens on the loopback address.

Only a page of its own may ask: requests for a host that is not this machine (whose name may lead
here) or from another site's page are refused. What it names are numbers of what was found, never
paths.
"""

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.reports.asking import note_on
from apps.reports.boards import Board, asked, draw, draw_panels, panels_of
from apps.viewer.shelf import MISTAKES, Filter, Model, Shelf, at, label
from apps.viewer.thinking import Asked, Event, Thinker, svg_of
from dataset.arc.tasks import Task, encode_canvas, parse_task
from dataset.kinds.arc import ARC, arc_puzzles
from dataset.kinds.base import Puzzle
from dataset.kinds.sudoku import SUDOKU
from evaluation.puzzles import parse_puzzle
from runtime.errors import ConfigError, DatasetError
from runtime.schema import CountOrZero, Schema, StrictBool
from runtime.text import shown
from training.config.explain import validate

_PAGE = Path(__file__).parent / "page"
_FILES = {"": "text/html", "viewer.css": "text/css"}
_FILES |= dict.fromkeys(("viewer.js", "common.js", "editor.js", "player.js"), "text/javascript")
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


class Typed(Schema):
    """A puzzle that was typed, drawn or loaded; or (data, row) one of a data set."""

    text: str | None = Field(None, max_length=200_000)
    task: dict[str, Any] | None = None
    task_name: str = Field("", max_length=200)
    test_input: CountOrZero = 0
    data: CountOrZero | None = None
    row: CountOrZero | None = None


class PuzzleRequest(Schema):
    model: CountOrZero
    puzzle: Typed


class ThinkRequest(PuzzleRequest, Asked):
    """A puzzle that a model is to think about, and how."""


class ExampleRequest(Schema):
    """A puzzle that a model reads: one of its data, or a new one."""

    model: CountOrZero
    seed: CountOrZero = Field(0, lt=2**32)


class SaveRequest(Schema):
    thought: CountOrZero


class RowsRequest(Schema):
    """Rows of a data set, or of an evaluation's records, that a model can be asked about."""

    model: CountOrZero
    of: Literal["data", "records"]
    number: CountOrZero
    text: str = Field("", max_length=200)
    bounds: dict[str, tuple[float, float]] = {}
    wrong_only: StrictBool = True
    page: CountOrZero = 0


class _Guard:
    """Refuses requests for other hosts and of other sites' pages, and bodies that are too large."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        if scope["type"] != "http":
            return
        if refusal := _refusal(scope["method"], Headers(scope=scope)):
            refused = _said(*refusal)
            refused.headers["Connection"] = "close"  # What follows of the request is not read.
            return await refused(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _refusal(method: str, headers: Headers) -> tuple[str, int] | None:
    host, length = headers.get("host", ""), headers.get("content-length", "")
    kind, is_post = headers.get("content-type", "").split(";")[0].strip(), method == "POST"
    is_elsewhere = headers.get("origin", f"http://{host}") != f"http://{host}"
    is_elsewhere |= headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    is_told = length.isascii() and length.isdecimal()
    is_large = is_told and (len(length) > 20 or int(length) > _MOST_BYTES)
    asked_here = (
        f"this page is for http://localhost:PORT, not for {shown(host)}; from another machine: "
        "ssh -L PORT:localhost:PORT, and open that address there"
    )
    refusals = (
        (not _THIS_MACHINE.fullmatch(host), asked_here, 403),
        (is_elsewhere, "another site's page may not ask here", 403),
        (method not in ("GET", "POST"), f"{shown(method)} is not accepted; GET and POST are", 405),
        ("upgrade" in headers, "this server speaks plain HTTP only", 400),
        ("transfer-encoding" in headers, "the length must be told, not sent in chunks", 411),
        (is_post and kind != "application/json", "accepted: application/json", 415),
        (is_post and not is_told, "the length of what is sent must be told", 411),
        (is_post and is_large, f"more than {_MOST_BYTES:,} bytes", 413),
    )
    return next(((reason, status) for is_so, reason, status in refusals if is_so), None)


def build_app(find: Callable[[], Shelf]) -> Starlette:
    """Return the server's application for what `find` finds: it is asked each time a page is
    opened.
    """
    desk = _Desk(find)
    routes = [Route(f"/{name}", _file(name)) for name in _FILES]
    for answer in (desk.found, desk.board, desk.example, desk.rows, desk.save, desk.think):
        routes.append(Route(f"/api/{answer.__name__}", _answering(answer), methods=["POST"]))
    guard = Middleware(_Guard)  # pyright: ignore[reportArgumentType]
    errors: Any = {HTTPException: _http_error, Exception: _failed}
    return Starlette(routes=routes, middleware=[guard], exception_handlers=errors)


def _said(reason: str, status: int) -> JSONResponse:
    return JSONResponse({"error": reason}, status)


def _http_error(_: Request, error: HTTPException) -> Response:
    return _said(error.detail, error.status_code)


def _failed(_: Request, error: Exception) -> Response:
    return _said(f"the viewer failed: {type(error).__name__}: {error}", 500)


@cache
def _content(name: str) -> bytes:
    return (_PAGE / (name or "index.html")).read_bytes()


def _file(name: str) -> Callable[[Request], Response]:
    return lambda _: Response(_content(name), media_type=_FILES[name])


def _answering(answer: Callable[[Any], Any]) -> Callable[[Request], Awaitable[Response]]:
    """Return what answers a request, with JSON where `answer` makes no response of its own;
    mistakes with the status 400 and a sentence.
    """

    async def respond(request: Request) -> Response:
        try:
            answered = await run_in_threadpool(answer, await _body(request))
        except MISTAKES as error:
            return _said(str(error), 400)
        return answered if isinstance(answered, Response) else JSONResponse(answered)

    return respond


async def _body(request: Request) -> Any:
    try:
        sent = json.loads(await request.body())
    except ClientDisconnect:
        raise ConfigError("the request ended before all of it was here") from None
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
        shelf = self._shelf = self._shelf.with_more(self._find())
        return {
            "models": [_told(model.name, lambda m=model: m.told(shelf)) for model in shelf.models],
            "data": [_told(data.name, lambda d=data: {"kind": d.kind.name}) for data in shelf.data],
            "records": [{"name": f"{r.name}: {r.data.name}"} for r in shelf.records],
        }

    def board(self, sent: Any) -> Event:
        """Draw a puzzle, with the demonstrations of its task, and say what is known of it."""
        request = validate(PuzzleRequest, sent)
        typed, puzzle = request.puzzle, self._puzzle(request.puzzle, self._model(request.model))
        pairs = list[Puzzle]()
        if typed.data is not None:
            pairs = self._shelf.data[typed.data].demonstrations(puzzle)
        elif typed.task is not None:
            pairs = _demonstrations(_task(typed))
        called = puzzle.name if typed.data is None else label(puzzle)
        told = {"svg": svg_of(asked(puzzle)), "text": _text(puzzle), "note": note_on(puzzle)}
        return {**told, "label": called, "pairs": [_pair_drawn(pair) for pair in pairs]}

    def example(self, sent: Any) -> Event:
        """Choose a puzzle of a model's data, its own and what it was not trained on first; without
        data make one.
        """
        request = validate(ExampleRequest, sent)
        model = self._model(request.model)
        for number in self._shelf.offered(model)[0]:
            data = self._shelf.data[number]
            rows = data.rows(Filter(), model.known(data))
            if len(rows):
                row = int(rows[request.seed % len(rows)])
                return {"data": number, "row": row, "text": _text(data.puzzles([row])[0])}
        made = (model.kind or SUDOKU).example(model.size, request.seed)
        if made is None:
            raise ConfigError("no data of this model was found: load or type a puzzle")
        return {"text": _text(made)}

    def rows(self, sent: Any) -> Event:
        """List puzzles of a data set or of records, as many as a page takes."""
        request = validate(RowsRequest, sent)
        wanted = Filter(request.text, request.bounds, request.wrong_only)
        here = slice(request.page * _PER_PAGE, (request.page + 1) * _PER_PAGE)
        if request.of == "data":
            shown = data = at(self._shelf.data, request.number, "data set")
            found = data.rows(wanted, self._model(request.model).known(data))
        else:
            shown = at(self._shelf.records, request.number, "evaluation")
            data, found = shown.data, shown.chosen(wanted)
        has_clues = data.look.cells == "written"
        told = {n: v for n, v in shown.figures.items() if len(v) and (n != "clues" or has_clues)}
        rows = found[here].tolist()
        puzzles = dict(zip(rows, data.puzzles(rows), strict=True))
        return {
            "total": len(found),
            "rows": [
                {"row": row, "words": shown.described(row, one), "svg": draw(asked(one)).svg()}
                for row, one in puzzles.items()
            ],
            "bounds": {name: [v.min().item(), v.max().item()] for name, v in told.items()},
            "names": {name: _FIGURES.get(name, name.replace("_", " ")) for name in told},
            "data": self._shelf.data.index(data),
            "per_page": _PER_PAGE,
        }

    def save(self, sent: Any) -> Response:
        """Send a thought as a file."""
        wanted = validate(SaveRequest, sent)
        name = {"Content-Disposition": "attachment; filename=thinking.gif"}
        content = self._thinker.saved(wanted.thought)
        return Response(content, headers=name, media_type="image/gif")

    def think(self, sent: Any) -> Response:
        """Stream what a model does, a line of JSON for each event."""
        wanted = validate(ThinkRequest, sent)
        model = self._model(wanted.model)
        puzzle = self._puzzle(wanted.puzzle, model)
        lines = _lines(self._thinker.events(model.trained, puzzle, wanted))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    def _model(self, number: int) -> Model:
        return at(self._shelf.models, number, "model")

    def _puzzle(self, typed: Typed, model: Model) -> Puzzle:
        """Return the puzzle that was sent.

        Raises:
            DatasetError: it is none, or not one that the model reads.
        """
        kind, facts = model.kind, model.trained.facts
        if typed.data is not None:
            data = at(self._shelf.data, typed.data, "data set")
            puzzle = model.as_known(data.puzzles([typed.row or 0])[0])
        elif typed.task is not None:
            puzzles = arc_puzzles(_task(typed), model.identifiers)
            puzzle = at(puzzles, typed.test_input, "test input")
        elif kind and not kind.board(model.size).hint:
            told = "are loaded from a file, or chosen from a data set"
            raise DatasetError(f"{kind.name} puzzles {told}")
        else:
            try:
                puzzle = parse_puzzle(typed.text or "", kind)
            except ValueError as error:
                raise DatasetError(str(error)) from None
        if kind is not None and puzzle.kind is not kind:
            reads = f"the model reads {kind.name} puzzles"
            raise DatasetError(f"a {puzzle.kind.name} puzzle, and {reads}")
        if facts is not None and puzzle.question.size != facts.seq_len:
            raise DatasetError(f"{puzzle.question.size} cells; the model reads {facts.seq_len}")
        return puzzle


def _told(name: str, tell: Callable[[], Event]) -> Event:
    """Return what is told of a thing by name; of a broken one the reason."""
    try:
        return {"name": name, **tell()}
    except MISTAKES as error:
        return {"name": name, "error": str(error)}


def _task(typed: Typed) -> Task:
    name = typed.task_name or "task"
    return parse_task(name, typed.task, "the task", is_evaluation=True, outputs_may_lack=True)


def _demonstrations(task: Task) -> list[Puzzle]:
    """Return the pairs of a task that show what it asks for."""
    pairs = [(given, made) for given, made in task.train if made is not None]
    canvases = [[ARC.to_grid(encode_canvas(grid)) for grid in pair] for pair in pairs]
    return [Puzzle(ARC, given, made) for given, made in canvases]


def _pair_drawn(pair: Puzzle) -> str:
    """Draw the input and the output of a demonstration."""
    assert pair.target is not None
    board = Board(pair, pair.target)
    given, made = panels_of(board)[:2]
    return draw_panels(board.look, [given, made._replace(title="output")]).svg()


def _text(puzzle: Puzzle) -> str:
    """Return a puzzle as people type it; "" where they do not."""
    size = len(puzzle.question)
    look = puzzle.kind.board(size)
    return look.text(puzzle.tokens.reshape(size, size)) if look.hint else ""


_FIGURES = {
    "accuracy": "share of the cells right",
    "exact_accuracy": "all right (1) or not (0)",
    "q_halt": "how sure it was",
    "steps": "ACT steps",
    "path_length": "moves of the path",
    "grid_cells": "cells of the grid",
}


def _lines(events: Iterator[Event]) -> Iterator[bytes]:
    for event in events:
        yield json.dumps(event).encode() + b"\n"
