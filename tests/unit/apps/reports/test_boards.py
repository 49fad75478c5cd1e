import json
from dataclasses import asdict

import numpy as np
import pytest

from apps.reports import grids
from apps.reports.asking import note_on
from apps.reports.boards import INK, RING, Board, draw, panels_of
from apps.reports.drawing import Rectangle, Words
from apps.reports.terminal import as_text
from dataset.arc.augmentation import augment_grid, format_identifier
from dataset.arc.tasks import encode_canvas
from dataset.kinds import KINDS, KindConfig
from dataset.kinds.arc import ARC
from dataset.kinds.base import BoardLook, Kind, Puzzle, TokenLook, Verdict
from dataset.kinds.colouring import COLOURING
from runtime.registry import Part


class FlagKind(Kind):
    """A kind from a plug-in: flags of 3 x 3 cells in two colours; the solution has only one."""

    name = "flag"

    def vocab_size(self, size: int) -> int:
        return 3

    def to_grid(self, tokens: np.ndarray) -> np.ndarray:
        return tokens.reshape(3, 3).astype(np.int8)

    def board(self, size: int) -> BoardLook:
        pink = TokenLook(1, "pink", "p", "#ff66aa", keys=("p",))
        teal = TokenLook(2, "teal", "t", "#00aaaa", keys=("t",))
        return BoardLook((pink, teal), open=1, hint="p or t")

    def wrong(
        self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None
    ) -> np.ndarray:
        return answer != 2

    def judge(self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None) -> Verdict:
        return Verdict(bool((answer == 2).all()), "a flag")


def test_an_augmented_arc_puzzle_is_drawn_in_its_original_view() -> None:
    colours = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)
    permuted = np.array([0, 3, 1, 2, 9, 8, 7, 6, 5, 4], np.uint8)
    for view in range(8):
        seen = ARC.to_grid(encode_canvas(augment_grid(colours, view, permuted)))
        puzzle = Puzzle(ARC, seen, None, 1, format_identifier("abc", view, permuted))
        question, answer = panels_of(Board(puzzle, seen, seen / 100))
        assert np.array_equal(question.tokens, colours + 2)
        assert np.array_equal(answer.tokens, colours + 2)
        sure = (permuted[colours] + 2.0) / 100
        assert answer.shares == pytest.approx(0.3 + 0.7 * sure)


def test_a_kind_from_a_plug_in_is_drawn_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    flag = FlagKind()
    monkeypatch.setitem(KINDS._parts, "flag", Part(KindConfig, lambda: flag, ""))
    puzzle = flag.parse("ptp\nppp\nttt")
    answer = np.full((3, 3), 2, np.int8)
    answer[0, 0] = 1
    board = Board(puzzle, answer, np.full((3, 3), 0.5))
    lines = as_text(board, colour=False).splitlines()
    assert lines == [" p t p    !p t t", " p p p     t t t", " t t t     t t t"]
    assert as_text(board, colour=True).count("\x1b[48;2;0;170;170") == 4 + 8
    fills = [one.fill for one in draw(board).shapes if isinstance(one, Rectangle)]
    assert (fills.count("#ff66aa"), fills.count("#00aaaa"), fills.count(RING)) == (1, 8, 4)
    cells = [shape for shape in draw(board).shapes if isinstance(shape, Rectangle)]
    assert {round(each.width) for each in cells if each.fill == "#00aaaa"} == {94}  # Of 145.
    # In a report, and as JSON for the viewer.
    html = grids.svg(grids.look_of("flag", 3), answer, "x", marked=board.wrong)
    assert all(f'fill="{colour}"' in html for colour in ("#ff66aa", "#00aaaa", RING))
    facts = json.loads(json.dumps(asdict(board.look)))
    assert [(one["text"], one["fill"], one["keys"]) for one in facts["tokens"]] == [
        ("p", "#ff66aa", ["p"]),
        ("t", "#00aaaa", ["t"]),
    ]
    assert note_on(puzzle) == ""
    assert board.look.text(puzzle.tokens.reshape(3, 3)) == "ptp\nppp\nttt"


@pytest.mark.parametrize("kind", [KINDS.load(name) for name in KINDS])
def test_every_kind_parses_the_text_that_its_look_writes(kind: Kind) -> None:
    rows = {"kenken": 12, "sudoku_16": 16}.get(kind.key, 9)
    look = kind.board(rows)
    assert len({one.token for one in look.tokens}) == len(look.tokens)
    assert max(one.token for one in look.tokens) == kind.vocab_size(rows) - 1
    if look.hint:
        puzzle = kind.example(rows, 0)
        assert puzzle is not None
        typed = look.text(puzzle.tokens.reshape(rows, rows))
        assert np.array_equal(kind.parse(typed).question, puzzle.question)
        assert all(one.keys for one in look.tokens if not one.drawn)
        assert look.open in {each.token for each in look.tokens}
        empty = np.array(look.empty or [look.open] * rows**2)
        assert not (puzzle.tokens == look.open)[empty != look.open].any()
        if kind.key in ("futoshiki", "colouring", "latin_square"):
            assert (
                kind.parse(look.text(empty.reshape(rows, rows))).tokens.tolist() == empty.tolist()
            )


def test_letters_can_be_read_on_all_cells() -> None:
    graph = COLOURING.parse("A#\n#?")
    answer = graph.question.copy()
    answer[1, 1] = 3
    text = as_text(Board(graph, answer), colour=True)
    assert "\x1b[48;2;255;65;54;97mA \x1b[0m" in text
    assert "\x1b[48;2;0;116;217;97mB \x1b[0m" in text
    clash = as_text(Board(graph, np.where(answer == 3, 2, answer)), colour=True)
    assert "\x1b[43;30m>A\x1b[0m" in clash
    drawn = draw(Board(graph, graph.question, marks=False))
    letters = {shape.text: shape.fill for shape in drawn.shapes if isinstance(shape, Words)}
    assert letters == {"A": RING, "?": INK}
