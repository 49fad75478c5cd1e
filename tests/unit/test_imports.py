"""Who may import whom; and that a configuration is checked before torch is loaded."""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dataset.kinds import KINDS
from models.architectures import ARCHITECTURES
from models.heads.config import AUXILIARY_HEADS
from models.technique import TECHNIQUES

ROOT = Path(__file__).resolve().parents[2]
CORE_PACKAGES = ("runtime", "dataset", "models", "training", "evaluation")
PACKAGES = (*CORE_PACKAGES, "apps")
ENTRY_POINTS = ("pretrain", "evaluate")
OURS = (*PACKAGES, *ENTRY_POINTS, "puzzle_dataset", "scripts", "tests")

# How data sets lie on disk; of these modules each may import only those before it.
ON_DISK = (
    "dataset.dihedral",
    "dataset.format.files",
    "dataset.format.schema",
    "dataset.format.layout",
    "dataset.format.checks",
    "dataset.format.reading",
    "dataset.format.writing",
)

# What a module may import of ours, by its own name or its package's; the first that fits counts.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "runtime": ("runtime",),
    **{name: ("runtime", *ON_DISK[:number]) for number, name in enumerate(ON_DISK)},
    "dataset": ("runtime", "dataset"),
    "puzzle_dataset": ("runtime", *ON_DISK, "dataset.arc.lazy", "dataset.kinds"),
    "models": ("runtime", "models"),
    "training": ("runtime", "training", "models", "puzzle_dataset", "dataset.kinds", *ON_DISK),
    "apps.__init__": (),
    "apps.lattice": ("apps.lattice", "runtime", "models", "dataset", "evaluation")
    + ("puzzle_dataset",),
    "apps": CORE_PACKAGES + ("apps", "puzzle_dataset"),
    "evaluation.job": ("runtime", "evaluation", "models", "dataset", "puzzle_dataset", "training"),
    "evaluation": ("runtime", "evaluation", "models", "dataset", "puzzle_dataset"),
    "pretrain": (*PACKAGES, "puzzle_dataset"),
    "evaluate": (*PACKAGES, "puzzle_dataset"),
}

# Imported without torch, so that mistakes answer at once.
WITHOUT_TORCH = """
import dataset.build_arc_dataset, dataset.build_maze_dataset, dataset.build_sudoku_dataset
import dataset.format.reading, dataset.format.writing, dataset.maze.rules
import evaluate
import evaluation.config, evaluation.evaluators.arc, evaluation.evaluators.maze
import evaluation.evaluators.sudoku, evaluation.metrics, evaluation.table
import models.config, models.heads.confidence.config, models.heads.config, models.metrics
import models.outputs
import pretrain
import puzzle_dataset
import runtime.ahead, runtime.errors, runtime.files, runtime.process, runtime.schema
import runtime.streams, runtime.watch
import training.checkpoint.lock, training.checkpoint.published, training.checkpoint.run_folder
import training.checkpoint.state, training.checkpoint.store, training.checkpoint.trained_model
import training.config.composition, training.config.schema, training.data, training.logs
import training.tracking
import sys
"""
# Of the apps, where they are there.
APPS_WITHOUT_TORCH = """
import apps.reports.listing, apps.reports.writing
import apps.sweeps.folder, apps.sweeps.grid, apps.sweeps.local, apps.sweeps.programs
import apps.sweeps.run, apps.sweeps.table
"""
# The one place of the core that says where further parts are looked for.
LOOKS_FOR_PARTS = "models.architectures"


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts), path
    for name in (*ENTRY_POINTS, "puzzle_dataset"):
        yield name, ROOT / f"{name}.py"


MODULES = dict(modules())


@functools.cache
def imports(path: Path) -> set[str]:
    """What a module imports when it runs, also inside functions."""
    found, tree = set(), ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            # `from models import act` imports models.act.
            module = str(node.module)
            names = {f"{module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else module for name in names}
    return found


@pytest.mark.parametrize("name", MODULES)
def test_no_module_leads_back_to_itself(name: str) -> None:
    """Not even through imports inside functions."""
    found, ahead = set[str](), [name]
    while ahead:
        ahead += (new := (imports(MODULES[ahead.pop()]) & MODULES.keys()) - found)
        found |= new
    assert name not in found


def is_within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("name", MODULES)
def test_modules_import_only_what_they_may(name: str) -> None:
    allowed = next(of for package, of in MAY_IMPORT.items() if is_within(name, (package,)))
    of_ours = {other for other in imports(MODULES[name]) if is_within(other, OURS)}
    assert {other for other in of_ours if not is_within(other, allowed)} == set()


@pytest.mark.parametrize(
    "name", [name for name in MODULES if is_within(name, (*CORE_PACKAGES, "puzzle_dataset"))]
)
def test_the_core_names_no_app_in_a_string_either(name: str) -> None:
    nodes = ast.walk(ast.parse(MODULES[name].read_bytes()))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    named = {text for text in texts if re.match(r"apps\b", str(text))}
    assert named == ({"apps"} if name == LOOKS_FOR_PARTS else set())


# Folders of models that are chosen by name: architectures, heads, biases of attention; techniques.
MODEL_PARTS = tuple(
    str(path.parent.relative_to(ROOT)).replace("/", ".")
    for path in sorted((ROOT / "models").rglob("config.py"))
    if path.parent.name not in ("models", "heads")
) + ("models.techniques",)
# What knows a part all the same: the published format, and the token head for one's own programs.
KNOWS_A_PART = ("training.checkpoint.published", "models.heads.output")


@pytest.mark.parametrize(
    "name", [name for name in MODULES if not is_within(name, (*MODEL_PARTS, *KNOWS_A_PART, "apps"))]
)
def test_the_core_imports_no_part_of_a_model_by_name(name: str) -> None:
    assert len(MODEL_PARTS) > 15
    assert not {other for other in imports(MODULES[name]) if is_within(other, MODEL_PARTS)}


# What loads, runs and measures any model on any puzzles: everything but the parts themselves.
CORE = [
    name
    for name in MODULES
    if is_within(name, ("models", "training", "evaluation", "runtime"))
    and not is_within(name, (*MODEL_PARTS, "evaluation.evaluators"))
] + ["puzzle_dataset", *ENTRY_POINTS]
# Architectures of apps; ours are named by the published format, too.
OF_APPS = [
    name for name in ARCHITECTURES if ARCHITECTURES[name].schema.__module__.startswith("apps.")
]
NAMES_A_KIND = {
    "evaluation.headline": "results on disk have `arc/pass@2`",
    "puzzle_dataset": "a lazy ARC set on disk holds tasks, whose rows are made when they are read",
    "training.checkpoint.conversion": "the published configuration has the evaluator `arc@ARC`",
    "training.config.schema": "the published configuration trains on data/arc by default",
}
HELP_NAMES_A_PART = {
    "evaluation.config": "perturb=init is for random_starts, the section `search` for lattice"
}


def words(text: str) -> set[str]:
    """The names in a text, in small letters."""
    return set(re.findall(r"[a-z0-9]+(?:_[a-z0-9]+)*", text.lower()))


def named_in_code(tree: ast.AST) -> set[str]:
    """What code names: its own names, and the words of its strings but for docstrings."""
    found = set[str]()
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            found |= words(node.value) if isinstance(node.value, str) else set()
        elif isinstance(node, ast.ImportFrom):
            found |= words(str(node.module))
        else:
            own = (getattr(node, key, None) for key in ("id", "attr", "arg", "name"))
            found |= {name.lower() for name in own if isinstance(name, str)}
    return found


@pytest.mark.parametrize("name", CORE)
def test_the_core_names_no_technique_and_no_app(name: str) -> None:
    source = MODULES[name].read_text()
    parts = {*TECHNIQUES, *OF_APPS}
    assert not parts & named_in_code(ast.parse(source))
    assert bool(parts & words(source)) == (name in HELP_NAMES_A_PART)


@pytest.mark.parametrize("name", CORE)
def test_the_core_names_no_optional_head(name: str) -> None:
    found = words(MODULES[name].read_text())
    assert not {f"{head}_{what}" for head in AUXILIARY_HEADS for what in ("head", "logits")} & found


@pytest.mark.parametrize("name", CORE)
def test_the_core_names_no_kind_of_puzzles(name: str) -> None:
    found = named_in_code(ast.parse(MODULES[name].read_bytes()))
    assert bool({*KINDS} & found) == (name in NAMES_A_KIND)


@pytest.mark.parametrize("name", [name for name in MODULES if is_within(name, ("models",))])
def test_models_need_torch_numpy_and_pydantic_alone(name: str) -> None:
    roots = {other.partition(".")[0] for other in imports(MODULES[name])}
    assert roots - sys.stdlib_module_names <= {"runtime", "models", "torch", "numpy", "pydantic"}


@pytest.mark.parametrize(
    "name", [name for name in MODULES if is_within(name, ("dataset", "puzzle_dataset"))]
)
def test_data_need_no_torch(name: str) -> None:
    assert not any(is_within(other, ("torch",)) for other in imports(MODULES[name]))


@pytest.mark.parametrize("name", [name for name in MODULES if name != "runtime.ranks"])
def test_only_one_module_knows_of_collectives(name: str) -> None:
    assert not any(is_within(other, ("torch.distributed",)) for other in imports(MODULES[name]))
    nodes = ast.walk(ast.parse(MODULES[name].read_bytes()))
    attributes = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    assert "torch.distributed" not in attributes


def test_packages_import_nothing() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")]
    assert len(files) >= len(CORE_PACKAGES)
    assert [path.parent.name for path in files if imports(path)] == ["kinds"]


def test_settings_data_and_checkpoints_are_checked_without_torch(run_python: Any) -> None:
    loaded = (
        "heavy = {'torch', 'wandb', 'tensorboard', 'mlflow', 'numba', 'plotly'};"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    apps = APPS_WITHOUT_TORCH if (ROOT / "apps").is_dir() else ""
    finished = run_python("-c", WITHOUT_TORCH + apps + loaded)
    assert (finished.code, finished.out, finished.err) == (0, "[]\n", "")
