"""Share a model on the Hugging Face Hub: python scripts/push_to_hub.py RUN OWNER/NAME.

RUN is a run's folder (its newest good checkpoint), or a checkpoint in it. This pushes the weights
and settings, a manifest with the hash of each file, and a model card. Then
checkpoint=hf://OWNER/NAME works in every command that takes a checkpoint.
"""

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from apps.hub import address as hub
from apps.hub.card import CardFacts, card, read_json_files
from apps.reports.solving import names_known_to
from dataset.command_line import run_tool
from dataset.format.files import write_json
from dataset.format.schema import IDENTIFIERS_NAME
from puzzle_dataset import PuzzleDataset
from runtime.errors import ConfigError, DatasetError, disk_errors
from runtime.text import run_named, shown
from training.checkpoint import store
from training.checkpoint.store import RunState
from training.checkpoint.trained_model import TrainedModel, find_trained_model
from training.config.schema import flatten

# Settings other than plain numbers that an evaluation or the card needs.
_PUBLISHED = ("arch", "data", "data_path", "data_paths", "data_paths_test", "evaluators", "plugins")
_PUBLISHED += ("eval_split", "optimizer", "forward_dtype", "reduction")


def main(arguments: Sequence[str] | None = None) -> int:
    """Push the run of the command line; return the exit code."""
    options = _parser().parse_args(arguments)
    return run_tool(lambda: prepare_and_push(options))


def prepare_and_push(options: argparse.Namespace) -> str:
    """List the files, push them, and return a message for the terminal."""
    require_hub()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.dry_run or Path(temporary)
        prepare(options.run, options.repo, folder, options.license)
        sys.stdout.write(overview(folder))
        sys.stdout.flush()
        if options.dry_run:
            return f"written: {folder} (nothing was pushed)\n"
        return f"pushed: {push(folder, options)}\n"


def require_hub() -> None:
    """Raise ConfigError if the package that writes cards and pushes is missing."""
    if find_spec("huggingface_hub") is None:
        raise ConfigError("huggingface-hub is not installed (pip install '.[hub]')")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="push_to_hub.py", description=str(__doc__).partition("\n\n")[0]
    )
    add = parser.add_argument
    add("run", type=run_named, metavar="RUN", help="a run's folder, or a checkpoint in it")
    add("repo", metavar="OWNER/NAME", help="the repository; created if missing")
    add("--private", action="store_true", help="create a private repository")
    add("--revision", metavar="BRANCH", help="the branch to push to; created if missing")
    add("--message", metavar="TEXT", help="the message of the commit")
    license_id = "the licence of the weights, an identifier of the Hub (default: apache-2.0)"
    add("--license", default="apache-2.0", metavar="ID", help=license_id)
    dry_run = "write the files to this folder and push nothing"
    add("--dry-run", type=Path, metavar="FOLDER", help=dry_run)
    return parser


def prepare(run: Path, repo: str, folder: Path, license_id: str) -> None:
    """Write the files to push into a folder.

    Raises:
        CheckpointError, ConfigError: there is no checkpoint of ours, the repository's name is
            wrong, or the folder cannot be written.
    """
    address = hub.parse_address(f"{hub.SCHEME}{repo}")
    if address is None or address.revision is not None:
        raise ConfigError(f"{repo}: accepted: OWNER/NAME (--revision names a branch)")
    trained = find_trained_model(run, lambda message: None)
    if trained.is_published:
        raise ConfigError(f"{trained.weights}: only checkpoints of runs made here can be pushed")
    write_checkpoint(trained, folder)
    own = {"license": license_id, "evaluations": evaluations_of(trained)}
    facts = card_facts(trained, f"{hub.SCHEME}{repo}", **own)
    with disk_errors(folder, ConfigError):
        (folder / "README.md").write_text(card(facts))


def card_facts(trained: TrainedModel, address: str, **more: Any) -> CardFacts:
    """Return the facts for the card of a model; `more` are fields of `CardFacts`."""
    return CardFacts(
        address=address,
        num_parameters=num_parameters(trained),
        state=without_private_texts(store.load_checkpoint(trained.weights).state),
        manifests=manifests(trained),
        **more,
    )


def evaluations_of(trained: TrainedModel) -> dict[str, dict[str, Any]]:
    """Return the results of this checkpoint's evaluations in the run's folder, by file."""
    found = read_json_files(sorted(trained.weights.parent.glob("eval*.json")))
    return {name: content for name, content in found.items() if content.get("step") == trained.step}


def write_checkpoint(trained: TrainedModel, folder: Path) -> None:
    """Write the weights as a checkpoint of ours. Runs cannot resume from it."""
    with disk_errors(folder, ConfigError):
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = next(folder.iterdir(), None) is None
    if not is_empty:
        raise ConfigError(f"{folder}: is not empty; name a new or empty folder")
    names = [name for name in (store.MODEL, store.EMA) if (trained.weights / name).exists()]
    files: dict[str, store.FileWriter]
    files = {name: partial(shutil.copyfile, trained.weights / name) for name in names}
    if puzzles := puzzle_names(trained):
        files[IDENTIFIERS_NAME] = partial(write_json, value=puzzles, compact=True)
    store.save_checkpoint(folder, shared_state(trained), files)


def puzzle_names(trained: TrainedModel) -> list[str]:
    """Return the names in a model's puzzle embedding; none if it has a single one, or if the data
    with the names are gone.
    """
    number = trained.facts.num_puzzle_identifiers if trained.facts else 1
    folders = trained.run.data_folders("train")
    if number > 1:
        with suppress(DatasetError):
            data = partial(PuzzleDataset, folders, "train", check_values=False)
            found = names_known_to(trained, data) or []
            return found if len(found) == number else []
    return []


def shared_state(trained: TrainedModel) -> RunState:
    """Return the state to share beside a model's weights."""
    own = ("diagnostics", "callbacks", "wandb_id", "mlflow_id")
    kept = {"weights_only": True, **dict.fromkeys(own)}
    known = store.load_checkpoint(trained.weights).state
    return without_private_texts(known).model_copy(update=kept)


def without_private_texts(state: RunState) -> RunState:
    """Return a state without private texts: it keeps the settings that an evaluation or the card
    needs, and numbers. Other texts, like commands and names, may hold secrets. Paths are shortened.
    """
    settings = state.config or {}
    config = {
        key: value
        for key, value in settings.items()
        if key in _PUBLISHED or isinstance(value, bool | int | float | None)
    }
    if isinstance(data := config.get("data"), dict):
        config["data"] = {key: data[key] for key in ("name", "path", "evaluators") if key in data}
    return state.model_copy(update={"config": _without_paths(config)})


# The beginning of a path that leads out of the project: /, ~, one with "..", or a URL.
_AWAY = r"(?:[/~]|(?:[^\s,=\['\"]*/)?\.\.(?:/|$)|[\w+.-]+://)"


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_paths(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_paths(each) for each in value]
    if not isinstance(value, str):
        return value
    if (found := re.search(rf"(?:^|(?<=[\s,=\['\"])){_AWAY}", value)) is None:
        return value
    paths = re.split(rf",(?={_AWAY})", value[found.start() :])
    return value[: found.start()] + ",".join(Path(one).name for one in paths)


def overview(folder: Path) -> str:
    """List the files of the folder to push, and the texts among the settings."""
    lines = ["to be pushed:"]
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        lines.append(f"  {path.relative_to(folder)}: {path.stat().st_size} bytes")
    for state in sorted(folder.glob(f"step_*/{store.STATE}")):
        lines.append("texts in the settings (README.md also has names and commands):")
        for key, value in flatten(store.read_json(state).get("config") or {}):
            if isinstance(value, str | list) and value:
                lines.append(f"  {shown(key)}: {shown(value, 200)}")
    return "\n".join(lines) + "\n"


def manifests(trained: TrainedModel) -> dict[str, dict[str, Any]]:
    """Return the manifests of the run's data by folder, without missing ones."""
    found = {}
    for folder in [*trained.run.data_folders("train"), *trained.run.data_folders("test")]:
        for content in read_json_files([Path(folder, "manifest.json")]).values():
            found[folder] = content | {"command": _without_paths(content.get("command"))}
    return found


def num_parameters(trained: TrainedModel) -> int:
    """Return the number of the model's parameters without the puzzle embedding."""
    import torch

    from models.registry import build_model

    assert trained.facts is not None
    with torch.device("meta"):
        return sum(p.numel() for p in build_model(trained.run.arch, trained.facts).parameters())


def push(folder: Path, options: argparse.Namespace) -> str:
    """Push a folder; return its address with the commit.

    Raises:
        ConfigError: the user is not logged in, the Hub refuses or cannot be reached, or --private
            is set and the repository is public.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi(library_name="recursive-reasoning")
    try:
        api.create_repo(options.repo, private=options.private or None, exist_ok=True)
        if options.private and not api.model_info(options.repo, revision="main").private:
            raise ValueError("it exists already and is public; --private cannot change that")
        if options.revision:
            api.create_branch(options.repo, branch=options.revision, exist_ok=True)
        commit = api.upload_folder(
            repo_id=options.repo,
            folder_path=folder,
            revision=options.revision,
            commit_message=options.message or "Upload a checkpoint",
            delete_patterns=["step_*/*"],
        )
    except Exception as error:  # From the Hub, the network or the client.
        raise ConfigError(f"{options.repo}: {hub.reason_of(error)} {hub.LOG_IN}") from None
    return f"{hub.SCHEME}{options.repo}@{commit.oid}"
