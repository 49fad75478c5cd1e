"""Checkpoints on the Hugging Face Hub: hf://OWNER/NAME or hf://OWNER/NAME@REVISION.

A repository holds a run's folder: a checkpoint of ours, or published files. Only files of known
kinds are fetched, into the Hub's cache. Checkpoints of ours are then verified by their manifest, as
any other. This module imports no torch, and the Hub's client only to fetch.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

from dataset.format.schema import IDENTIFIERS_NAME
from runtime.errors import CheckpointError
from runtime.text import shown
from training.checkpoint.published import CONFIG_FILE
from training.checkpoint.store import EMA, MANIFEST, MODEL, STATE

SCHEME = "hf://"
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
# One slash is accepted because `Path` merges two slashes.
_ADDRESS = re.compile(rf"hf:/{{1,2}}({_PART}/{_PART})(?:@([A-Za-z0-9][A-Za-z0-9._/-]{{0,200}}))?")
_STEPS = ["step_" + "[0-9]" * digits for digits in range(1, 13)]
_IN_A_CHECKPOINT = (MANIFEST, STATE, MODEL, EMA, IDENTIFIERS_NAME)
FILES = [
    *(f"{step}/{name}" for step in _STEPS for name in _IN_A_CHECKPOINT),
    *(f"{step}{ending}" for step in _STEPS for ending in ("", "_ema")),
    *(CONFIG_FILE, "checkpoint"),
]
"""Patterns of the files to fetch. None of them matches code."""
LOG_IN = "(hf auth login, or HF_TOKEN)"
_REASONS = {
    "GatedRepoError": f"is gated: ask for access on its page, then log in {LOG_IN}",
    "RepositoryNotFoundError": f"no such repository, or it is private: log in {LOG_IN}",
    "RevisionNotFoundError": "no such revision",
    "LocalEntryNotFoundError": "the Hub cannot be reached, and the files are not in its cache",
}
"""Explanations of errors of the Hub's client, by the name of their class."""


class Address(NamedTuple):
    """A repository OWNER/NAME and its branch, tag or commit (None: the main branch)."""

    repo: str
    revision: str | None

    @property
    def folder_name(self) -> str:
        """The name of its folder of results on this machine."""
        return self.repo.replace("/", "--")

    def fetch(self) -> tuple[Path, str]:
        """Fetch the missing files of the checkpoint; return its folder in the Hub's cache, named
        like the commit, and the address with this commit. Raise CheckpointError if it fails.
        """
        named = f"{SCHEME}{self.repo}" + (f"@{self.revision}" if self.revision else "")
        try:
            from huggingface_hub import snapshot_download, utils
        except ImportError:
            missing = "huggingface-hub is not installed (pip install '.[hub]')"
            raise CheckpointError(f"{named}: {missing}") from None
        if is_quiet := not (sys.stderr.isatty() or utils.are_progress_bars_disabled()):
            utils.disable_progress_bars()
        try:
            folder = snapshot_download(
                self.repo, revision=self.revision, allow_patterns=FILES, etag_timeout=10
            )
        except Exception as error:  # From the Hub, the network or the client.
            names = [kind.__name__ for kind in type(error).__mro__]
            reason = next((_REASONS[name] for name in names if name in _REASONS), reason_of(error))
            raise CheckpointError(f"{named}: {reason}") from None
        finally:
            if is_quiet:
                utils.enable_progress_bars()
        if not Path(folder).is_dir():
            raise CheckpointError(f"{named}: there is no checkpoint in this repository")
        return Path(folder), f"{SCHEME}{self.repo}@{Path(folder).name}"


def parse_address(path: Path | str) -> Address | None:
    """Return the parts of an address, or None for a path on this machine.

    Raises:
        CheckpointError: the text begins like an address but is none.
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
    """Return an error message of the Hub's client as one line."""
    return shown((str(error).splitlines() or [type(error).__name__])[0], 300)
