"""A model card for the Hugging Face Hub, written from what a run's files say."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from apps.reports.values import parsed
from evaluation.headline import MEASURES, differs, score_of, weight_of
from evaluation.metrics import Estimate
from evaluation.values import at, estimate_of, items, listed, number
from runtime.files import read_bounded
from runtime.text import many, shown, told_apart
from training.checkpoint.state import RunState
from training.config.schema import flatten

PICTURE = "thinking.gif"
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
            content = parsed(read_bounded(path, _MAX_JSON))
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
            metric_type="accuracy",
            metric_value=round(score.estimate.value, 4),
            metric_name=score.named,
        )
        for score in _found(known)
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
    named: str
    estimate: Estimate
    counted: str
    file: str


def _found(known: Known) -> list[_Score]:
    """Return what the JSON of evaluations says was solved, what stands for the checkpoint first; a
    file of that name that is none says nothing. Entries of one name say how they differ.
    """
    config = known.state.config or {}
    own = listed(config.get("data_paths_test")) or listed(config.get("data_paths"))
    own = own or [config[key] for key in ("data_path",) if config.get(key)]

    def weight(one: tuple[str, Mapping[str, Any]]) -> tuple[float, ...]:
        score = score_of(one[1])
        return weight_of(one[1], score, own) if score is not None else (-1,)

    scores = [
        _Score(_data_of(content), named, estimate, counted, file)
        for file, content in sorted(known.evaluations.items(), key=weight, reverse=True)
        for named, estimate, counted in _of_evaluation(content)
        if estimate is not None and counted
    ]
    asked = [", ".join(differs(known.evaluations[score.file])) for score in scores]
    sizes = [f"{score.counted} puzzles" for score in scores]
    named = [score.named for score in scores]
    names = told_apart(named, [score.data for score in scores], sizes, asked)
    return [replace(score, named=name) for score, name in zip(scores, names, strict=True)]


def _data_of(content: Mapping[str, Any]) -> str:
    # Where the data lie on this machine is nobody's business.
    return ", ".join("/".join(Path(str(path)).parts[-2:]) for path in listed(content.get("data")))


def _of_evaluation(content: Mapping[str, Any]) -> Iterator[tuple[str, Estimate | None, str]]:
    """Yield what was measured in words, its value, and what was counted."""

    def line(named: str, one: Any, share: str, count: str) -> tuple[str, Estimate | None, str]:
        known = number(at(one, count))
        return (
            named,
            estimate_of(at(one, *share.split("."))),
            "" if known is None else f"{known:,.0f}",
        )

    steps = at(content, "arch", "halt_max_steps")
    if (score := score_of(content)) is not None and score.name == "arc/pass@2":
        yield f"{MEASURES[score.name]}, answers of {steps} ACT steps", score.estimate, score.counted
    for name, found in items(content.get("sets")):
        named = f"exact accuracy, {name}, one pass of {many(int(number(steps) or 0), 'ACT step')}"
        yield line(named, found, "metrics.exact_accuracy", "count")
    for one in listed(content.get("chains")):
        breadth = number(at(one, "breadth")) or 1
        depth = many(int(number(at(one, "depth")) or 0), "ACT step")
        chains = f"{many(int(breadth), 'chain')} of {depth}"
        named = f"exact accuracy, {at(one, 'set_name')}, {chains}, select={at(one, 'select')}"
        yield line(named, one, "selected", "num_puzzles")
    search = content.get("search")
    size = f"{at(search, 'chains')} chains, {at(search, 'rounds')} rounds"
    for one in listed(content.get("searchers")):
        if at(one, "searcher") == "model":
            wrong = estimate_of(at(one, "wrong"))
            named = f"solved by search, {at(one, 'set_name')}, {size}"
            named += f", answered wrongly {wrong.value:.4f}" if wrong else ""
            yield line(named, one, "solved", "num_puzzles")


def _scores(known: Known) -> list[str]:
    scores = _found(known)
    if not scores:
        return ["No evaluation was found beside the checkpoint."]
    rows = ["| what | data | puzzles | score, 95 % interval | file |", "|---|---|---|---|---|"]
    for score in scores:
        cells = (score.named, score.data, score.counted, score.estimate.with_interval())
        rows.append(f"| {' | '.join(map(_plain, (*cells, score.file)))} |")
    told = (
        "Shares of puzzles whose whole answer is right, of all evaluations of this checkpoint; of "
    )
    told += "ARC the mean over tasks of the share of test outputs among the first two answers."
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
