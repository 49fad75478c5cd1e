"""Both directions of a conversion, and what is said where something is missing."""

from pathlib import Path

import pytest

from runtime.errors import ConfigError
from scripts import convert_checkpoint

PUBLISHED = Path(__file__).resolve().parents[2] / "parity" / "published_format"


def test_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published, own = PUBLISHED / "checkpoint/step_7", tmp_path / "own"
    data = f"data_path={PUBLISHED / 'data'}"
    convert_checkpoint.main([f"checkpoint={published}", f"output={own}", data])
    assert capsys.readouterr().out == f"written: {own / 'step_7'}\n"
    back = tmp_path / "back"
    convert_checkpoint.main([f"checkpoint={own}", f"output={back}"])
    written = [back / "step_7", back / "all_config.yaml"]
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(f"written: {p}" for p in written)
    assert all(path.is_file() for path in written)
    # Without data_path: the recorded folder is not there, and the checkpoint knows the data.
    convert_checkpoint.main([f"checkpoint={back / 'step_7'}", f"output={tmp_path / 'again'}"])
    assert (tmp_path / "again/step_7/state.json").is_file()


@pytest.mark.parametrize("given", ["checkpoint=x", "output=x"])
def test_both_paths_are_needed(given: str) -> None:
    with pytest.raises(ConfigError, match="set checkpoint=PATH .* and output=FOLDER"):
        convert_checkpoint.main([given])
