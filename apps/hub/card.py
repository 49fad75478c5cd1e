"""A model card for the Hugging Face Hub, written from what a run's files say."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from apps.reports.values import parsed
from evaluation.headline import MEASURES, Score, differs, score_of, weight_of
from evaluation.values import items, listed
from runtime.files import read_bounded
from runtime.text import shown
from training.checkpoint.store import RunState

_MAX_JSON = 64 * 2**20
_TAGS = ("recursive-reasoning", "hrm", "trm", "puzzles")
_LIMITS = """\
- It answers puzzles of the kind and size that it was trained on, and nothing else.
- Its scores are those of the puzzles named above. Harder ones, or ones made in another way, may
  give other scores.
- It does not know the rules: an answer can be wrong, also where the model is sure.
- A model with a puzzle embedding knows the tasks that it was trained on, and no others.
"""


@dataclass(frozen=True)
class Known:
    """What is known of a checkpoint.

    Attributes:
        repo: OWNER/NAME.
        license: of the weights, an identifier of the Hub.
        num_parameters: those of the puzzle embedding apart.
        state: the checkpoint's own.
        manifests: of the data that the run names, by folder, where they are still there.
        evaluations: JSON of the run's evaluations, by file name.
    """

    repo: str
    license: str
    num_parameters: int
    state: RunState
    manifests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    evaluations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def read_json_files(paths: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Return the JSON objects in files by name; what cannot be read is left out."""
    found = {}
    for path in paths:
        try:
            content = parsed(read_bounded(path, _MAX_JSON))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            found[path.name] = content
    return found


def card(known: Known) -> str:
    """Return the card: YAML that the Hub reads, and Markdown."""
    arch = (known.state.config or {}).get("arch") or {}
    address, found = f"checkpoint=hf://{known.repo}", _found(known)
    lines = [
        _front_matter(known, found),
        f"# {_plain(known.repo.split('/')[-1])}",
        "",
        f"A recursive reasoning model (`arch={_plain(arch.get('name'))}`, {known.num_parameters:,} "
        f"parameters) after {known.state.step:,} optimizer steps. It looks at a puzzle several "
        "times and improves its answer at each step.",
        "",
        "## Use",
        "",
        "```sh",
        f"python evaluate.py {address} data_path=FOLDER",
        f"python scripts/solve.py {address} data_path=FOLDER count=1",
        f"python pretrain.py load_{address} ...   # to train on",
        "```",
    ]
    parts = {"Scores": _scores(found), "Data": _data(known), "Training": _training(known.state)}
    for title, part in (parts | {"Limits": [_LIMITS]}).items():
        lines += ["", f"## {title}", "", *part]
    return "\n".join(lines)


class _Found(NamedTuple):
    """An evaluation: its file, what was measured in words, on which data, and how it went."""

    file: str
    named: str
    data: str
    score: Score


def _found(known: Known) -> list[_Found]:
    """Return what evaluations found, what stands for the checkpoint first; a file of that name that
    is none says nothing.
    """
    config = known.state.config or {}
    own = listed(config.get("data_paths_test")) or listed(config.get("data_paths"))
    own = own or [config[key] for key in ("data_path",) if config.get(key)]
    found = []
    for file, content in known.evaluations.items():
        if (score := score_of(content)) is None or not score.count:
            continue
        # Where the data lie on this machine is nobody's business.
        folders = ["/".join(Path(str(path)).parts[-2:]) for path in listed(content.get("data"))]
        wrong = [f"answered wrongly {score.wrong.value:.4f}"] if score.wrong else []
        named = ", ".join([MEASURES[score.name], *differs(content), *wrong])
        weight = weight_of(content, score, own)
        found.append((weight, _Found(file, named, ", ".join(folders), score)))
    return [one for _, one in sorted(found, key=lambda pair: pair[0], reverse=True)]


def _front_matter(known: Known, found: Sequence[_Found]) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="puzzle-solving",
            dataset_type=_plain(one.data),
            dataset_name=_plain(one.data),
            metric_type="accuracy",
            metric_value=round(one.score.estimate.value, 4),
            metric_name=one.named,
        )
        for one in found
    ]
    model = {"model_name": known.repo.split("/")[-1], "eval_results": results} if results else {}
    data = ModelCardData(
        license=known.license, library_name="recursive-reasoning", tags=list(_TAGS), **model
    )
    return f"---\n{data.to_yaml()}\n---\n"


def _scores(found: Sequence[_Found]) -> list[str]:
    if not found:
        return ["No evaluation was found beside the checkpoint."]
    rows = ["| what | data | of | score, 95 % interval | file |", "|---|---|---|---|---|"]
    for file, named, data, score in found:
        cells = (named, data, score.counted, score.estimate.with_interval(), file)
        rows.append(f"| {' | '.join(map(_plain, cells))} |")
    told = (
        "Shares of puzzles whose whole answer is right; of ARC the mean over tasks of the share of "
        "test outputs among the first two answers."
    )
    return [*rows, "", told]


def _data(known: Known) -> list[str]:
    lines = []
    config = known.state.config or {}
    for key in ("data_path", "data_paths", "data_paths_test"):
        if config.get(key):
            lines.append(f"- `{key}`: {_plain(config[key])}")
    if known.state.data_fingerprint:
        lines.append(f"- sha256 over the training files: {_code(known.state.data_fingerprint)}")
    for folder, manifest in known.manifests.items():
        command = " ".join(map(str, listed(manifest.get("command")))) or "not recorded"
        lines.append(
            f"- {_plain(folder)}: built by {_code(command)}, seed {_plain(manifest.get('seed'))}"
        )
        lines.append(f"  - sha256 over all files: {_code(manifest.get('sha256'))}")
        for split, counts in items(manifest.get("counts")):
            said = ", ".join(f"{name} {value}" for name, value in items(counts)) or "not recorded"
            lines.append(f"  - {_plain(split)}: {_plain(said)}")
    return lines or ["Not recorded."]


def _training(state: RunState) -> list[str]:
    seconds, there = state.seconds, state.environment
    hours = "not recorded" if not seconds else f"{seconds / 3600:.2f}"
    device = f"{there.get('world_size', 1)} x {there.get('device_name') or there.get('device')}"
    return [
        f"- hardware: {_plain(device if there else 'not recorded')}",
        f"- hours of training: {hours}",
        f"- number format: {_plain(there.get('forward_dtype', 'not recorded'))}",
        f"- versions: torch {_plain(there.get('torch'))}, Python {_plain(there.get('python'))}",
        f"- settings: `step_{state.step}/state.json`",
    ]


def _code(value: object) -> str:
    """Return a value as a piece of code, which has no end of its own."""
    return "`" + shown(value, 300).replace("`", "'") + "`"


def _plain(value: object) -> str:
    """Return a value as text that no Markdown or HTML is made of."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = escape(shown(value, 300), quote=False)
    for symbol in "\\`*_[]|#~":
        text = text.replace(symbol, f"\\{symbol}" if symbol != "`" else "'")
    return text
