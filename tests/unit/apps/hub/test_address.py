import io
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from apps.hub.address import FILES, Address, parse_address
from runtime.errors import CheckpointError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("hf://owner/name", Address("owner/name", None)),
        ("hf://owner/na.me-1@main", Address("owner/na.me-1", "main")),
        ("hf://owner/name@refs/pr/1", Address("owner/name", "refs/pr/1")),
        ("checkpoints/hf", None),
        ("hf", None),
        ("/hf:/owner/name", None),
    ],
)
def test_addresses_are_distinguished_from_paths(text: str, address: Address | None) -> None:
    assert parse_address(text) == address
    assert parse_address(Path(text)) == address


@pytest.mark.parametrize(
    "text",
    [
        *("hf://", "hf://name", "hf://a/b/c", "hf://../b", "hf://a/..", "hf://a/b@", "hf://a/b@-x"),
        *("hf://a/b@x/../y", "hf:///a/b", "hf://a b/c", "hf://a/b\n", "hf://a/b?x", "hf://.a/b"),
    ],
)
def test_wrong_addresses_are_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match="accepted: hf://OWNER/NAME"):
        parse_address(text)


def test_the_patterns_match_only_known_files() -> None:
    def is_fetched(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in FILES)

    known = ("step_0/state.json", "step_120000/MANIFEST.json", "step_7/ema.safetensors")
    known += ("step_7/identifiers.json",)
    for name in (*known, "step_7", "step_7_ema", "checkpoint", "all_config.yaml"):
        assert is_fetched(name), name
    others = ("step_7/x.py", "step_7.py", "step_x", "model.py", "step_7/optimizer.safetensors")
    for name in (*others, "a/step_7", "../step_7", "step_7/../state.json", "checkpoint.py"):
        assert not is_fetched(name), name


def test_progress_bars_are_only_off_while_files_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    utils = pytest.importorskip("huggingface_hub.utils", reason="huggingface-hub is missing")
    was_off: list[bool] = []

    def fetch(repo: str, **_: object) -> str:
        was_off.append(utils.are_progress_bars_disabled())
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    monkeypatch.setattr("sys.stderr", io.StringIO())
    utils.enable_progress_bars()
    assert Address("me/x", None).fetch() == (tmp_path, f"hf://me/x@{tmp_path.name}")
    assert (was_off, utils.are_progress_bars_disabled()) == ([True], False)
