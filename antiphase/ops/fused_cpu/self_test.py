"""Try the built kernels on this processor: `python -m antiphase.ops.fused_cpu.self_test LIBRARY`.

Runs in a process of its own, because a kernel this processor cannot run kills the process.
"""

import json
import sys
from pathlib import Path

from antiphase.ops.fused_cpu import native

if __name__ == "__main__":
    try:
        verdict: dict[str, object] = {"rates": native.trial(Path(sys.argv[1]))}
    except native.Unavailable as reason:
        verdict = {"failure": str(reason)}
    print(json.dumps(verdict))
