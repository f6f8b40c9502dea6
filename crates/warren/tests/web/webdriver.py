"""A headless Chromium, driven over HTTP with WebDriver (a W3C standard). Uses only Python's standard library."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
TAB, ENTER, ESCAPE, SPACE, SHIFT = "\ue004", "\ue007", "\ue00c", " ", "\ue008"
PORT = 9515
PATIENCE = 30


class Browser:
    """A browser window. `with` closes it and ends its processes."""

    def __enter__(self):
        for program in ("chromium", "chromedriver"):
            if not shutil.which(program):
                raise SystemExit(f"{program} is not installed; on Debian: apt install chromium chromium-driver")
        self.home = tempfile.mkdtemp(prefix="wt-browser-")
        environment = {**os.environ, "HOME": self.home, "TMPDIR": self.home}
        self.driver = subprocess.Popen(
            ["chromedriver", f"--port={PORT}"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.base = f"http://127.0.0.1:{PORT}"
        wait("the driver answers", lambda: self.answers())
        arguments = (
            "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
            "--disable-sync --disable-dev-shm-usage --hide-scrollbars --window-size=1280,1000"
        ).split()
        options = {"args": [*arguments, f"--user-data-dir={self.home}/profile"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/session/{session['sessionId']}"
        return self

    def __exit__(self, *_):
        try:
            self.ask("DELETE", "")
        except (OSError, RuntimeError):
            pass
        self.driver.terminate()
        self.driver.wait(PATIENCE)
        shutil.rmtree(self.home, ignore_errors=True)

    def answers(self):
        try:
            return self.ask("GET", "/status")["ready"]
        except OSError:
            return False

    def ask(self, method, path, body=None):
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def go(self, address):
        self.ask("POST", "/url", {"url": address})

    def run(self, script, *arguments):
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def chrome(self, command, **parameters):
        return self.ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def click(self, selector):
        found = self.ask("POST", "/element", {"using": "css selector", "value": selector})
        self.ask("POST", f"/element/{found[ELEMENT]}/click")

    def type(self, keys):
        """Presses keys one after another in the focused element."""
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": strokes}]})

    def back_tab(self):
        strokes = [("keyDown", SHIFT), ("keyDown", TAB), ("keyUp", TAB), ("keyUp", SHIFT)]
        strokes = [{"type": kind, "value": key} for kind, key in strokes]
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": strokes}]})

    def log(self):
        return self.ask("POST", "/se/log", {"type": "browser"})

    def screen(self, width, height, dark=False, phone=False):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self.chrome("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.chrome("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, name):
        """Saves a screenshot of the whole page if WARREN_SCREENSHOTS names a directory."""
        directory = os.environ.get("WARREN_SCREENSHOTS")
        if directory:
            Path(directory).mkdir(parents=True, exist_ok=True)
            shot = self.chrome("Page.captureScreenshot", captureBeyondViewport=True)
            Path(directory, f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


def wait(what, condition):
    """Waits until a condition holds, for a long time, because the machine may be busy."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > end:
            raise SystemExit(f"not within {PATIENCE} s: {what}")
        time.sleep(0.1)
    return value
