"""Evaluate a saved model and kill this process, as `kill -9` would, after some forward passes.

python -m tests.evaluation.killed_evaluation MODEL OUT FORWARD_PASSES
"""

import os
import signal
import sys
import time
from pathlib import Path

from antiphase.evaluation.evaluate import EvaluationOptions, evaluate_model
from antiphase.pretrained.base_model import load_base


def main() -> None:
    """Run until killed."""
    folder, out, passes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    base = load_base(folder)
    done = 0

    def count(*_: object) -> None:
        nonlocal done
        done += 1
        if done > passes:
            time.sleep(0.5)  # what was answered before is being written
            os.kill(os.getpid(), signal.SIGKILL)

    base.model.register_forward_pre_hook(count)
    options = EvaluationOptions(tasks=["lambada", "arc_easy"], limit=4)
    evaluate_model(base.model, base.tokenizer, "tiny", options, out, quiet=True)


if __name__ == "__main__":
    main()
