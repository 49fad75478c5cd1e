"""Standard output and standard error that cannot be written."""

import errno
import io
import os
import subprocess
import sys

import pytest

from runtime.output import Output


class Broken(io.StringIO):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.error: OSError | None = OSError(number, os.strerror(number))

    def write(self, text: str) -> int:
        if self.error:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE, errno.EIO])
def test_unwritable_text_is_dropped_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    broken, errors = Broken(number), io.StringIO()
    monkeypatch.setattr(sys, "stdout", Output(broken, "standard output"))
    monkeypatch.setattr(sys, "stderr", errors)
    for _ in range(3):
        sys.stdout.write("for people\n")
    warning = f"warning: standard output cannot be written: {os.strerror(number)}\n"
    # A closed pipe, as with `| head`, needs no warning.
    assert errors.getvalue() == ("" if number == errno.EPIPE else warning)
    broken.error = None
    sys.stdout.write("there is room again\n")
    assert broken.getvalue() == "there is room again\n"


PROGRAM = """
import os, sys
from runtime.output import guard_output
guard_output()
guarded = sys.stdout
guard_output()
assert sys.stdout is guarded
with open(sys.argv[1], "w") as file:
    print("\\u2581 for people", flush=True)
    print("\\u2581 for people", file=sys.stderr)
    file.write(str(file.fileno() > 2))
"""


@pytest.mark.parametrize("shell", [">&- 2>&-", ">&-", "> /dev/full 2>&1", "| true"])
def test_a_process_succeeds_wherever_its_output_goes(
    tmp_path_factory: pytest.TempPathFactory, shell: str
) -> None:
    result = tmp_path_factory.mktemp("out") / "result"
    line = f'"$0" -c "$1" "$2" {shell}'
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = ["bash", "-o", "pipefail", "-c", line, sys.executable, PROGRAM, str(result)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert result.read_text() == "True"  # No file received the number of a closed stream.
