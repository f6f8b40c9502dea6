"""Uses the exit's page in a real browser: by mouse, by keyboard alone, in both colour schemes, and on a 360 px screen.

    WARREN_TOKEN=... browser.py http://127.0.0.1:9467

The exit has two clients with sessions, `laptop` and `workshop`, and serves WireGuard. `WARREN_CLIENTS` says how many clients there
are. Prints its measurements, and ends with 1 at the first error.
"""

import os
import sys
import time
from pathlib import Path

from webdriver import ENTER, ESCAPE, TAB, Browser, wait

# A page of the table must be shown within this many seconds, so that a search keeps up with typing.
QUICK = 1.0

# The contrast that WCAG 2.1 requires for text of this size.
LEAST_CONTRAST = 4.5

CONTRAST = """
const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
const ground = (element) => {
  for (let one = element; one; one = one.parentElement) {
    const colour = numbers(getComputedStyle(one).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
};
let worst = [99, ""];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
  if (element.closest(".unseen, thead, script, noscript, option")) continue;
  const style = getComputedStyle(element);
  const text = numbers(element.closest("svg") ? style.fill : style.color);
  const [one, two] = [light(text), light(ground(element))];
  const contrast = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
  if (contrast < worst[0]) worst = [contrast, element.outerHTML.slice(0, 120)];
}
return worst;
"""

NAMELESS = """
const name = (one) => (one.labels?.length ? [...one.labels].map((label) => label.textContent).join() : "")
  || one.getAttribute("aria-label") || one.textContent || "";
return [...document.querySelectorAll("button, input, select, textarea, summary")]
  .filter((one) => one.checkVisibility() && !name(one).trim()).map((one) => one.outerHTML);
"""

# Buttons, and links that are not part of a text, that are too small for a thumb. A phone does not show the heads of a table.
SMALL = """
return [...document.querySelectorAll("button, nav a, td.name a")]
  .filter((one) => one.checkVisibility() && !one.closest("thead") && one.offsetHeight < 36).map((one) => one.outerHTML);
"""


def main():
    address, token = sys.argv[1], os.environ["WARREN_TOKEN"]
    with Browser() as browser:
        browser.screen(1280, 900)
        log_in(browser, address, token)
        contrast = colours(browser)
        slowest = many_clients(browser)
        by_keyboard(browser)
        contrast = min(contrast, views(browser, "dark", True))
        on_a_phone(browser)
        the_log_says_who(browser)
        nothing_elsewhere(browser, address, token)
    print(
        f"measured: logged in, saw two sessions, invited, added a phone, renamed, limited, disabled, forwarded and removed by keyboard alone; "
        f"a page of the clients after {1000 * slowest:.0f} ms at most; contrast at least {contrast:.1f}; "
        "no sideways scrolling and no control below 36 px at 360 px; nothing loaded from elsewhere"
    )


def log_in(browser, address, token):
    browser.go(f"{address}/")
    wait("the field for the token has the focus", lambda: active(browser) == "token")
    browser.picture("gate")
    browser.type("wrong" + ENTER)
    wait("a wrong token is refused", lambda: "not the exit's token" in shown(browser, "#gate-said"))
    check(active(browser) == "token", "the focus is where the token is typed again")
    browser.run("document.getElementById('token').value = arguments[0]", token)
    browser.click("#gate button")
    only_connected(browser)
    check(shown(browser, "#connected") == f"2 of {all_clients()}", "the summary counts sessions")
    check("10.66." in shown(browser, "#clients"), "inner addresses are shown")
    wait("round trips are shown", lambda: shown(browser, "#clients").count(" ms") == 2)
    wait("rates are drawn", lambda: browser.run("return document.querySelectorAll('#chart path.rate').length") == 2)
    check("nothing yet" not in browser.run("return document.querySelector('#chart svg').ariaLabel"), "the chart is told in words")


def colours(browser):
    worst = 99
    for scheme, dark in (("light", False), ("dark", True)):
        browser.screen(1280, 900, dark=dark)
        browser.picture(scheme)
        contrast, where = browser.run(CONTRAST)
        check(contrast >= LEAST_CONTRAST, f"{scheme}: contrast {contrast:.2f} of {where}")
        worst = min(worst, contrast)
    check(browser.run(NAMELESS) == [], f"controls without a name: {browser.run(NAMELESS)}")
    return worst


def only_connected(browser):
    """Shows the two clients with sessions, wherever they stand among the others."""
    wait("there is a choice of clients", lambda: browser.run("return document.getElementById('which').checkVisibility()"))
    choose(browser, "which", "connected")
    wait("both sessions are shown", lambda: shown(browser, "#clients").count("connected for") == 2)


def choose(browser, identifier, value):
    script = "const one = document.getElementById(arguments[0]); one.value = arguments[1]; one.dispatchEvent(new Event('change'))"
    browser.run(script, identifier, value)


def many_clients(browser):
    """Pages, searches and orders among all clients. Returns the longest time that one took."""
    slowest = 0
    address = browser.run("return document.querySelector('#clients td.addresses span').textContent")
    choose(browser, "which", "all")
    if all_clients() > 50:
        wait("the first page has fifty", lambda: browser.run("return document.querySelectorAll('#clients tbody tr').length") == 50)
        browser.picture("many")
        for what, act, seen in (
            ("a search", lambda: (browser.run("document.getElementById('search').focus()"), browser.type("host-077")), lambda: names(browser) == ["host-077"]),
            ("an address", lambda: search(browser, address), lambda: len(names(browser)) == 1),
            ("nothing", lambda: search(browser, "nobody"), lambda: shown(browser, "#no-match") != ""),
            ("all again", lambda: search(browser, ""), lambda: len(names(browser)) == 50),
            ("the next page", lambda: browser.click("#clients-later"), lambda: shown(browser, "#clients-page-now").startswith("Page 2 ")),
            ("an order", lambda: browser.click("[data-sort=traffic]"), lambda: names(browser)[:1] in (["laptop"], ["workshop"])),
            ("a state", lambda: choose(browser, "which", "never"), lambda: "laptop" not in names(browser) and len(names(browser)) == 50),
        ):
            act()
            start = time.monotonic()
            wait(f"{what} is shown", seen)
            slowest = max(slowest, time.monotonic() - start)
        order = browser.run("return document.querySelector('[data-sort=traffic]').closest('th').getAttribute('aria-sort')")
        check(order == "descending", "the order is told to a screen reader")
        check(slowest < QUICK, f"a page of the clients took {slowest:.2f} s")
        choose(browser, "sort", "name")
    return slowest


def names(browser):
    return browser.run("return [...document.querySelectorAll('#clients td.name')].filter((one) => one.checkVisibility()).map((one) => one.textContent)")


def search(browser, text):
    script = "const one = document.getElementById('search'); one.value = arguments[0]; one.dispatchEvent(new Event('input'))"
    browser.run(script, text)


def all_clients():
    return int(os.environ.get("WARREN_CLIENTS", "2"))


def by_keyboard(browser):
    """Uses only the keyboard, not the mouse."""
    browser.screen(1280, 900)
    browser.ask("POST", "/refresh")
    only_connected(browser)
    tab_to(browser, "invite")
    browser.type(ENTER)
    wait("the dialog has the focus on the name", lambda: active(browser) == "name")
    # People do not type names as the exit wants them. The page derives a name, and shows it before it is used.
    browser.type("Phone of M\u00e1ry <b>!")
    wait("the name is shown", lambda: shown(browser, "#name-shown").endswith("phone-of-mary-b"))
    check(browser.run("return document.querySelector('#name-shown b')") is None, "what is typed is text")
    browser.run("document.getElementById('name').value = ''")
    browser.type("Laptop")
    wait("a name that is taken gets another", lambda: shown(browser, "#name-shown") == "laptop is a client already. The name will be: laptop-2")
    browser.picture("invite-clash")
    browser.run("document.getElementById('name').select()")
    browser.type("Phone of M\u00e1ry")
    browser.type(ENTER)
    wait("it is shown first", lambda: shown(browser, "#name-shown").endswith("phone-of-mary"))
    check(browser.run("return document.getElementById('line').value") == "", "a name that was not seen is not used")
    browser.type(TAB)
    check(active(browser) == "hours", "the time follows the name")
    tab_to_text(browser, "Create invitation")
    browser.picture("invite")
    browser.type(ENTER)
    line = wait("the line is shown", lambda: browser.run("return document.getElementById('line').value"))
    check(line.startswith("warren join warren1:"), f"this is no line to run: {line[:30]}")
    check(active(browser) == "copy", "the focus is on what is to be done next")
    browser.picture("invited")
    tab_to_text(browser, "As a QR code")
    browser.type(ENTER)
    wait("the code is drawn", lambda: browser.run("return document.querySelector('#qr svg').checkVisibility()"))
    browser.picture("invited-qr")
    browser.type(ESCAPE)
    wait("the dialog is closed and the focus is back", lambda: active(browser) == "invite")
    check(browser.run("return document.getElementById('line').value + document.getElementById('qr').innerHTML") == "", "the line is shown once")
    wait("the invitation is listed", lambda: "phone-of-mary" in shown(browser, "#invitations"))

    phone_by_keyboard(browser)
    client_by_keyboard(browser)
    remove_by_keyboard(browser)


def phone_by_keyboard(browser):
    downloads = Path(browser.home, "downloads")
    browser.chrome("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))
    tab_to(browser, "add-phone", back=True)
    browser.type(ENTER)
    wait("the dialog has the focus on the name", lambda: active(browser) == "phone-name")
    browser.type("Anna's very old phone")
    wait("the name is shown", lambda: shown(browser, "#phone-name-shown").endswith("annas-very-old-phone"))
    browser.type(ENTER)
    wait("the code is drawn", lambda: browser.run("return document.querySelector('#phone-qr svg')?.checkVisibility()"))
    browser.picture("phone-code")
    tab_to(browser, "phone-file")
    check(shown(browser, "#phone-file") == "Download annas-very-old.conf", "the file has a name that the app takes")
    browser.type(ENTER)
    text = wait("the file is there", lambda: next((file.read_text() for file in downloads.glob("*.conf")), ""))
    key = next(line.split(" = ")[1] for line in text.splitlines() if line.startswith("PrivateKey"))
    check(len(key) == 44 and "[Peer]" in text and "Endpoint = " in text, f"this is no configuration: {text!r}")
    browser.type(ESCAPE)
    wait("one Escape does not lose the key", lambda: "only copy" in shown(browser, "#phone-warning"))
    browser.picture("phone-warning")
    browser.type(ESCAPE)
    wait("the second one closes", lambda: not browser.run("return document.getElementById('phone-dialog').open"))
    left = browser.run("return document.documentElement.outerHTML + JSON.stringify({ ...sessionStorage }) + JSON.stringify({ ...localStorage })")
    check(key not in left and browser.run("return document.querySelector('#phone-qr svg')") is None, "the key is left in the page")
    address = browser.run("return document.getElementById('phone-file').getAttribute('href')")
    check(address is None, "the file can still be downloaded")


def client_by_keyboard(browser):
    tab_to_text(browser, "laptop")
    browser.type(ENTER)
    wait("the client's view has the focus", lambda: active(browser) == "client-title" and shown(browser, "#client-title") == "laptop")
    wait("its day is drawn", lambda: browser.run("return document.querySelectorAll('#client-chart path.rate').length") == 2)
    check("nothing yet" not in browser.run("return document.querySelector('#client-chart svg').ariaLabel"), "the chart is told in words")
    check("10.66." in shown(browser, "#client-addresses") and "connected for" in shown(browser, "#client-state"), "its figures are shown")
    browser.picture("client")
    forwards_by_keyboard(browser)

    tab_to(browser, "limit", back=True)
    browser.type(ENTER)
    wait("the dialog has the focus on the rate", lambda: active(browser) == "limit-number")
    browser.type("20" + ENTER)
    wait("the limit is shown", lambda: shown(browser, "#client-limit") == "20 Mbit/s each way")
    tab_to(browser, "rename", back=True)
    browser.type(ENTER)
    wait("the dialog has the focus on the name", lambda: active(browser) == "new-name")
    browser.type("Anna's Laptop")
    wait("the name is shown", lambda: shown(browser, "#new-name-shown").endswith("annas-laptop"))
    browser.picture("rename")
    browser.type(ENTER)
    wait("it has another name", lambda: shown(browser, "#client-title") == "annas-laptop" and "connected for" in shown(browser, "#client-state"))
    wait("what was done is listed, under the earlier name too", lambda: "renamed to annas-laptop" in shown(browser, "#client-audit") and "rate limit 20mbit" in shown(browser, "#client-audit"))
    for before, after, state in (("Disable", "Enable", "disabled"), ("Enable", "Disable", "")):
        tab_to(browser, "disable")
        check(focused(browser) == before, f"the button says {before}")
        browser.type(ENTER)
        wait("the page asks first", lambda: shown(browser, "#confirm-title") == f"{before} annas-laptop?")
        check(focused(browser) == "Cancel", "the button that changes nothing has the focus")
        tab_to(browser, "confirm-do")
        browser.type(ENTER)
        wait("the button offers the way back", lambda: shown(browser, "#disable") == after and state in shown(browser, "#client-state"))
    browser.run("history.back()")
    wait("the browser's own button leads back", lambda: not browser.run("return document.getElementById('client-view').checkVisibility()"))


def remove_by_keyboard(browser):
    choose(browser, "which", "connected")
    wait("workshop is shown", lambda: "workshop" in shown(browser, "#clients"))
    tab_to_text(browser, "workshop")
    browser.type(ENTER)
    wait("the client's view has the focus", lambda: shown(browser, "#client-title") == "workshop" and active(browser) == "client-title")
    tab_to(browser, "remove")
    browser.type(ENTER)
    wait("the page asks first", lambda: shown(browser, "#confirm-title") == "Remove workshop?")
    check(focused(browser) == "Cancel", "the button that changes nothing has the focus")
    browser.picture("remove")
    browser.type(ENTER)
    wait("the question is gone", lambda: not browser.run("return document.getElementById('confirm-dialog').open"))
    check(shown(browser, "#client-title") == "workshop", "nothing was removed")
    check(active(browser) == "remove", "the focus is back")
    browser.type(ENTER)
    tab_to(browser, "confirm-do")
    browser.type(ENTER)
    wait("all clients are shown", lambda: browser.run("return document.getElementById('overview-view').checkVisibility()"))
    wait("the focus is where the client was", lambda: active(browser) == "clients-title")
    choose(browser, "which", "all")
    search(browser, "workshop")
    wait("the client is gone", lambda: shown(browser, "#no-match") != "")
    search(browser, "annas-laptop")
    wait("the other one stays", lambda: names(browser) == ["annas-laptop"])
    browser.run("location.hash = '#client/workshop'")
    wait("its view says that it is gone", lambda: "No client has this name" in shown(browser, "#client-view"))
    browser.run("location.hash = ''")
    wait("all clients are shown", lambda: browser.run("return document.getElementById('overview-view').checkVisibility()"))


def views(browser, name, dark):
    """Looks at the views that the first test of colours has not seen."""
    worst = 99
    browser.screen(1280, 900, dark=dark)
    for hash, title in (("#client/annas-laptop", "client-title"), ("#audit", "audit-title"), ("", "clients-title")):
        browser.run("location.hash = arguments[0]", hash)
        wait(f"{title} is shown", lambda: active(browser) == title)
        browser.picture(f"{name}-{title.removesuffix('-title')}")
        contrast, where = browser.run(CONTRAST)
        check(contrast >= LEAST_CONTRAST, f"{title} in {name}: contrast {contrast:.2f} of {where}")
        worst = min(worst, contrast)
        check(browser.run(NAMELESS) == [], f"controls without a name: {browser.run(NAMELESS)}")
    return worst


def the_log_says_who(browser):
    browser.screen(1280, 900)
    browser.run("location.hash = '#audit'")
    wait("the log is shown", lambda: active(browser) == "audit-title")
    wait("the newest entry is the removal", lambda: "removed" in browser.run("return document.querySelector('#audit tbody tr').innerText"))
    first = browser.run("return document.querySelector('#audit tbody tr').innerText")
    check("workshop" in first and "root" in first and "page from 127.0.0.1" in first, f"the entry does not say who: {first}")
    check("by command" in shown(browser, "#audit") or "command" in shown(browser, "#audit"), "commands are in it")
    browser.run("const one = document.getElementById('audit-search'); one.value = 'annas-very'; one.dispatchEvent(new Event('input'))")
    wait("it can be searched", lambda: browser.run("return document.querySelectorAll('#audit tbody tr').length") == 1)
    check("enrolled for WireGuard" in shown(browser, "#audit"), "the phone is in it")
    browser.run("location.hash = ''")
    wait("all clients are shown", lambda: active(browser) == "clients-title")


def forwards_by_keyboard(browser):
    tab_to(browser, "forwards-open")
    browser.type(ENTER)
    wait("the dialog has the focus on the ports", lambda: active(browser) == "forward-ports")
    check(shown(browser, "#forwards-title") == "Forwards to laptop", "the title names the client")
    browser.type("udp/443" + ENTER)
    wait("a port of the exit is refused", lambda: "this exit listens there" in shown(browser, "#forward-said"))
    check(active(browser) == "forward-ports", "the focus is where the ports are typed again")
    browser.picture("forward-refused")
    browser.run("document.getElementById('forward-form').reset()")
    browser.type("tcp/8443" + TAB + "443")
    tab_to_text(browser, "Add forward")
    browser.type(ENTER)
    wait("the forward is listed", lambda: "tcp/8443 to 443" in shown(browser, "#forwards"))
    check(active(browser) == "forward-ports", "the next one can be typed")
    check(shown(browser, "#forward-said") == "", "the refusal is gone")
    browser.picture("forwards")
    tab_to_text(browser, "Remove tcp/8443 to 443")
    browser.type(ENTER)
    wait("the forward is gone", lambda: browser.run("return document.getElementById('no-forwards').checkVisibility()"))
    browser.type("udp/5000" + ENTER)
    wait("another one is listed", lambda: "udp/5000" in shown(browser, "#forwards"))
    browser.type(ESCAPE)
    wait("the focus is back", lambda: active(browser) == "forwards-open")
    wait("the view shows it", lambda: "udp/5000" in shown(browser, "#client-forwards"))


def on_a_phone(browser):
    for name, dark in (("phone", False), ("phone-dark", True)):
        browser.screen(360, 740, dark=dark, phone=True)
        wide = browser.run("return document.scrollingElement.scrollWidth")
        check(wide <= 360, f"the page is {wide} px wide on 360")
        browser.picture(name)
        contrast, where = browser.run(CONTRAST)
        check(contrast >= LEAST_CONTRAST, f"{name}: contrast {contrast:.2f} of {where}")
    small = browser.run(SMALL)
    check(small == [], f"too small for a thumb: {small}")
    browser.click("#invite")
    wait("the dialog is open", lambda: active(browser) == "name")
    check(browser.run("return document.getElementById('invite-dialog').getBoundingClientRect().right") <= 360, "the dialog fits")
    browser.picture("phone-invite")
    browser.type(ESCAPE)
    for hash, title in (("#client/annas-laptop", "client-title"), ("#audit", "audit-title")):
        browser.run("location.hash = arguments[0]", hash)
        wait(f"{title} is shown", lambda: active(browser) == title)
        wide = browser.run("return document.scrollingElement.scrollWidth")
        check(wide <= 360, f"{title} is {wide} px wide on 360")
        small = browser.run(SMALL)
        check(small == [], f"too small for a thumb: {small}")
        browser.picture(f"phone-{title.removesuffix('-title')}")
        contrast, where = browser.run(CONTRAST)
        check(contrast >= LEAST_CONTRAST, f"{title} on a phone: contrast {contrast:.2f} of {where}")
    browser.run("location.hash = '#client/annas-laptop'")
    wait("the client is shown", lambda: active(browser) == "client-title")
    tab_to(browser, "forwards-open")
    browser.type(ENTER)
    wait("the forwards are shown", lambda: active(browser) == "forward-ports")
    box = browser.run("const box = document.getElementById('forwards-dialog').getBoundingClientRect(); return [box.left, box.right]")
    check(box[0] >= 0 and box[1] <= 360, f"the dialog does not fit: {box}")
    browser.picture("phone-forwards")
    contrast, where = browser.run(CONTRAST)
    check(contrast >= LEAST_CONTRAST, f"forwards: contrast {contrast:.2f} of {where}")
    browser.type(ESCAPE)
    browser.run("location.hash = ''")
    wait("all clients are shown", lambda: active(browser) == "clients-title")


def nothing_elsewhere(browser, address, token):
    loaded = browser.run("return performance.getEntriesByType('resource').map((one) => one.name)")
    check(all(name.startswith(f"{address}/") for name in loaded) and len(loaded) > 4, f"loaded from elsewhere: {loaded}")
    check(not any(token in name for name in loaded), "the token is in an address")
    # The browser may report the wrong token (401), and the refused port and the client that is gone (409), but no policy violation and no script error.
    expected = ("401", "409")
    bad = [entry["message"] for entry in browser.log() if entry["level"] == "SEVERE" and not any(code in entry["message"] for code in expected)]
    check(bad == [], f"the browser complains: {bad}")
    # An injected script does not run.
    ran = browser.run(
        "window.ran = false; const script = document.createElement('script'); try { script.textContent = 'window.ran = true'; } catch { return false; }"
        "document.body.append(script); return window.ran"
    )
    check(ran is False, "the policy lets a strange script run")
    browser.click("#leave")
    wait("the token is forgotten", lambda: browser.run("return sessionStorage.length") == 0)
    left = browser.run("return document.body.textContent")
    check("annas-laptop" not in left and "10.66." not in left, "figures are left after the token is forgotten")


def tab_to(browser, identifier, back=False):
    for _ in range(120):
        if active(browser) == identifier:
            return
        browser.back_tab() if back else browser.type(TAB)
    raise SystemExit(f"the keyboard does not get to {identifier}")


def tab_to_text(browser, text):
    for _ in range(120):
        if focused(browser) == text:
            check(browser.run("return getComputedStyle(document.activeElement).outlineStyle") != "none", f"nothing shows the focus on {text}")
            return
        browser.type(TAB)
    raise SystemExit(f"the keyboard does not get to {text}")


def active(browser):
    return browser.run("return document.activeElement.id")


def focused(browser):
    return browser.run("return document.activeElement.textContent").strip()


def shown(browser, selector):
    return browser.run("return document.querySelector(arguments[0]).innerText", selector)


def check(holds, sentence):
    if not holds:
        raise SystemExit(f"does not hold: {sentence}")


if __name__ == "__main__":
    main()
