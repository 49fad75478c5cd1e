"""The viewer's server: a page, and answers to what it asks. It listens on the loopback address.

Only a page of its own may ask: requests for a host that is not this machine (whose name may lead
here) or from another site's page are refused. What it names are numbers of what was found, never
paths.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.reports.asking import note_on
from apps.reports.boards import Board, asked, draw, draw_panels, panels_of
from apps.reports.html import percent
from apps.viewer.shelf import MISTAKES, Data, Filter, Model, Record, Records, Shelf
from apps.viewer.thinking import Asked, Event, Thinker, svg_of
from dataset.arc.tasks import Task, encode_canvas, parse_task
from dataset.kinds.arc import ARC, arc_puzzles
from dataset.kinds.base import Kind, Puzzle
from dataset.kinds.board import BoardLook
from dataset.kinds.sudoku import SUDOKU
from evaluation.puzzles import parse_puzzle
from runtime.errors import ConfigError, DatasetError
from runtime.schema import CountOrZero, Schema, StrictBool
from runtime.text import many, shown
from training.config.explain import validate

_PAGE = Path(__file__).parent / "page"
_FILES = {"": "text/html", "viewer.css": "text/css"}
_FILES |= dict.fromkeys(("viewer.js", "common.js", "editor.js", "player.js"), "text/javascript")
_TYPES = {"gif": "image/gif", "html": "text/html"}
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


class ThinkRequest(Asked):
    model: CountOrZero
    puzzle: Typed


class PuzzleRequest(Schema):
    model: CountOrZero
    puzzle: Typed


class ExampleRequest(Schema):
    """A puzzle that a model reads: one of its data, or a new one."""

    model: CountOrZero
    seed: CountOrZero = Field(0, lt=2**32)


class SaveRequest(Schema):
    thought: CountOrZero
    form: Literal["gif", "html"]


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
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        if refusal := self._refusal(scope["method"], headers):
            status, reason = refusal
            refused = _said(reason, status)
            refused.headers["Connection"] = "close"  # What follows of the request is not read.
            return await refused(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(n.lower().encode(), v.encode()) for n, v in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: dict[str, str]) -> tuple[int, str] | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not _THIS_MACHINE.fullmatch(host):
            return 403, (
                f"this page is for http://localhost:PORT, not for {shown(host)}; from another "
                "machine: ssh -L PORT:localhost:PORT, and open that address there"
            )
        if origin is not None and origin != f"http://{host}":
            return 403, "another site's page may not ask here"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "another site's page may not ask here"
        if method not in ("GET", "POST"):
            return 405, f"{shown(method)} is not accepted; GET and POST are"
        if "upgrade" in headers:
            return 400, "this server speaks plain HTTP only"
        if "transfer-encoding" in headers:
            return 411, "the length of what is sent must be told, not sent in chunks"
        if method == "POST":
            if headers.get("content-type", "").split(";")[0].strip() != "application/json":
                return 415, "accepted: application/json"
            length = headers.get("content-length", "")
            if not (length.isascii() and length.isdecimal()):
                return 411, "the length of what is sent must be told"
            if len(length) > 20 or int(length) > _MOST_BYTES:
                return 413, f"more than {_MOST_BYTES:,} bytes"
        return None


def build_app(find: Callable[[], Shelf]) -> Starlette:
    """Return the server's application for what `find` finds: it is asked each time a page is
    opened.
    """
    desk = _Desk(find)
    routes = [Route(f"/{name}", _file(name)) for name in _FILES]
    for name, answer in (
        ("found", desk.found),
        ("board", desk.board),
        ("example", desk.example),
        ("rows", desk.rows),
    ):
        routes.append(Route(f"/api/{name}", _json(answer), methods=["POST"]))
    routes.append(Route("/api/think", desk.think, methods=["POST"]))
    routes.append(Route("/api/save", desk.save, methods=["POST"]))
    guard = Middleware(_Guard)  # pyright: ignore[reportArgumentType]
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
        self._shelf = self._shelf.with_more(self._find())
        data = [self._data_said(each) for each in self._shelf.data]
        records = [{"name": f"{r.name}: {r.data.name}"} for r in self._shelf.records]
        return {
            "models": [_model_said(model, self._shelf) for model in self._shelf.models],
            "data": data,
            "records": records,
        }

    def _data_said(self, data: Data) -> Event:
        try:
            return {"name": data.name, "kind": data.kind.name}
        except MISTAKES as error:
            return {"name": data.name, "error": str(error)}

    def board(self, sent: Any) -> Event:
        """Draw a puzzle, with the demonstrations of its task, and say what is known of it."""
        request = validate(PuzzleRequest, sent)
        typed, puzzle = request.puzzle, self._puzzle(request.puzzle, self._model(request.model))
        label, pairs = puzzle.name, list[Puzzle]()
        if typed.data is not None:
            data, row = self._shelf.data[typed.data], typed.row or 0
            label, pairs = data.label(row), data.demonstrations(row)
        elif typed.task is not None:
            pairs = _demonstrations(_task(typed))
        told = {"svg": svg_of(asked(puzzle)), "text": _text(puzzle), "note": note_on(puzzle)}
        return {**told, "label": label, "pairs": [_pair_drawn(pair) for pair in pairs]}

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
        wanted = Filter(request.text, request.bounds)
        first = request.page * _PER_PAGE
        here = slice(first, first + _PER_PAGE)
        if request.of == "data":
            data = _at(self._shelf.data, request.number, "data set")
            found = data.rows(wanted, self._model(request.model).known(data))
            rows, figures = found[here].tolist(), data.figures
            words = [data.described(row) for row in rows]
        else:
            records: Records = _at(self._shelf.records, request.number, "evaluation")
            data, found = records.data, records.chosen(wanted, wrong_only=request.wrong_only)
            rows, figures = [line.row for line in found[here]], records.figures
            words = [f"{data.label(line.row)}: {_said_of(line, data.look)}" for line in found[here]]
        has_clues = data.look.cells == "written"
        told = (n for n, v in figures.items() if len(v) and (n != "clues" or has_clues))
        bounds = {name: [figures[name].min().item(), figures[name].max().item()] for name in told}
        drawn = [draw(asked(puzzle)).svg() for puzzle in data.puzzles(rows)]
        return {
            "total": len(found),
            "rows": [
                {"row": row, "words": said, "svg": svg}
                for row, said, svg in zip(rows, words, drawn, strict=True)
            ],
            "bounds": bounds,
            "names": {name: _FIGURES.get(name, name.replace("_", " ")) for name in bounds},
            "data": self._shelf.data.index(data),
            "per_page": _PER_PAGE,
        }

    async def save(self, request: Request) -> Response:
        """Send a thought as a file."""
        try:
            wanted = validate(SaveRequest, await _body(request))
            saved = self._thinker.saved
            content = await run_in_threadpool(saved, wanted.thought, wanted.form)
        except MISTAKES as error:
            return _said(str(error), 400)
        name = {"Content-Disposition": f"attachment; filename=thinking.{wanted.form}"}
        return Response(content, headers=name, media_type=_TYPES[wanted.form])

    async def think(self, request: Request) -> Response:
        """Stream what a model does, a line of JSON for each event."""
        try:
            wanted = validate(ThinkRequest, await _body(request))
            model = self._model(wanted.model)
            puzzle = await run_in_threadpool(self._puzzle, wanted.puzzle, model)
        except MISTAKES as error:
            return _said(str(error), 400)
        events = self._thinker.events(model.trained, puzzle, wanted)
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
            puzzle = model.as_known(data.puzzles([typed.row or 0])[0])
        elif typed.task is not None:
            puzzles = arc_puzzles(_task(typed), model.identifiers)
            puzzle = _at(puzzles, typed.test_input, "test input")
        else:
            puzzle = _parsed(typed.text or "", kind, model.size)
        facts = model.trained.facts
        if kind is not None and puzzle.kind is not kind:
            raise DatasetError(
                f"a {puzzle.kind.name} puzzle, and the model reads {kind.name} puzzles"
            )
        if facts is not None and puzzle.question.size != facts.seq_len:
            raise DatasetError(f"{puzzle.question.size} cells; the model reads {facts.seq_len}")
        return puzzle


def _task(typed: Typed) -> Task:
    name = typed.task_name or "task"
    return parse_task(name, typed.task, "the task", is_evaluation=True, outputs_may_lack=True)


def _demonstrations(task: Task) -> list[Puzzle]:
    def canvas(grid: np.ndarray | None) -> np.ndarray:
        assert grid is not None  # A demonstration has both.
        return ARC.to_grid(encode_canvas(grid))

    return [Puzzle(ARC, canvas(given), canvas(made)) for given, made in task.train]


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


def _parsed(text: str, kind: Kind | None, size: int) -> Puzzle:
    if kind and not kind.board(size).hint:
        told = "are loaded from a file, or chosen from a data set"
        raise DatasetError(f"{kind.name} puzzles {told}")
    try:
        return parse_puzzle(text, kind)
    except ValueError as error:
        raise DatasetError(str(error)) from None


def _model_said(model: Model, shelf: Shelf) -> Event:
    try:
        trained, kind = model.trained, model.kind or SUDOKU
        data, records = shelf.offered(model)
        return {
            "data": data,
            "records": records,
            "name": model.name,
            "kind": kind.name,
            "size": model.size,
            "board": asdict(kind.board(model.size)),
            "train_step": trained.step,
            "steps": getattr(trained.run.arch, "halt_max_steps", None),
            "searches": trained.run.arch.searches,
        }
    except MISTAKES as error:
        return {"name": model.name, "error": str(error)}


_FIGURES = {
    "accuracy": "share of the cells right",
    "exact_accuracy": "all right (1) or not (0)",
    "q_halt": "how sure it was",
    "steps": "ACT steps",
    "path_length": "moves of the path",
    "grid_cells": "cells of the grid",
}


def _said_of(line: Record, look: BoardLook) -> str:
    """Say what an evaluation found about a puzzle."""
    figures = line.figures
    said = ["right" if figures["exact_accuracy"] == 1 else "wrong"]
    if "accuracy" in figures:
        said.append(f"{percent(figures['accuracy'])} of the cells right")
    if "q_halt" in figures:
        said.append(f"{percent(figures['q_halt'])} sure")
    if "steps" in figures:
        said.append(many(round(figures["steps"]), "step"))
    if "clues" in figures and look.cells == "written":
        said.append(many(round(figures["clues"]), "clue"))
    return ", ".join(said)


def _at(found: Any, number: int, what: str) -> Any:
    if number >= len(found):
        raise ConfigError(f"there is no {what} with number {number}")
    return found[number]


def _lines(events: Iterator[Event]) -> Iterator[bytes]:
    for event in events:
        yield json.dumps(event).encode() + b"\n"
