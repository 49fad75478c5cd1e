"""The allowed imports between modules, and that settings are checked before torch is loaded."""

import ast
import functools
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from dataset.kinds import KINDS
from models.architectures import ARCHITECTURES
from models.heads.config import AUXILIARY_HEADS
from models.technique import TECHNIQUES

ROOT = Path(__file__).resolve().parents[2]
CORE_PACKAGES = ("runtime", "dataset", "models", "training", "evaluation")
PACKAGES = (*CORE_PACKAGES, "apps", "recursive_reasoning")
ENTRY_POINTS = ("pretrain", "evaluate")
OURS = (*PACKAGES, *ENTRY_POINTS, "puzzle_dataset", "scripts", "tests")

# The modules of the data format. Each may import only the modules before it.
ON_DISK = (
    "dataset.dihedral",
    "dataset.format.files",
    "dataset.format.schema",
    "dataset.format.reading",
    "dataset.format.writing",
)

# The packages of ours that a module may import, by its own or its package's name. First match wins.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "runtime": ("runtime",),
    **{name: ("runtime", *ON_DISK[:number]) for number, name in enumerate(ON_DISK)},
    "dataset": ("runtime", "dataset"),
    "puzzle_dataset": ("runtime", *ON_DISK, "dataset.arc.lazy", "dataset.kinds"),
    "models": ("runtime", "models"),
    "training": ("runtime", "training", "models", "puzzle_dataset", "dataset.kinds", *ON_DISK),
    "apps.__init__": (),
    "apps.dec": ("apps.dec", "runtime", "models"),
    "apps.lattice": ("apps.lattice", "apps.dec", "runtime", "models", "dataset", "evaluation")
    + ("puzzle_dataset",),
    "apps": CORE_PACKAGES + ("apps", "puzzle_dataset"),
    "evaluation.job": ("runtime", "evaluation", "models", "dataset", "puzzle_dataset", "training"),
    "evaluation": ("runtime", "evaluation", "models", "dataset", "puzzle_dataset"),
    "pretrain": (*CORE_PACKAGES, "apps", "puzzle_dataset"),
    "evaluate": (*CORE_PACKAGES, "apps", "puzzle_dataset"),
    "recursive_reasoning": (*PACKAGES, *ENTRY_POINTS, "puzzle_dataset", "scripts"),
}

# Imported without torch, so that mistakes are reported at once.
WITHOUT_TORCH = """
dataset.build_arc_dataset dataset.build_maze_dataset dataset.build_puzzle_dataset
dataset.build_sudoku_dataset
dataset.format.reading dataset.format.writing dataset.maze.rules evaluate
evaluation.config evaluation.evaluators.arc
evaluation.evaluators.rules evaluation.metrics evaluation.table
models.config models.heads.schemas models.heads.config models.metrics
pretrain puzzle_dataset runtime.errors runtime.files runtime.process runtime.schema
runtime.streams runtime.watch
training.checkpoint.lock training.checkpoint.published training.checkpoint.run_folder
training.checkpoint.store training.checkpoint.trained_model
 training.config.composition training.config.schema training.data training.logs
 training.optim.schedules training.stop_signals training.tracking
 apps.bench.plan apps.reports.runs apps.reports.score_arc apps.reports.writing
apps.sweeps.folder apps.sweeps.machine apps.sweeps.programs apps.sweeps.run apps.sweeps.table
"""
# The only place in the core that lists where optional parts are found.
LOOKS_FOR_PARTS = "models.architectures"

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
} | {name: ROOT / f"{name}.py" for name in (*ENTRY_POINTS, "puzzle_dataset")}


@functools.cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_bytes())


@functools.cache
def imports(name: str) -> frozenset[str]:
    """Return the imports of a module, also those inside functions."""
    found, left_out = set[str](), set[ast.AST]()
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            left_out.update(node.body)
        elif node in left_out:
            continue
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            # `from models import act` imports models.act.
            module = str(node.module)
            names = {f"{module}.{alias.name}" for alias in node.names}
            found |= {one if one in MODULES else module for one in names}
    return frozenset(found)


def is_within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def within(*packages: str) -> list[str]:
    return [name for name in MODULES if is_within(name, packages)]


def test_no_module_leads_back_to_itself() -> None:
    """Imports inside functions count too."""
    for name in MODULES:
        found, ahead = set[str](), [name]
        while ahead:
            ahead += (new := (imports(ahead.pop()) & MODULES.keys()) - found)
            found |= new
        assert name not in found


def test_modules_import_only_what_they_may() -> None:
    for name in MODULES:
        allowed = next(of for package, of in MAY_IMPORT.items() if is_within(name, (package,)))
        of_ours = {other for other in imports(name) if is_within(other, OURS)}
        assert {other for other in of_ours if not is_within(other, allowed)} == set(), name


def test_modules_import_only_allowed_packages() -> None:
    for name in MODULES:
        roots = {other.partition(".")[0] for other in imports(name)} - sys.stdlib_module_names
        if is_within(name, ("models",)):
            assert roots <= {"runtime", "models", "torch", "numpy", "pydantic"}, name
        if is_within(name, ("dataset", "puzzle_dataset")):
            assert "torch" not in roots, name
        if name != "runtime.ranks":
            assert not any(is_within(other, ("torch.distributed",)) for other in imports(name)), (
                name
            )
            assert "torch.distributed." not in MODULES[name].read_text(), name


def test_the_core_names_no_app_in_a_string() -> None:
    for name in within(*CORE_PACKAGES, "puzzle_dataset"):
        nodes = ast.walk(tree_of(name))
        texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
        named = {text for text in texts if re.match(r"apps\b", str(text))}
        assert named == ({"apps"} if name == LOOKS_FOR_PARTS else set()), name


# Parts that are chosen by name: architectures and attention biases (folders), heads, techniques.
MODEL_PARTS = tuple(
    str(path.parent.relative_to(ROOT)).replace("/", ".")
    for path in sorted((ROOT / "models").rglob("config.py"))
    if path.parent.name not in ("models", "heads")
)
MODEL_PARTS += tuple(
    f"models.heads.{path.stem}"
    for path in sorted((ROOT / "models" / "heads").glob("[a-z]*.py"))
    if path.stem not in ("auxiliary", "base", "build", "config", "q", "schemas")
)
MODEL_PARTS += ("models.techniques",)
# The published format may name parts.
KNOWS_A_PART = ("training.checkpoint.published",)


def test_the_core_imports_no_part_of_a_model_by_name() -> None:
    assert len(MODEL_PARTS) >= 15
    for name in MODULES.keys() - within(*MODEL_PARTS, *KNOWS_A_PART, "apps"):
        assert not {other for other in imports(name) if is_within(other, MODEL_PARTS)}, name


# The code that runs any model on any puzzles: everything but the parts themselves.
CORE = sorted(
    {*within("models", "training", "evaluation", "runtime", "puzzle_dataset", *ENTRY_POINTS)}
    - {*within(*MODEL_PARTS, "evaluation.evaluators")}
)
# Architectures of apps. The published format names those of the core too.
OF_APPS = [
    name
    for name in ARCHITECTURES
    if ARCHITECTURES[name].schema.__module__.startswith("apps.") and name != "grid"  # A word, too.
]
NAMES_A_KIND = {
    "evaluation.headline": "results on disk have `arc/pass@2`",
    "puzzle_dataset": "a lazy ARC set on disk holds tasks, whose rows are made when they are read",
    "training.config.schema": "the published configuration trains on data/arc by default",
}
HELP_NAMES_A_PART = {
    "evaluation.config": "perturb=init is for random_starts, the section `search` for lattice"
}


def words(text: str) -> set[str]:
    """Return the names in a text, in lower case."""
    return set(re.findall(r"[a-z0-9]+(?:_[a-z0-9]+)*", text.lower()))


def named_in_code(tree: ast.AST) -> set[str]:
    """Return the names in code, and the words in its strings (but not in docstrings)."""
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
def test_the_core_names_no_kind_technique_app_or_optional_head(name: str) -> None:
    found, in_code = words(MODULES[name].read_text()), named_in_code(tree_of(name))
    parts = {*TECHNIQUES, *OF_APPS}
    assert not parts & in_code
    assert bool(parts & found) == (name in HELP_NAMES_A_PART)
    assert not {f"{head}_{what}" for head in AUXILIARY_HEADS for what in ("head", "logits")} & found
    assert bool({*KINDS} & in_code) == (name in NAMES_A_KIND)


def test_init_files_import_nothing() -> None:
    packages = [name for name in MODULES if re.fullmatch(r"(?!recursive).*\.__init__", name)]
    assert len(packages) >= len(CORE_PACKAGES)
    assert [name for name in packages if imports(name)] == ["dataset.kinds.__init__"]


def test_settings_data_and_checkpoints_are_checked_without_torch(run_python: Any) -> None:
    has_apps = (ROOT / "apps").is_dir()
    names = [name for name in WITHOUT_TORCH.split() if has_apps or not name.startswith("apps.")]
    loaded = (
        "import sys; heavy = {'torch', 'wandb', 'tensorboard', 'mlflow', 'numba', 'plotly'};"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    finished = run_python("-c", f"import {', '.join(names)}\n{loaded}")
    assert (finished.code, finished.out, finished.err) == (0, "[]\n", "")
