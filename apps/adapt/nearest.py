"""The row of a trained puzzle embedding that answers a new task's demonstrations best."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from apps.reports.solving import names_known_to
from dataset.arc.augmentation import parse_identifier
from dataset.format.schema import BLANK_NAME
from models.registry import arch_on_device
from puzzle_dataset import PuzzleDataset
from runtime.device import resolve_device
from runtime.errors import ConfigError
from training.checkpoint.trained_model import TrainedModel
from training.data import data_facts

_ROWS_AT_ONCE = 64


@torch.no_grad()
def nearest_row(trained: TrainedModel, folder: Path, device: str) -> int:
    """Return the number of the row. The first row of each known task is tried on the first puzzle
    of the data set `folder`, the unchanged demonstrations, with all ACT steps.

    Args:
        device: the setting of the run.
    """
    dataset, folders = PuzzleDataset([folder], "train"), trained.run.data_folders("train")
    names = names_known_to(trained, lambda: PuzzleDataset(folders, "train", check_values=False))
    firsts = dict[str, int]()
    for row, name in enumerate(names or ()):
        try:
            firsts.setdefault(parse_identifier(name)[0], row)
        except ValueError as error:
            raise ConfigError(f"adapt.rows=nearest: {trained.weights}: {error}") from None
    firsts.pop(BLANK_NAME, None)
    known = list(firsts.values())
    if not known or trained.facts is None:
        raise ConfigError(f"adapt.rows=nearest: {trained.weights} does not name its tasks")
    facts = data_facts(dataset.metadata, dataset.fields, dataset.kind)
    facts = replace(facts, num_puzzle_identifiers=trained.facts.num_puzzle_identifiers)
    place = torch.device(resolve_device(device))
    model = trained.load(arch_on_device(trained.run.arch, place.type), facts, str(folder), place)
    number = int(dataset.sets["all"].puzzle_indices[1])
    batch = dataset.read("all", np.arange(number), np.zeros(number, np.int32))
    inputs, labels = (torch.from_numpy(part).to(place) for part in (batch.inputs, batch.labels))
    losses = []
    for start in range(0, len(known), some := max(1, _ROWS_AT_ONCE // number)):
        rows = torch.tensor(known[start : start + some], dtype=torch.int32, device=place)
        examples = {
            "inputs": inputs.repeat(len(rows), 1),
            "labels": labels.repeat(len(rows), 1),
            "puzzle_identifiers": rows.repeat_interleave(number),
        }
        found = model(model.initial_carry(examples), examples)
        for _ in range(1, model.model.eval_max_steps):
            found = model(found.carry, examples)
        losses += found.rows["lm_loss"].view(-1, number).sum(1).tolist()
    return known[int(np.argmin(losses))]
