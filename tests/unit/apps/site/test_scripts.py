"""The scripts of the page "Try it" that need no browser."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset.sudoku.rules import are_valid_solutions, count_plainly, find_conflict, parse_puzzle

SCRIPTS = Path(__file__).resolve().parents[4] / "examples" / "browser"

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node.js")


def run(program: str) -> Any:
    """Run a program, and return the value of its `result`."""
    names = "".join(
        f"import * as {name} from {json.dumps((SCRIPTS / f'{name}.js').as_uri())};\n"
        for name in ("rules", "think")
    )
    text = f"{names}{program}\nconsole.log(JSON.stringify(result));"
    command = ["node", "--input-type=module", "--eval", text]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_solutions_are_counted_as_in_python() -> None:
    """The first two have cells with few digits late: a search by cells alone takes minutes."""
    puzzles = [
        ".....6....59.....82....8....45........3........6..3.54...325..6..................",
        "..............3.85..1.2.......5.7.....4...1...9.......5......73..2.1........4...9",
    ]
    expected: list[int | None] = [2, 1]
    rng = np.random.default_rng(0)
    for text in ("1234341221434321", "164532325416653124241365436251512643"):
        for _ in range(40):
            solution = parse_puzzle(text)
            puzzle = solution * (rng.random(solution.shape) < 0.5)
            puzzle[tuple(rng.integers(len(puzzle), size=2))] = rng.integers(1, 5)  # Maybe wrong.
            if find_conflict(puzzle) is None:
                puzzles.append("".join(map(str, puzzle.ravel())))
                expected.append(count_plainly(puzzle))
    assert set(expected[2:]) == {0, 1, 2}
    found = run(
        f"const puzzles = {json.dumps(puzzles)}.map(rules.parse);"
        "const result = puzzles.map(each => rules.solve(each, 20));"
    )
    assert None not in found
    assert [len(answers) for answers in found] == expected
    for puzzle, answers in zip(puzzles, found, strict=True):
        for answer in answers:
            side = len(parse_puzzle(puzzle))
            assert are_valid_solutions(np.array([answer]), side).all()
            assert all(clue in (".", "0", str(a)) for clue, a in zip(puzzle, answer, strict=True))


def test_a_draw_at_the_end_of_the_sum_takes_the_last_possible_digit() -> None:
    """The sums of the weights are rounded, so none may be above a draw just below 1."""
    left = run("""
        const searched = {strike_below: 0.01, contradiction_above: 0.5, vocab_size: 6};
        const facts = {...searched, guess: "always", guess_temperature: 1};
        const of = (row, times) => ({data: Array(times).fill(row).flat()});
        const outputs = {candidates_logits: of([9, 9, 9, 9, 9, -9], 16), logits: of(0, 96),
            contradiction_logits: of(-9, 1)};
        const session = {inputMetadata: [], run: () => outputs}, draws = [0, 1];
        const steps = think.search({session, facts}, Array(16).fill(0), () => draws.shift());
        const result = (await steps.next()).value.left;
    """)
    assert left == [[3], *[[1, 2, 3]] * 15]
