"""A shell command at the end of training, however it ends."""

import os
import signal
import subprocess

from runtime.errors import ConfigError
from runtime.schema import Seconds
from training.callbacks.base import CALLBACKS, Callback, Run


class Notify(Callback):
    command: str
    """its environment has RUN_FOLDER, RUN_STEP, RUN_OUTCOME (finished, stopped, preempted or
    failed), RUN_REASON and RUN_BEST_SCORE; the last two may be empty"""
    timeout: Seconds = 30.0
    """seconds until the command and all that it has started are killed"""

    def end(self, run: Run, outcome: str, why: str) -> None:
        score = "" if run.best_score is None else str(run.best_score)
        env = {"RUN_FOLDER": str(run.folder), "RUN_STEP": str(run.step), "RUN_OUTCOME": outcome}
        env = os.environ | env | {"RUN_REASON": why, "RUN_BEST_SCORE": score}
        process = subprocess.Popen(self.command, shell=True, env=env, start_new_session=True)
        try:
            code = process.wait(self.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise ConfigError(f"the command was killed after {self.timeout:g} s") from None
        if code:
            raise ConfigError(f"the command ended with exit code {code}")


CALLBACKS.add("notify", Notify)
