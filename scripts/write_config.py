"""Write the settings, their defaults and descriptions into config/: python -m scripts.write_config.

The schemas hold them; what stands in a file above `MARK` is written by hand and stays.
"""

from apps.upkeep.settings import SECTIONS, write
from scripts.build_dataset import BuildConfig
from scripts.convert_checkpoint import ConvertConfig

ALL = {**SECTIONS, "cfg_convert": ConvertConfig(), "cfg_build": BuildConfig()}

if __name__ == "__main__":
    write(ALL)
