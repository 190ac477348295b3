"""What the explorer costs: prints the figures of docs/explorer.md.

python -m tests.explorer.costs
"""

import json
import resource
import time

from antiphase.explorer.models import ModelShelf, model_entry
from antiphase.explorer.state import parse_state
from antiphase.explorer.view import Viewer
from antiphase.models.gguf import smollm2


def measured(title: str, viewer: Viewer, **fields: str) -> None:
    """Print the CPU time of a view, and the size of its answer."""
    named = {name.replace("_", "."): value for name, value in fields.items()}
    named = {name: value.replace("-", "_") for name, value in named.items()}
    state = parse_state(named, viewer.shelf.entries, "")
    begin = time.process_time()
    found = viewer.view(state)
    seconds = time.process_time() - begin
    print(f"{title}: {seconds:.2f} s of CPU, {len(json.dumps(found)) / 1000:.0f} KB")


def hover() -> None:
    """Print how long a hover takes in Chromium, on two models of 512 tokens."""
    from tests.explorer.browser import chromium, page_of, serving, settled

    with serving("diff_v1", "diff_v2") as address, chromium() as browser, page_of(browser) as page:
        for length in (64, 512):
            page.goto(f"{address}#a=diff_v1&b=diff_v2&length={length}")
            settled(page)
            taken = page.evaluate(
                """() => Array.from({length: 21}, (_, k) => {
                  const token = document.querySelector(`[data-map="A1"] [data-i="${20 + k}"]`);
                  const begin = performance.now();
                  token.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
                  getComputedStyle(token).backgroundColor;
                  document.body.offsetHeight;
                  return performance.now() - begin;
                }).sort((a, b) => a - b)"""
            )
            print(f"hover, two models, {length} tokens: median {taken[10]:.1f} ms")


def main() -> None:
    """Print all."""
    print(f"imports: {time.process_time():.1f} s of CPU")
    viewer = Viewer(ModelShelf([model_entry(n) for n in ("diff_v1", "standard", "smollm2")]))
    measured("first view of diff_v1, loading included", viewer, a="diff-v1")
    measured("its next example", viewer, a="diff-v1", example="1")
    measured("the same with lam x 0.5", viewer, a="diff-v1", example="1", a_lam="0.5")
    measured("another head", viewer, a="diff-v1", example="1", a_lam="0.5", a_head="0.1")
    smollm2()
    begin = time.process_time()
    viewer.shelf.get("smollm2")
    print(f"loading SmolLM2: {time.process_time() - begin:.1f} s of CPU")
    measured("SmolLM2 at 512 tokens", viewer, a="smollm2", length="512")
    measured("another head of it", viewer, a="smollm2", length="512", a_head="3.1")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak memory: {peak:.1f} GB")
    hover()


if __name__ == "__main__":
    main()
