"""Write a model card for the Hugging Face Hub from the files of a run."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from apps.reports.values import parsed
from evaluation.headline import MEASURES, Score, differs, score_of, weight_of
from evaluation.values import items, listed
from runtime.files import read_bounded
from runtime.text import shown
from training.checkpoint.store import RunState

_MAX_JSON = 64 * 2**20
# The result of an evaluation: its file, the measure in words, the data, and the score.
_Result = tuple[str, str, str, Score]
_TAGS = ("recursive-reasoning", "hrm", "trm", "puzzles")
_LIMITS = """\
- It only answers puzzles of the kind that it was trained on, most architectures only of that size.
- Its scores hold for the puzzles named above. Harder puzzles, or puzzles made in another way, may
  give other scores.
- It does not know the rules: an answer can be wrong even if the model is sure.
- A model with a puzzle embedding only knows the tasks that it was trained on.
"""


@dataclass(frozen=True)
class CardFacts:
    """The facts about a checkpoint that its card needs.

    Attributes:
        address: hf://OWNER/NAME or zoo:NAME.
        license: of the weights, an identifier of the Hub.
        num_parameters: without the puzzle embedding.
        state: the checkpoint's state, without paths of this machine.
        manifests: of the run's data sets that still exist, by folder; the card names its last part.
        evaluations: JSON of the run's evaluations, by file name.
        command: makes the model; "" if unknown.
        commit: of the project; "" if unknown.
        limits: what this model cannot do.
    """

    address: str
    license: str
    num_parameters: int
    state: RunState
    manifests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    evaluations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    command: str = ""
    commit: str = ""
    limits: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The last part of the address."""
        return re.split("[/:]", self.address)[-1]


def read_json_files(paths: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Return the JSON objects in files by name, without files that cannot be read."""
    found = {}
    for path in paths:
        try:
            content = parsed(read_bounded(path, _MAX_JSON))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            found[path.name] = content
    return found


def card(facts: CardFacts) -> str:
    """Return the card: YAML that the Hub reads, and Markdown."""
    arch = (facts.state.config or {}).get("arch") or {}
    address, results = f"checkpoint={facts.address}", _results(facts)
    lines = [
        _front_matter(facts, results),
        f"# {_plain(facts.name)}",
        "",
        f"A recursive reasoning model (`arch={_plain(arch.get('name'))}`, {facts.num_parameters:,} "
        f"parameters) after {facts.state.step:,} optimizer steps. It looks at a puzzle several "
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
    limits = [*(f"- {limit}" for limit in facts.limits), _LIMITS]
    parts = {"Scores": _scores(results), "Data": _data(facts), "Training": _training(facts)}
    for title, part in (parts | {"Limits": limits}).items():
        lines += ["", f"## {title}", "", *part]
    return "\n".join(lines)


def _results(facts: CardFacts) -> list[_Result]:
    """Return the results of the evaluations, the most representative one first."""
    config = facts.state.config or {}
    own = listed(config.get("data_paths_test")) or listed(config.get("data_paths"))
    own = own or [config[key] for key in ("data_path",) if config.get(key)]
    results = []
    for file, content in facts.evaluations.items():
        if (score := score_of(content)) is None or not score.count:
            continue
        # Two parts of the path say enough; the whole path is private.
        folders = ["/".join(Path(str(path)).parts[-2:]) for path in listed(content.get("data"))]
        wrong = [f"answered wrongly {score.wrong.value:.4f}"] if score.wrong else []
        measure = ", ".join([MEASURES[score.name], *differs(content), *wrong])
        weight = weight_of(content, score, own)
        results.append((weight, (file, measure, ", ".join(folders), score)))
    return [result for _, result in sorted(results, key=lambda pair: pair[0], reverse=True)]


def _front_matter(facts: CardFacts, results: Sequence[_Result]) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    listing = [
        EvalResult(
            task_type="puzzle-solving",
            dataset_type=_plain(data),
            dataset_name=_plain(data),
            metric_type="accuracy",
            metric_value=round(score.estimate.value, 4),
            metric_name=measure,
        )
        for _, measure, data, score in results
    ]
    model = {"model_name": facts.name, "eval_results": listing} if listing else {}
    about = {"license": facts.license, "library_name": "recursive-reasoning", "tags": list(_TAGS)}
    return f"---\n{ModelCardData(**about, **model).to_yaml()}\n---\n"


def _scores(results: Sequence[_Result]) -> list[str]:
    if not results:
        return ["No evaluation was found beside the checkpoint."]
    rows = ["| measure | data | number | score, 95 % interval | from |", "|---|---|---|---|---|"]
    for file, measure, data, score in results:
        cells = (measure, data, score.counted, score.estimate.with_interval(), file)
        rows.append(f"| {' | '.join(map(_plain, cells))} |")
    explanation = (
        "A score is the share of puzzles answered completely right. For ARC it is the share of "
        "test outputs that are among the first two answers, averaged over tasks."
    )
    return [*rows, "", explanation]


def _data(facts: CardFacts) -> list[str]:
    lines = []
    config = facts.state.config or {}
    for key in ("data_path", "data_paths", "data_paths_test"):
        if config.get(key):
            lines.append(f"- `{key}`: {_plain(config[key])}")
    if facts.state.data_fingerprint:
        lines.append(f"- sha256 over the training files: {_code(facts.state.data_fingerprint)}")
    for folder, manifest in facts.manifests.items():
        command = " ".join(map(str, listed(manifest.get("command")))) or "not recorded"
        lines.append(
            f"- {_plain(Path(folder).name)}: built by {_code(command)}, "
            f"seed {_plain(manifest.get('seed'))}"
        )
        lines.append(f"  - sha256 over all files: {_code(manifest.get('sha256'))}")
        for what, counts in items(manifest.get("counts")):
            text = ", ".join(f"{name} {value}" for name, value in items(counts)) or counts
            lines.append(f"  - {_plain(what)}: {_plain(text)}")
    return lines or ["Not recorded."]


def _training(facts: CardFacts) -> list[str]:
    state = facts.state
    seconds, env = state.seconds, state.environment
    hours = "not recorded" if not seconds else f"{seconds / 3600:.2f}"
    device = f"{env.get('world_size', 1)} x {env.get('device_name') or env.get('device')}"
    made = {"command": facts.command, "commit": facts.commit}
    return [
        *(f"- {name}: {_code(value)}" for name, value in made.items() if value),
        f"- seed: {_plain((state.config or {}).get('seed', 'not recorded'))}",
        f"- hardware: {_plain(device if env else 'not recorded')}",
        f"- hours of training: {hours}",
        f"- number format: {_plain(env.get('forward_dtype', 'not recorded'))}",
        f"- versions: torch {_plain(env.get('torch'))}, Python {_plain(env.get('python'))}",
    ]


def _code(value: object) -> str:
    """Return a value as Markdown code that the value itself cannot end."""
    return "`" + shown(value, 300).replace("`", "'") + "`"


def _plain(value: object) -> str:
    """Return a value as text without Markdown or HTML markup."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = escape(shown(value, 300), quote=False)
    for symbol in "\\`*_[]|#~":
        text = text.replace(symbol, f"\\{symbol}" if symbol != "`" else "'")
    return text
