"""Take the pictures of the pages.

It needs the extras `serve` and `dev`, Chromium, and a store of runs:

    oddlm eval countdown --n 8 --alpha 0,8 --temperature 0,1 --seeds 0,1 --limit 12 \\
        --length 24 --steps 12 --eos late --store runs
    python docs/pictures.py
"""

import argparse
import io
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

ASSETS = Path(__file__).parent / "assets"
SIZES = {1280: 1000, 390: 844}


def picture(
    browser: Browser,
    url: str,
    path: Path,
    *,
    width: int,
    dark: bool,
    hover: str | None,
    click: list[str],
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": SIZES[width]},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        device_scale_factor=1.5 if width < 600 else 1,
    )
    page = context.new_page()
    page.goto(url)
    page.wait_for_load_state("networkidle")
    for target in click:
        page.click(target)
        page.wait_for_timeout(500)
    if click:
        page.evaluate("scrollTo(0, 0)")
    if hover:
        page.hover(hover)
    page.wait_for_timeout(500)
    image = (
        Image.open(io.BytesIO(page.screenshot()))
        .convert("RGB")
        .quantize(192, dither=Image.Dither.NONE)
    )
    image.save(path, optimize=True)
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", type=Path, default=Path("runs"))
    store = parser.parse_args().store
    command = [sys.executable, "-m", "oddlm", "serve", "--port", "0", "--store", str(store)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as playwright,
    ):
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for width in SIZES:
            for theme in ("light", "dark"):
                how = {"width": width, "dark": theme == "dark"}
                hover = "#diverse .samples .changed >> nth=-1" if width > 600 else None
                picture(
                    browser,
                    url,
                    ASSETS / f"explorer-{width}-{theme}.png",
                    hover=hover,
                    click=[],
                    **how,
                )
                picture(
                    browser,
                    f"{url}/runs",
                    ASSETS / f"runs-{width}-{theme}.png",
                    hover=None,
                    click=["#table button >> nth=0"],
                    **how,
                )
        browser.close()
        server.terminate()


if __name__ == "__main__":
    main()
