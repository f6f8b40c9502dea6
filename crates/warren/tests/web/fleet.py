"""Reads the table of the fleet's exits from an exit's page in a real browser, and prints it as JSON.

    WARREN_TOKEN=... fleet.py http://127.0.0.1:9467
"""

import json
import os
import sys

from webdriver import Browser, wait

ROWS = """
const table = document.getElementById("fleet-exits");
if (!table.checkVisibility()) return [];
return [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent));
"""

with Browser() as browser:
    browser.screen(1280, 900)
    browser.go(f"{sys.argv[1]}/")
    wait("the field for the token", lambda: browser.run("return document.activeElement.id") == "token")
    browser.run("document.getElementById('token').value = arguments[0]", os.environ["WARREN_TOKEN"])
    browser.click("#gate button")
    rows = wait("the exits of the fleet", lambda: browser.run(ROWS))
    browser.picture("fleet")
    print(json.dumps(rows))
