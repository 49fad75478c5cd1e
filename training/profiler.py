"""A trace of a few training steps, and a table of the operations that take most of their time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, schedule

from runtime.errors import CheckpointError, disk_errors
from runtime.files import require_no_link


@contextmanager
def profiled(
    run_dir: Path, device: str, say: Callable[[str], None]
) -> Iterator[Callable[[], object]]:
    """Trace steps 5 to 7 of this start into `profile/trace.json.gz` in the run's folder; the steps
    before them compile and warm up. Yield the function to call after each step.

    Args:
        device: cpu or cuda; the table is sorted by the time spent on it.
        say: prints a line.
    """
    path = run_dir / "profile" / "trace.json.gz"
    on_cuda = device == "cuda"

    def write(done: profile) -> None:
        with disk_errors(path, CheckpointError):
            path.parent.mkdir(exist_ok=True)
            require_no_link(path.parent)
            done.export_chrome_trace(str(path))
        by = f"self_{'device' if on_cuda else 'cpu'}_time_total"
        table = done.key_averages().table(sort_by=by, row_limit=10)
        say(f"profile: {path}; the slowest operations:\n{table}")

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    steps = schedule(wait=3, warmup=1, active=3, repeat=1)
    with profile(activities=activities, schedule=steps, on_trace_ready=write) as running:
        yield running.step
    if running.step_num < 5:
        made = f"this start made {running.step_num}"
        say(f"profile: no training step was traced: the trace takes steps 5 to 7, and {made}")
