"""The page in a real browser, at the width of a phone and of a desk."""

import html
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from vtool.report import write_report

pytestmark = pytest.mark.browser

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
OFFLINE = (
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
MEASURE = """<script>addEventListener("load", () => {
  const seen = (list) => [...document.querySelectorAll(list)];
  for (const details of seen("details")) details.open = OPEN;
  const root = document.documentElement;
  const measured = {
    window: innerWidth,
    page: Math.max(root.scrollWidth, document.body.scrollWidth),
    charts: seen("figure svg").map((svg) => Math.round(svg.getBoundingClientRect().width)),
    line: getComputedStyle(
      document.querySelector("figure svg path[style*='--run-0']") ?? root).stroke,
    broken: seen("img").filter((image) => image.complete && !image.naturalWidth).length,
    images: seen("img").length,
    wide: seen("main *").filter((item) => !item.closest(".scroll, svg"))
      .filter((item) => item.getBoundingClientRect().right > innerWidth + 1)
      .map((item) => item.outerHTML.slice(0, 80)),
    sideways: seen(".scroll").filter((item) => item.scrollWidth > item.clientWidth + 1)
      .filter((item) => !item.querySelector(".confusion"))
      .map((item) => item.ariaLabel),
  };
  parent.postMessage(JSON.stringify(measured), "*");
});</script></body>"""
# A window of Chromium is at least 500 pixels wide, so the page is held in a frame.
FRAME = """<!DOCTYPE html><title>measured</title>
<iframe src="asking.html" style="border:0;width:WIDTHpx;height:900px"></iframe><script>
addEventListener("message", (message) => {
  document.body.replaceChildren(message.data);
  document.title = "done";
});</script>"""


def measure(page: Path, profile: Path, width: int, is_open: bool) -> dict[str, Any]:
    """Return a browser's measurements of the page, by a script that its policy lets run once."""
    if BROWSER is None:
        pytest.skip("not run: there is no Chromium here, so nobody looked at the page in a browser")
    text = page.read_text(encoding="utf-8").replace(
        "default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'", 1
    )
    asking = page.with_name("asking.html")
    asking.write_text(
        text.replace("</body>", MEASURE.replace("OPEN", str(is_open).lower())), encoding="utf-8"
    )
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
    text = dump_dom(frame, profile, "--window-size=1500,1000", "--virtual-time-budget=5000")
    found: dict[str, Any] = json.loads(
        html.unescape(text.partition("<body>")[2].partition("</body>")[0])
    )
    return found


def dump_dom(page: Path, profile: Path, *options: str) -> str:
    """Return a page as a browser has it after its scripts have run.

    A Chromium that has written the page does not always end, as where two start at once: it is not
    waited for.
    """
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", *OFFLINE]
    command += [*options, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]
    log = profile.with_name(f"{profile.name}.log")
    lines = []
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        ) as browser,
    ):
        assert browser.stdout is not None
        end = partial(os.killpg, browser.pid, signal.SIGKILL)
        late = Timer(60, end)
        late.start()
        for line in browser.stdout:
            lines.append(line)
            if line.rstrip().endswith("</html>"):
                break
        late.cancel()
        end()
    text = "".join(lines)
    assert text.rstrip().endswith("</html>"), f"{text}\n{log.read_text()}"
    return text


PAIRS = [(1, 390, True), (3, 1400, False)]
"""Each number of runs, width and state once; `make test-all` has every combination."""


@pytest.mark.parametrize(
    ("count", "width", "is_open"),
    [
        pytest.param(*case, marks=[] if case in PAIRS else pytest.mark.full)
        for case in product((1, 3), (390, 1400), (True, False))
    ],
)
def test_the_page_fits_its_window(
    make_run: Callable[..., Path], tmp_path: Path, count: int, width: int, is_open: bool
) -> None:
    runs = [make_run(f"a-rather-long-name-of-a-run-{index}") for index in range(count)]
    seen = measure(write_report(runs, tmp_path / "page.html"), tmp_path / "profile", width, is_open)
    assert seen["window"] == width
    assert seen["page"] <= width, "nothing scrolls sideways"
    assert not seen["wide"], "nothing sticks out"
    assert not seen["sideways"], "each table is read without scrolling it; a matrix may scroll"
    assert len(seen["charts"]) == 6
    assert all(250 < chart < 500 for chart in seen["charts"])
    assert seen["images"] > 0
    assert seen["broken"] == 0
    assert seen["line"].startswith("rgb("), "the charts take their colors from the page"
