"""The commented settings in config/ match the schemas."""

import shutil
from pathlib import Path

import pytest

from apps.upkeep import settings
from apps.upkeep.settings import written
from scripts.write_config import ALL
from training.config.source import CONFIG_DIR


@pytest.mark.parametrize("name", ALL)
def test_the_files_are_up_to_date(name: str) -> None:
    assert (CONFIG_DIR / f"{name}.yaml").read_text() == written(name, ALL[name]), "run make config"


def test_files_out_of_date_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(CONFIG_DIR, tmp_path / "config")
    monkeypatch.setattr(settings, "CONFIG_DIR", folder)
    changed = folder / "logger/wandb.yaml"
    content = changed.read_text()
    changed.write_text(content.replace("mode: auto", "mode: offline"))
    settings.write(ALL)
    assert capsys.readouterr().out == f"written: {changed}\n"
    assert changed.read_text() == content
