"""A trace of a few training steps, and the operations that take most of their time."""

import gzip
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from runtime.errors import CheckpointError, disk_errors
from runtime.files import replacing, require_no_link
from runtime.ranks import Ranks
from runtime.text import shown

FOLDER = "profile"
# Steps of this start, from 1: the first ones compile and warm up.
FIRST_STEP, LAST_STEP = 5, 7
_NUM_OPERATIONS = 10


class StepProfiler:
    """Traces steps FIRST_STEP to LAST_STEP of this start, with what lies between them, and writes
    `profile/trace_step_N.json.gz` into the run's folder, N being the last of them. Its block
    surrounds the training.

    Args:
        ranks: of CUDA, the kernels on the device are recorded, too, and make the table.
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
        self._say(f"profile: {path}; the dearest operations, each without those that it calls:")
        for line in self._dearest():
            self._say(line)

    def _dearest(self) -> list[str]:
        """Return a line for each of the operations whose own time is longest."""
        where = DeviceType.CUDA if self._on_cuda else DeviceType.CPU
        own = "self_device_time_total" if self._on_cuda else "self_cpu_time_total"
        found = [
            (getattr(each, own), each.count, each.key)
            for each in self._profile.key_averages()
            if each.device_type == where and not each.is_user_annotation
        ]
        total = sum(time for time, _, _ in found)
        return [
            f"{time / total:6.1%} {time / 1e3:10.3f} ms {count:6} x  {shown(name, 60)}"
            for time, count, name in sorted(found, reverse=True)[:_NUM_OPERATIONS]
        ]
