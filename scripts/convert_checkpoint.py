"""Write a checkpoint in the published format: python scripts/convert_checkpoint.py checkpoint=PATH
output=FOLDER.

PATH is a run's folder (its newest good checkpoint) or a checkpoint in it. FOLDER receives `step_N`,
all_config.yaml and, if there is a moving average, `step_N_ema`. No tensor changes its bytes.
"""

import sys
from pathlib import Path

from runtime.errors import ConfigError
from runtime.schema import PluginSettings
from training.checkpoint.trained_model import find_trained_model
from training.config.composition import load_config
from training.config.entry_point import run_entry_point
from training.tracking import warn


class ConvertConfig(PluginSettings):
    """The settings of `convert_checkpoint.py`."""

    checkpoint: str | None = None
    """a run's folder (its newest good checkpoint), or a checkpoint in it"""
    output: str | None = None
    """the folder to write into"""


def main(overrides: list[str]) -> None:
    """Compose and validate the settings, then import torch and convert."""
    config = load_config(ConvertConfig, "cfg_convert", overrides)
    if config.checkpoint is None or config.output is None:
        raise ConfigError("set checkpoint=PATH (what to convert) and output=FOLDER")
    trained = find_trained_model(Path(config.checkpoint), warn)
    if trained.is_published:
        raise ConfigError(
            f"{trained.weights} is in the published format already; all commands can read it"
        )

    from apps.export.published import to_published

    written = to_published(trained, Path(config.output))
    sys.stdout.write("".join(f"written: {path}\n" for path in written))


if __name__ == "__main__":
    run_entry_point(ConvertConfig, "cfg_convert", main, str(__doc__))
