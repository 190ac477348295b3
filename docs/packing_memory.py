"""Measure the memory of `antiphase data pack` by the size of the text.

    python docs/packing_memory.py --megabytes 100 1000

Prints the largest resident memory of any of its processes, and CPU seconds. The text is one file:
Python's standard library, again and again, each copy of a file with its number.
"""

import argparse
import itertools
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from antiphase.tasks.text.corpus import documents


def write_text(path: Path, size: int) -> None:
    """Write so many bytes of text."""
    with path.open("w", encoding="utf-8") as file:
        for number in itertools.count():
            for document in documents(["stdlib"]):
                file.write(f"# {number} {document.name}\n{document.text}\n")
                if file.tell() >= size:
                    return


def main() -> None:
    """Pack texts of several sizes, smallest first: the peak is that of the largest so far."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--tokenizer", default="bpe:4096")
    parser.add_argument("--processes", default="2")
    options = parser.parse_args()
    print("| MB of text | peak memory of a process, MB | CPU seconds |\n|---|---|---|")
    for size in sorted(options.megabytes):
        with tempfile.TemporaryDirectory() as place:
            text = Path(place) / "text.txt"
            write_text(text, size * 1_000_000)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = ["pack", str(text), "--tokenizer", options.tokenizer, "--quiet"]
            command += ["--out", f"{place}/packed", "--processes", options.processes]
            subprocess.run(
                [sys.executable, "-m", "antiphase", "data", *command],
                check=True,
                stdout=subprocess.DEVNULL,
                env={**os.environ},
            )
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
            print(f"| {size} | {used.ru_maxrss / 1024:.0f} | {cpu:.0f} |", flush=True)


if __name__ == "__main__":
    main()
