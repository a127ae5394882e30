"""A headless Chromium, driven by its own protocol over two pipes: no driver program, no port.

    with Browser(program) as browser:
        page = browser.open("http://127.0.0.1:4445/", width=1200, height=900)
        page.wait("document.title === 'Phalanx'")

Every wait has a deadline and raises Late with what the page showed instead. Not thread-safe.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ("chromium-headless-shell", "chromium")
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "Space": 32, "End": 35, "Home": 36}


class Late(Exception):
    """What was waited for has not come."""


class Refused(Exception):
    """The browser answered with an error, or the page's script threw."""


def find_program():
    return next((path for path in map(shutil.which, PROGRAMS) if path), None)


class Browser:
    def __init__(self, program, home=None, preferences=None):
        """`home`: of whoever uses it, with their certificates in .pki/nssdb; none: that of this process. `preferences`: of its profile."""
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._to_write = os.pipe()
        self._from_read, to_answer = os.pipe()
        flags = ["--headless", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
                 "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
                 "--font-render-hinting=none", "--force-color-profile=srgb", "--user-data-dir=" + self._folder.name]
        if preferences:
            profile = os.path.join(self._folder.name, "Default")
            os.mkdir(profile)
            with open(os.path.join(profile, "Preferences"), "w", encoding="utf-8") as file:
                json.dump(preferences, file)
        environment = dict(os.environ, TZ="UTC", LC_ALL="C.UTF-8", **({"HOME": str(home)} if home else {}))
        if os.getuid() == 0:
            flags.append("--no-sandbox")  # Chromium has none for root; it loads pages of ours alone
        # It reads orders from descriptor 3 and writes answers to 4.
        script = f'exec "$@" 3<&{to_read} 4>&{to_answer}'
        self._log = open(os.path.join(self._folder.name, "log"), "w+b")
        self._process = subprocess.Popen(["sh", "-c", script, "sh", program, *flags], pass_fds=(to_read, to_answer),
                                         stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                                         env=environment)
        os.close(to_read)
        os.close(to_answer)
        self._received = b""
        self._number = 0
        self._events = []
        self._pages = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for descriptor in (self._to_write, self._from_read):
            os.close(descriptor)
        self._log.close()
        self._folder.cleanup()

    def _receive(self, deadline):
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._from_read], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self._from_read, 1 << 20) if ready else b""
            if not data:
                self._log.seek(0)
                raise Late("the browser says nothing: " + self._log.read().decode(errors="replace")[-2000:])
            self._received += data
        message, self._received = self._received.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, patience=30, **parameters):
        """The answer of the browser. Events that come before it are kept for take_events."""
        self._number += 1
        order = {"id": self._number, "method": method, "params": parameters}
        if session:
            order["sessionId"] = session
        os.write(self._to_write, json.dumps(order).encode() + b"\0")
        deadline = time.monotonic() + patience
        while True:
            message = self._receive(deadline)
            if message.get("id") != self._number:
                self._events.append(message)
            elif "error" in message:
                raise Refused(f"{method}: {message['error']['message']}")
            else:
                return message["result"]

    def take_events(self):
        events, self._events = self._events, []
        return events

    def await_event(self, method, seconds=30):
        deadline = time.monotonic() + seconds
        while not any(event.get("method") == method for event in self._events):
            self._events.append(self._receive(deadline))

    def open(self, url, **view):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(domain + ".enable")
        page.view(**view)
        self._pages.append(page)
        page.go(url)
        return page

    def close_pages(self):
        for page in self._pages:
            page.close()
        self._pages = []


class Page:
    def __init__(self, browser, session, target):
        self._browser = browser
        self._session = session
        self._target = target

    def close(self):
        self._browser.call("Target.closeTarget", targetId=self._target)

    def call(self, method, **parameters):
        return self._browser.call(method, session=self._session, **parameters)

    def view(self, width=1200, height=900, phone=False, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def go(self, url):
        answer = self.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise Refused(f"{url}: {answer['errorText']}")
        self.wait("document.readyState === 'complete'")

    def ask(self, expression, patience=30):
        """The value of a JavaScript expression, of a promise what becomes of it."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True,
                           patience=patience)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise Refused(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait(self, condition, seconds=30):
        """Until the condition holds; it is looked at whenever the page changes."""
        script = """new Promise((resolve) => {
          const holds = () => { try { return !!(%s); } catch (error) { return false; } };
          const end = (value) => { clearTimeout(timer); clearInterval(look); observer.disconnect(); resolve(value); };
          const check = () => { if (holds()) end(true); };
          const observer = new MutationObserver(check);
          const timer = setTimeout(() => end(holds()), %d);
          const look = setInterval(check, 100);  // pictures and navigation change no node
          observer.observe(document, {subtree: true, childList: true, characterData: true, attributes: true});
          check();
        })""" % (condition, seconds * 1000)
        if not self.ask(script, patience=seconds + 10):
            raise Late(f"not true within {seconds} s: {condition}\n--- the page:\n{self.text()[:3000]}")

    def text(self):
        return self.ask("document.body.innerText")

    def press(self, key, shift=False):
        code = KEYS[key]
        text = {"Enter": "\r", "Space": " "}.get(key)
        common = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code,
                  "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown",
                  **common, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def picture(self, whole=False):
        """PNG of what is in view, or of the whole page."""
        parameters = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            parameters = {"captureBeyondViewport": True,
                          "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", **parameters)["data"])
