"""A trace of a few training steps, and the operations that take most of their time."""

import gzip
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from runtime.errors import CheckpointError, disk_errors
from runtime.files import replacing, require_no_link
from runtime.ranks import Ranks

FOLDER = "profile"
# Steps of this start, from 1: the first ones compile and warm up.
FIRST_STEP, LAST_STEP = 5, 7
_NUM_OPERATIONS = 10


class StepProfiler:
    """Traces steps FIRST_STEP to LAST_STEP of this start, with what lies between them, and writes
    `profile/trace_step_N.json.gz` into the run's folder, N being the last of them. Its block
    surrounds the training.

    Args:
        ranks: of CUDA, the kernels on the device are recorded, too, and order the table.
        say: prints a line for people.
    """

    def __init__(self, run_dir: Path, ranks: Ranks, say: Callable[[str], None]) -> None:
        self._folder, self._ranks, self._say = run_dir / FOLDER, ranks, say
        self._num_steps, self._tracing = 0, False
        self._on_cuda = ranks.device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_cuda else [])]
        self._profile = profile(activities=activities)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        if self._tracing:
            self._profile.stop()
        if self._num_steps < LAST_STEP:
            made = f"this start made {self._num_steps} steps, and {LAST_STEP} are needed"
            self._say(f"profile: no trace: {made}")

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Surround optimizer step `step`.

        Raises:
            CheckpointError: the disk refused the trace.
        """
        self._num_steps += 1
        if self._num_steps == FIRST_STEP:
            self._profile.start()
            self._tracing = True
        yield
        if self._num_steps == LAST_STEP:
            self._profile.stop()
            self._tracing = False
            self._ranks.mark(f"the profile, after step {step}", long=True)
            self._write(self._folder / f"trace_step_{step}.json.gz")

    def _write(self, path: Path) -> None:
        with disk_errors(path, CheckpointError), tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(plain))
            path.parent.mkdir(exist_ok=True)
            require_no_link(path.parent)
            with (
                plain.open("rb") as trace,
                replacing(path) as file,
                gzip.open(file, "wb") as packed,
            ):
                shutil.copyfileobj(trace, packed)
        key = f"self_{'device' if self._on_cuda else 'cpu'}_time_total"
        table = self._profile.key_averages().table(sort_by=key, row_limit=_NUM_OPERATIONS)
        self._say(f"profile: {path}; the dearest operations:\n{table}")
