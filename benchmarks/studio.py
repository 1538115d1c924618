"""Times the studio in headless Chromium, from the click on Draw to pictures in the page.

    python -m benchmarks.studio CHECKPOINT --images 1 4

It needs the extra `studio`, Playwright and Chromium.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.compare import ROOT
from benchmarks.machine import machine
from benchmarks.table import aligned, number, spread

ADDRESS = re.compile(r"http://\S+")
OBSERVE = """() => {
    let last = null
    const look = async () => {
        const image = document.querySelector('#generated img')
        if (!image || image.src === last) return
        last = image.src
        await image.decode()
        window.shown.push(performance.now())
    }
    window.shown = []
    new MutationObserver(look).observe(document, {
        subtree: true, childList: true, attributes: true, attributeFilter: ['src'],
    })
}"""
CLICK = "button => { window.shown = []; window.clicked = performance.now(); button.click() }"
ENDED = "s => window.shown.length && performance.now() - window.shown.at(-1) > 1000 * s"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument(
        "--quiet", type=float, default=4, help="seconds without a new picture that mark the end"
    )
    parser.add_argument("--images", type=int, nargs="+", default=[1, 4], help="images per click")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="path of its program")
    options = parser.parse_args(arguments)
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "scripts/studio.py", f"checkpoint={options.checkpoint}"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as studio:
        try:
            assert studio.stdout is not None
            address = next(url[0] for url in map(ADDRESS.search, studio.stdout) if url)
            with sync_playwright() as playwright:
                chromium = {"executable_path": options.chromium, "args": ["--no-sandbox"]}
                page = playwright.chromium.launch(**chromium).new_page()
                page.goto(address)
                page.evaluate(OBSERVE)
                rows = [row(page, n, options.rounds, options.quiet) for n in options.images]
        finally:
            studio.terminate()
    print(f"{machine()}; seconds after a click, median (least–greatest)\n{aligned(rows)}")


def row(page: Any, images: int, rounds: int, quiet: float) -> dict[str, str]:
    """Draws images several times; the first time has its own column."""
    panel = page.get_by_role("tabpanel").filter(visible=True)
    panel.get_by_label("images").fill(str(images))
    clicks = []
    for _ in range(rounds + 1):
        panel.get_by_role("button", name="Draw").evaluate(CLICK)
        page.wait_for_function(ENDED, arg=quiet, timeout=600_000)
        seconds = page.evaluate("() => window.shown.map(time => (time - window.clicked) / 1000)")
        clicks.append((seconds[0], seconds[-1], len(seconds)))
    first, last, pictures = zip(*clicks[1:], strict=True)
    return {
        "images": str(images),
        "first picture": spread(first),
        "whole": spread(last),
        "pictures": spread(pictures),
        "the first click": f"{number(clicks[0][0])}, {number(clicks[0][1])}",
    }


if __name__ == "__main__":
    main()
