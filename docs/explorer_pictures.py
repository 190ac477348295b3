"""Take the pictures of docs/explorer.md: `python docs/explorer_pictures.py`.

Needs chromium and playwright (the `dev` extra). Starts an explorer of the shipped models, opens a
link per picture, and writes PNGs to docs/images.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

IMAGES = Path(__file__).parent / "images"
NEAR = "length=96&near=1&example=4"  # all distractors have keys that needles could have
PICTURES = {
    # name: (width, height, scheme, address)
    "explorer": (1280, 870, "light", f"view=sequence&a=diff_v2&a.head=1.1&{NEAR}"),
    "explorer-two": (1280, 1010, "light", "view=sequence&a=diff_v1&b=standard&row=36&example=3"),
    "explorer-map": (1280, 980, "light", "view=map&a=diff_v1&a.head=1.2&row=62"),
    "explorer-map-dark": (1280, 980, "dark", "view=map&a=diff_v1&a.head=1.2&row=62"),
    "explorer-lambda": (1280, 1110, "light", f"view=sequence&a=diff_v2&a.head=1.1&a.lam=0&{NEAR}"),
    "explorer-study": (1280, 900, "light", "view=study&test=7&reading=cancelling"),
    "explorer-phone": (390, 1500, "dark", f"view=sequence&a=diff_v2&a.head=1.1&{NEAR}"),
    "explorer-phone-map": (390, 1500, "light", "view=map&a=diff_v1"),
}


def main() -> None:
    """Start a server, take every picture, and stop it."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "antiphase", "explore", "--no-browser", "--port", "0", "-q"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = re.search(r"http://\S+", server.stdout.readline())[0]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            for name, (width, height, scheme, state) in PICTURES.items():
                page = browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme=scheme
                )
                page.goto(f"{address}#{state}")
                page.wait_for_selector("#view > *")
                page.wait_for_timeout(1500)
                path = IMAGES / f"{name}.png"
                page.screenshot(path=path)
                page.close()
                Image.open(path).convert("RGB").quantize(256, kmeans=3).save(
                    path, optimize=True
                )  # few colours, small files
                print(f"{path.name}: {path.stat().st_size / 1000:.0f} KB")
            browser.close()
    finally:
        server.send_signal(2)
        server.wait(20)


if __name__ == "__main__":
    main()
