"""Uses the exit's page in a real browser: by mouse, by keyboard alone, in both colour schemes, and on a 360 px screen.

    WARREN_TOKEN=... browser.py http://127.0.0.1:9467

The exit has two clients with sessions, `laptop` and `workshop`. Prints its measurements, and ends with 1 at the
first error.
"""

import os
import sys

from webdriver import ENTER, ESCAPE, TAB, Browser, wait

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


def main():
    address, token = sys.argv[1], os.environ["WARREN_TOKEN"]
    with Browser() as browser:
        browser.screen(1280, 900)
        log_in(browser, address, token)
        contrast = colours(browser)
        by_keyboard(browser)
        on_a_phone(browser)
        nothing_elsewhere(browser, address, token)
    print(
        f"measured: logged in, saw two sessions, invited, forwarded and revoked by keyboard alone; contrast at least {contrast:.1f}; "
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
    wait("both sessions are shown", lambda: shown(browser, "#clients").count("connected") == 2)
    check(shown(browser, "#connected") == "2 of 2", "the summary counts sessions")
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


def by_keyboard(browser):
    """Uses only the keyboard, not the mouse."""
    browser.screen(1280, 900)
    browser.ask("POST", "/refresh")
    wait("the token is kept by the tab", lambda: shown(browser, "#clients").count("connected") == 2)
    tab_to(browser, "invite")
    browser.type(ENTER)
    wait("the dialog has the focus on the name", lambda: active(browser) == "name")
    browser.type("phone-of-mary" + TAB)
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

    forwards_by_keyboard(browser)
    tab_to_text(browser, "Revoke workshop")
    browser.type(ENTER)
    wait("it is asked first", lambda: shown(browser, "#remove-title") == "Revoke workshop?")
    check(focused(browser) == "Cancel", "what changes nothing has the focus")
    browser.picture("revoke")
    browser.type(ENTER)
    wait("the question is gone", lambda: not browser.run("return document.getElementById('remove-dialog').open"))
    check("workshop" in shown(browser, "#clients"), "nothing was revoked")
    check(focused(browser) == "Revoke workshop", "the focus is back")
    browser.type(ENTER)
    tab_to(browser, "remove-do")
    browser.type(ENTER)
    wait("the client is gone", lambda: "workshop" not in shown(browser, "#clients"))
    check(active(browser) == "clients-title", "the focus is where the client was")
    check("laptop" in shown(browser, "#clients"), "the other one stays")


def forwards_by_keyboard(browser):
    tab_to_text(browser, "Forwards laptop")
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
    wait("the focus is back, with the number", lambda: focused(browser) == "Forwards (1) laptop")


def on_a_phone(browser):
    for name, dark in (("phone", False), ("phone-dark", True)):
        browser.screen(360, 740, dark=dark, phone=True)
        wide = browser.run("return document.scrollingElement.scrollWidth")
        check(wide <= 360, f"the page is {wide} px wide on 360")
        browser.picture(name)
        contrast, where = browser.run(CONTRAST)
        check(contrast >= LEAST_CONTRAST, f"{name}: contrast {contrast:.2f} of {where}")
    small = browser.run(
        "return [...document.querySelectorAll('button')].filter((one) => one.checkVisibility() && one.offsetHeight < 36).map((one) => one.outerHTML)"
    )
    check(small == [], f"too small for a thumb: {small}")
    browser.click("#invite")
    wait("the dialog is open", lambda: active(browser) == "name")
    check(browser.run("return document.getElementById('invite-dialog').getBoundingClientRect().right") <= 360, "the dialog fits")
    browser.picture("phone-invite")
    browser.type(ESCAPE)
    tab_to_text(browser, "Forwards (1) laptop")
    browser.type(ENTER)
    wait("the forwards are shown", lambda: active(browser) == "forward-ports")
    box = browser.run("const box = document.getElementById('forwards-dialog').getBoundingClientRect(); return [box.left, box.right]")
    check(box[0] >= 0 and box[1] <= 360, f"the dialog does not fit: {box}")
    browser.picture("phone-forwards")
    contrast, where = browser.run(CONTRAST)
    check(contrast >= LEAST_CONTRAST, f"forwards: contrast {contrast:.2f} of {where}")
    browser.type(ESCAPE)


def nothing_elsewhere(browser, address, token):
    loaded = browser.run("return performance.getEntriesByType('resource').map((one) => one.name)")
    check(all(name.startswith(f"{address}/") for name in loaded) and len(loaded) > 4, f"loaded from elsewhere: {loaded}")
    check(not any(token in name for name in loaded), "the token is in an address")
    # The browser may report the wrong token (401) and the refused port (409), but no policy violation and no script error.
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
    check("laptop" not in browser.run("return document.body.textContent"), "figures are left after the token is forgotten")


def tab_to(browser, identifier):
    for _ in range(40):
        if active(browser) == identifier:
            return
        browser.type(TAB)
    raise SystemExit(f"the keyboard does not get to {identifier}")


def tab_to_text(browser, text):
    for _ in range(40):
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
