"""Convert a checkpoint into the published format or back: python scripts/convert_checkpoint.py
checkpoint=PATH output=FOLDER.

PATH is a run's folder (its newest good checkpoint), a checkpoint in it, or a published `step_N`
file. A checkpoint of ours becomes FOLDER/step_N and all_config.yaml, with a moving average also
step_N_ema; a published one becomes the checkpoint FOLDER/step_N of ours, for evaluation, solving
and load_checkpoint. Every tensor keeps its bytes.
"""

import sys
from pathlib import Path

from dataset.format.reading import load_metadata
from runtime.errors import ConfigError
from runtime.schema import PluginSettings
from training.checkpoint.trained_model import find_trained_model
from training.config.composition import load_config
from training.config.entry_point import run_entry_point
from training.data import data_facts
from training.tracking import warn


class ConvertConfig(PluginSettings):
    """What `convert_checkpoint.py` is told."""

    checkpoint: str | None = None
    """a run's folder (newest good checkpoint), a checkpoint in it, or a published step_N file"""
    output: str | None = None
    """the folder to write into"""
    data_path: str | None = None
    """training data of a published checkpoint; null: the recorded path"""


def main(overrides: list[str]) -> None:
    """Compose, validate, then load torch and convert."""
    config = load_config(ConvertConfig, "cfg_convert", overrides)
    if config.checkpoint is None or config.output is None:
        raise ConfigError("set checkpoint=PATH (what to convert) and output=FOLDER")
    trained = find_trained_model(Path(config.checkpoint), warn)
    output = Path(config.output)

    from training.checkpoint.conversion import from_published, to_published

    if not trained.is_published:
        written = to_published(trained, output)
    else:
        recorded = trained.run.data_folders("train")
        folder = config.data_path
        if folder is None and trained.recorded_facts is None and recorded:
            folder = recorded[0] if Path(recorded[0]).is_dir() else None
        facts = None if folder is None else data_facts(load_metadata(Path(folder) / "train"))
        written = [from_published(trained, facts, output)]
    sys.stdout.write("".join(f"written: {path}\n" for path in written))


if __name__ == "__main__":
    run_entry_point(ConvertConfig, "cfg_convert", main, str(__doc__))
