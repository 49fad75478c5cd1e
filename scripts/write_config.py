"""Write the schemas' settings, defaults and descriptions into config/: python -m
scripts.write_config. The handwritten part of a file, above `MARK`, stays.
"""

from apps.upkeep.settings import SECTIONS, write
from scripts.build_dataset import BuildConfig
from scripts.convert_checkpoint import ConvertConfig

ALL = {**SECTIONS, "cfg_convert": ConvertConfig(), "cfg_build": BuildConfig()}

if __name__ == "__main__":
    write(ALL)
