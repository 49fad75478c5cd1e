"""A model card for the Hugging Face Hub, written from what a run's files say."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from evaluation.metrics import Estimate
from runtime.text import shown
from training.checkpoint.state import RunState
from training.config.schema import flatten

PICTURE = "thinking.gif"
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
        has_picture: whether PICTURE lies beside the card.
    """

    repo: str
    license: str
    num_parameters: int
    state: RunState
    manifests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    evaluations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    has_picture: bool = False


def read_json_files(paths: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Return the JSON objects in files by name; what cannot be read is left out."""
    found = {}
    for path in paths:
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            found[path.name] = content
    return found


def card(known: Known) -> str:
    """Return the card: YAML that the Hub reads, and Markdown."""
    config, step = known.state.config or {}, known.state.step
    arch = config.get("arch") or {}
    lines = [_front_matter(known), f"# {_plain(known.repo.split('/')[-1])}", ""]
    lines += [
        f"A recursive reasoning model (`arch={_plain(arch.get('name'))}`, {known.num_parameters:,} "
        f"parameters) after {step:,} optimizer steps. It looks at a puzzle several times and "
        "improves its answer at each step.",
        "",
    ]
    if known.has_picture:
        lines += [f"![how an answer forms, step by step]({PICTURE})", ""]
    lines += ["## Use", "", "```sh", *_commands(known.repo), "```", ""]
    lines += ["## Scores", "", *_scores(known), ""]
    lines += ["## Data", "", *_data(known), ""]
    lines += ["## Training", "", *_training(known.state), ""]
    lines += ["## Limits", "", _LIMITS]
    lines += ["## Files", "", *_files(known), ""]
    return "\n".join(lines)


def _front_matter(known: Known) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="puzzle-solving",
            dataset_type=_plain(score.data),
            dataset_name=_plain(score.data),
            metric_type=score.metric,
            metric_value=round(score.estimate.value, 4),
            metric_name=score.named,
        )
        for score in _found(known.evaluations)
    ]
    model = {"model_name": known.repo.split("/")[-1], "eval_results": results} if results else {}
    data = ModelCardData(
        license=known.license, library_name="recursive-reasoning", tags=list(_TAGS), **model
    )
    return f"---\n{data.to_yaml()}\n---\n"


def _commands(repo: str) -> list[str]:
    address = f"checkpoint=hf://{repo}"
    return [
        f"python evaluate.py {address} data_path=FOLDER",
        f"python scripts/solve.py {address} data_path=FOLDER count=1",
        f"python pretrain.py load_checkpoint=hf://{repo} ...   # to train on",
    ]


@dataclass(frozen=True)
class _Score:
    data: str
    metric: str
    named: str
    estimate: Estimate
    num_puzzles: int
    file: str


def _found(evaluations: Mapping[str, Mapping[str, Any]]) -> list[_Score]:
    """Return the shares of puzzles solved in the JSON of evaluations; a file of that name that is
    none says nothing.
    """
    scores: list[_Score] = []
    for file, content in evaluations.items():
        with suppress(AttributeError, KeyError, TypeError, ValueError):
            scores += list(_of_evaluation(file, content))
    return scores


def _of_evaluation(file: str, content: Mapping[str, Any]) -> Iterator[_Score]:
    # Where the data lie on this machine is nobody's business.
    data = ", ".join("/".join(Path(path).parts[-2:]) for path in content["data"])
    for name, found in content.get("sets", {}).items():
        steps = content["arch"].get("halt_max_steps")
        named = f"exact accuracy, {name}, one pass of {steps} ACT steps"
        estimate = _estimate(found["metrics"]["exact_accuracy"])
        yield _Score(data, "accuracy", named, estimate, found["count"], file)
    for one in content.get("chains", []):
        chains = f"{one['breadth']} chains of {one['depth']} ACT steps"
        named = f"exact accuracy, {one['set_name']}, {chains}, select={one['select']}"
        estimate = _estimate(one["selected"])
        yield _Score(data, "accuracy", named, estimate, one["num_puzzles"], file)
    for one in content.get("searchers", []):
        if one["searcher"] == "model":
            size = "{chains} chains, {rounds} rounds".format_map(content["search"])
            named = f"solved by search, {one['set_name']}, {size}"
            estimate = _estimate(one["solved"])
            yield _Score(data, "accuracy", named, estimate, one["num_puzzles"], file)


def _objects(found: Any) -> dict[str, Any]:
    return (
        {n: v for n, v in found.items() if isinstance(v, dict)} if isinstance(found, dict) else {}
    )


def _estimate(found: Mapping[str, Any]) -> Estimate:
    low, high = found["low"], found["high"]
    return Estimate(float(found["value"]), low and float(low), high and float(high))


def _scores(known: Known) -> list[str]:
    scores = _found(known.evaluations)
    if not scores:
        return ["No evaluation was found beside the checkpoint."]
    rows = ["| what | data | puzzles | score, 95 % interval | file |", "|---|---|---|---|---|"]
    for score in scores:
        cells = (score.named, score.data, f"{score.num_puzzles:,}", score.estimate.with_interval())
        rows.append(f"| {' | '.join(map(_plain, (*cells, score.file)))} |")
    told = "Shares of puzzles whose whole answer is right; all evaluations that lay beside the run."
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
        command = " ".join(map(str, manifest.get("command") or ["not recorded"]))
        lines.append(
            f"- {_plain(folder)}: built by {_code(command)}, seed {_plain(manifest.get('seed'))}"
        )
        lines.append(f"  - sha256 over all files: {_code(manifest.get('sha256'))}")
        for split, counts in _objects(manifest.get("counts")).items():
            said = ", ".join(f"{name} {value}" for name, value in counts.items())
            lines.append(f"  - {_plain(split)}: {_plain(said)}")
    return lines or ["Not recorded."]


def _training(state: RunState) -> list[str]:
    seconds, there = getattr(state, "seconds", None), state.environment
    hours = "not recorded" if not seconds else f"{seconds / 3600:.2f}"
    device = f"{there.get('world_size', 1)} x {there.get('device_name') or there.get('device')}"
    lines = [
        f"- hardware: {_plain(device if there else 'not recorded')}",
        f"- hours of training: {hours}",
        f"- number format: {_plain(there.get('forward_dtype', 'not recorded'))}",
        f"- versions: torch {_plain(there.get('torch'))}, Python {_plain(there.get('python'))}",
        "",
        "<details><summary>All settings</summary>",
        "",
        "```yaml",
    ]
    for key, value in flatten(state.config or {}):
        if value is not None:
            lines.append(f"{shown(key)}: {shown(value, 200)}".replace("`", "'"))
    return [*lines, "```", "", "</details>"]


def _files(known: Known) -> list[str]:
    step = f"step_{known.state.step}"
    return [
        f"- `{step}/model.safetensors`: weights; `ema.safetensors`: their moving average, if any",
        f"- `{step}/state.json`: settings and what the data look like",
        f"- `{step}/MANIFEST.json`: size and sha256 of each file, checked when it is loaded",
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
