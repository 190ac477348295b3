"""Open a corpus, as a process of a run does, and write the peak of this process's memory.

python -m tests.training.start_up TEXT OUT    (alone or under torchrun; writes OUT-RANK.json)
"""

import json
import os
import resource
import sys
from pathlib import Path

from antiphase.tasks import Language

data = Language(text=sys.argv[1], length=64, size=1000)
data.examples(range(100))
found = {
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "tokens": len(data.packed.tokens("train")),
}
Path(f"{sys.argv[2]}-{os.environ['RANK']}.json").write_text(json.dumps(found))
