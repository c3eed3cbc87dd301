"""Opens a report's page in a headless browser."""

import json
import os
import re
import shutil
import subprocess

import pytest
from patience import patience

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def browser():
    """The path of a browser; skips the test if there is none."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no chromium")
    return found


def look(page, script, folder, screenshot=None):
    """Open a page and run JavaScript in it; return its result (None with a screenshot) and the console's messages."""
    harness = (
        "<script>addEventListener('load', () => { let found; try { found = (() => {" + script + "})(); } catch (error) "
        "{ found = {error: String(error)}; } const out = document.createElement('pre'); out.id = 'outcome'; "
        "out.textContent = JSON.stringify(found); document.body.appendChild(out); });</script>"
    )
    copy = folder / "looked-at.html"
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", harness + "</body>"), encoding="utf-8")
    command = [browser(), "--headless", "--disable-gpu", "--no-first-run", "--window-size=1400,2600"]
    command += ["--no-sandbox"] if os.geteuid() == 0 else []
    command += [f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=4000"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND"]  # no network
    command += [f"--screenshot={screenshot}"] if screenshot else ["--dump-dom"]
    done = subprocess.run(
        [*command, copy.as_uri()], capture_output=True, text=True, check=False, timeout=patience(60), env=os.environ
    )
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    if screenshot:
        return None, said
    found = re.search(r'<pre id="outcome">(.*?)</pre>', done.stdout, re.S)
    assert found, done.stderr[-2000:]
    text = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return json.loads(text), said
