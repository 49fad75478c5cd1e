"""Build one of the named data sets: python scripts/build_dataset.py data=NAME [KEY=VALUE].

data.path=FOLDER writes it elsewhere; data.builder.KEY=VALUE changes a setting of the builder.
"""

from pathlib import Path

from dataset.kinds import BUILDERS
from runtime.errors import ConfigError
from runtime.schema import PluginSettings
from training.config.composition import load_config
from training.config.entry_point import run_entry_point
from training.config.schema import DataConfig


class BuildConfig(PluginSettings):
    """The settings of `build_dataset.py`."""

    data: DataConfig | None = None


def main(overrides: list[str]) -> Path:
    """Compose and validate the settings, then build. Return the data set's folder."""
    data = load_config(BuildConfig, "cfg_build", overrides).data
    if data is None:
        raise ConfigError("set data=NAME; --help lists the names")
    if data.builder is None:
        raise ConfigError(f"data={data.name} has no builder; build it with: {data.how_to_build}")
    BUILDERS.load(data.builder.name)(data.builder, Path(data.path))
    return Path(data.path)


if __name__ == "__main__":
    run_entry_point(BuildConfig, "cfg_build", main, str(__doc__))
