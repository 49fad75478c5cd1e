"""Checkpoints on the Hugging Face Hub: hf://OWNER/NAME or hf://OWNER/NAME@REVISION.

A repository holds a run's folder: a checkpoint of ours, or published files. Only files of a known
kind are fetched, into the Hub's own cache; ours are then verified by their manifest like any other.
Imports no torch, and the Hub's client only where an address is one.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

from runtime.errors import CheckpointError
from runtime.text import shown
from training.checkpoint.published import CONFIG_FILE
from training.checkpoint.store import EMA, MANIFEST, MODEL, STATE

SCHEME = "hf://"
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
# A path object has made one slash of two.
_ADDRESS = re.compile(rf"hf:/{{1,2}}({_PART}/{_PART})(?:@([A-Za-z0-9][A-Za-z0-9._/-]{{0,200}}))?")
_STEPS = ["step_" + "[0-9]" * digits for digits in range(1, 13)]
FILES = [
    *(f"{step}/{name}" for step in _STEPS for name in (MANIFEST, STATE, MODEL, EMA)),
    *(f"{step}{ending}" for step in _STEPS for ending in ("", "_ema")),
    *(CONFIG_FILE, "checkpoint"),
]
"""Patterns of what is fetched; none of them is anything that could be executed."""
LOG_IN = "(hf auth login, or HF_TOKEN)"
_REASONS = {
    "GatedRepoError": f"is gated: ask for access on its page, then log in {LOG_IN}",
    "RepositoryNotFoundError": f"no such repository, or it is private: log in {LOG_IN}",
    "RevisionNotFoundError": "no such revision",
    "LocalEntryNotFoundError": "the Hub cannot be reached, and the files are not in its cache",
}
"""What errors of the Hub's client mean, by their names."""


class Address(NamedTuple):
    """A repository OWNER/NAME, and a branch, tag or commit of it (None: its main branch)."""

    repo: str
    revision: str | None

    @property
    def folder_name(self) -> str:
        """A name for what belongs to it on this machine."""
        return self.repo.replace("/", "--")

    def fetch(self) -> tuple[Path, str]:
        """Fetch what is missing of a repository's checkpoint; returns its folder in the Hub's
        cache, named like the commit, and the address with that. CheckpointError: it cannot.
        """
        named = f"{SCHEME}{self.repo}" + (f"@{self.revision}" if self.revision else "")
        try:
            from huggingface_hub import snapshot_download
            from huggingface_hub.utils import disable_progress_bars
        except ImportError:
            missing = "huggingface-hub is not installed (pip install '.[hub]')"
            raise CheckpointError(f"{named}: {missing}") from None
        if not sys.stderr.isatty():
            disable_progress_bars()
        try:
            folder = snapshot_download(
                self.repo, revision=self.revision, allow_patterns=FILES, etag_timeout=10
            )
        except Exception as error:  # Of the Hub, of the network, or of the client's own making.
            names = [kind.__name__ for kind in type(error).__mro__]
            reason = next((_REASONS[name] for name in names if name in _REASONS), reason_of(error))
            raise CheckpointError(f"{named}: {reason}") from None
        if not Path(folder).is_dir():
            raise CheckpointError(f"{named}: there is no checkpoint in this repository")
        return Path(folder), f"{SCHEME}{self.repo}@{Path(folder).name}"


def parse_address(path: Path | str) -> Address | None:
    """Return what an address says; None: it is a path on this machine.

    Raises:
        CheckpointError: it begins like an address, but is none.
    """
    text = str(path)
    if not text.startswith("hf:/"):
        return None
    found = _ADDRESS.fullmatch(text)
    if found is None or ".." in text:
        raise CheckpointError(
            f"{text}: accepted: {SCHEME}OWNER/NAME or {SCHEME}OWNER/NAME@REVISION"
        )
    return Address(found[1], found[2])


def reason_of(error: Exception) -> str:
    """Return what the Hub's client says of a failure, in a line."""
    return shown((str(error).splitlines() or [type(error).__name__])[0], 300)
