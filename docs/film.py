"""Films the explorer as it plays a run: `python docs/film.py` (needs `serve`, `dev`, Chromium).

Every step of the first recording is one frame of docs/assets/explorer.gif.
"""

import io
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

OUT = Path(__file__).parent / "assets" / "explorer.gif"
WIDTH, HEIGHT = 960, 650
STAGE_ALONE = """
    header, #controls, .files, .keys, .charts { display: none }
    main { display: block !important }
"""
STEP_MS, LAST_MS = 500, 4000
COLOURS = 128


def frames(page: Page) -> list[Image.Image]:
    """The page after every step, from the masked canvas to the finished samples."""
    steps = int(page.locator("#scrub").get_attribute("max") or 0)
    shots = []
    for step in range(steps + 1):
        page.evaluate(
            "step => { const s = document.querySelector('#scrub');"
            " s.value = step; s.dispatchEvent(new Event('input')); }",
            step,
        )
        page.wait_for_timeout(150)
        shots.append(page.screenshot())
    return [Image.open(io.BytesIO(shot)).convert("RGB") for shot in shots]


def film(url: str) -> list[Image.Image]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT},
            color_scheme="light",
            reduced_motion="reduce",
            bypass_csp=True,  # the page takes no styles but its own
        )
        page.goto(url)
        page.wait_for_load_state("networkidle")
        page.add_style_tag(content=STAGE_ALONE)
        found = frames(page)
        browser.close()
    return found


def main() -> None:
    command = [sys.executable, "-m", "oddlm", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = film(server.stdout.readline().split()[-1])
        finally:
            server.terminate()
    palette = found[-1].quantize(COLOURS, dither=Image.Dither.NONE)
    images = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in found]
    times = [STEP_MS] * (len(images) - 1) + [LAST_MS]
    images[0].save(
        OUT, save_all=True, append_images=images[1:], duration=times, loop=0, optimize=True
    )
    print(f"{OUT}: {len(images)} frames, {OUT.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
