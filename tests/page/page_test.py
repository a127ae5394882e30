#!/usr/bin/env python3
"""The status page in headless Chromium, of a real coordinator whose workers train, lose a rank and get it back:

    page_test.py PROGRAMS                  the tests
    page_test.py PROGRAMS --write docs     writes the pictures of docs/sight.md; some minutes

Skips (77) where there is no Chromium, which scripts/setup brings; under CI, which names PHALANX_EXIT_WITHOUT_TOOL, it
fails.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests"))

from page import browser  # noqa: E402
from support import cluster as clusters  # noqa: E402

PROGRAMS = None
FOR_EVER = 1_000_000
LIVE = "document.getElementById('live').textContent === 'live'"

# Of every text that is shown, its contrast to what is behind it, as WCAG counts it.
CONTRASTS = """(() => {
  const channels = (color) => color.match(/[0-9.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = channels(getComputedStyle(node).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  return [...document.body.querySelectorAll('*')].filter((node) => node.getClientRects().length > 0 &&
      [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim() !== '')).map((node) => {
    const style = getComputedStyle(node);
    const own = channels(node.closest('svg') ? style.fill : style.color);
    const both = [light(own), light(behind(node))].sort((a, b) => b - a);
    return [(both[0] + 0.05) / (both[1] + 0.05), node.textContent.slice(0, 40), style.color];
  });
})()"""

# Where the focus is, and whether one sees it there.
FOCUS = """(() => {
  const node = document.activeElement, style = getComputedStyle(node), box = node.getBoundingClientRect();
  return {what: node.tagName + ' ' + (node.getAttribute('href') || node.textContent.slice(0, 30)),
    seen: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 && box.width > 0 && box.left >= 0};
})()"""


def emoji_job(cluster, name, steps, more="", **replaced):
    """The file of the emoji job with so many steps, where its data is."""
    text = (SOURCE / "examples/emoji-captions.yaml").read_text(encoding="utf-8")
    changes = {"name: emoji-captions": f"name: {name}", "steps: 500": f"steps: {steps}",
               "warmup_steps: 60": f"warmup_steps: {min(60, max(1, steps // 4))}", "output: runs/emoji": f"output: runs/{name}"}
    for old, new in {**changes, **replaced}.items():
        assert old in text, old
        text = text.replace(old, new)
    path = cluster.folder / "emoji" / f"{name}.yaml"
    path.write_text(text + more, encoding="utf-8")
    return path


def make_data(cluster, count=None):
    subprocess.run(["/usr/bin/python3", SOURCE / "examples/make_emoji.py", cluster.folder / "emoji",
                    *(["--count", str(count)] if count else [])], check=True, capture_output=True, timeout=300)


def submit(cluster, path, *flags, **options):
    cluster.phalanx("submit", path, *flags, **options)
    return json.loads(cluster.phalanx("get", path.stem, "-o", "json"))["id"]


def id_of(job):
    return int(re.fullmatch(r"(?:job-)?([0-9]+)", str(job)).group(1))


def lose_a_rank(cluster, job):
    """Until the loss and the return of rank 3 are incidents of the job."""
    cluster.phalanx("inject", "--job", job, "--rank", "3", "--fault", "kill")
    cluster.await_job(job, lambda status: int(status.get("epoch", 1)) >= 3)


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = clusters.Cluster(PROGRAMS, ["--allow-inject"])
        cls.addClassCleanup(cls.cluster.__exit__, None, None, None)
        cls.cluster.start_worker("alpha", 4)
        cls.cluster.start_worker("beta", 3)
        make_data(cls.cluster, count=200)
        cls.done = submit(cls.cluster, emoji_job(cls.cluster, "done", 8), "--wait", seconds=200)
        cls.running = submit(cls.cluster, emoji_job(cls.cluster, "running", FOR_EVER, "  time_limit: 12h\n  checkpoint: {every: 1000}\n"))
        cls.cluster.await_job(cls.running, lambda status: int(status.get("last_step", {}).get("step", 0)) >= 3)
        lose_a_rank(cls.cluster, cls.running)
        cls.waiting = submit(cls.cluster, emoji_job(
            cls.cluster, "waiting", 10, **{"output: runs/waiting": "output: 'runs/<b>bold</b>'"}))
        cls.browser = browser.Browser(browser.find_program())
        cls.addClassCleanup(cls.browser.__exit__, None, None, None)

    def setUp(self):
        self.browser.take_events()
        self.addCleanup(self.browser.close_pages)

    def open(self, place="", **view):
        page = self.browser.open(f"http://{self.cluster.http}/{place}", **view)
        page.wait("document.getElementById('live').textContent !== 'connecting' && document.querySelector('main h2')")
        return page

    def open_job(self, job, **view):
        return self.open(f"#job-{id_of(job)}", **view)

    def test_overview_shows_nodes_devices_and_jobs_by_state(self):
        page = self.open()
        page.wait(LIVE)
        text = page.text()
        for words in ("2 nodes: 2 ready, 0 suspect, 0 disconnected. Devices: 6 used, 1 free.", "alpha", "beta"):
            self.assertIn(words, text)
        table = {title: page.ask(f"[...document.querySelectorAll('h2')].find((one) => one.textContent === '{title}')"
                                 ".nextElementSibling.textContent") for title in ("Running", "Queue", "Ended")}
        self.assertIn("running", table["Running"])
        self.assertIn("waiting", table["Queue"])
        self.assertIn("done", table["Ended"])
        self.assertEqual(page.ask("document.querySelectorAll('.devices a').length"), 6)

    def test_device_that_failed_its_check_is_told_in_words_also_by_a_coordinator_that_has_not_heard_its_worker(self):
        with clusters.Cluster(PROGRAMS) as other:
            faults = other.folder / "faults"
            faults.write_text("1 arithmetic\n", encoding="utf-8")
            worker = other.start_worker("gamma", 2, "--check-interval=600", f"--check-faults={faults}")
            page = self.browser.open(f"http://{other.http}/")
            page.wait("document.querySelector('.devices .failed')", seconds=60)
            self.assertIn("1 free, 1 failed.", page.text())
            self.assertIn("device 1 failed its check: arithmetic", page.text())
            chip = page.ask("(({textContent, ariaLabel}) => [textContent, ariaLabel])(document.querySelector('.devices .failed'))")
            self.assertEqual(chip[0], "1 ✗", "not by its colour alone")
            self.assertRegex(chip[1], "^device 1, failed its check: arithmetic")
            for dark in (False, True):
                page.view(dark=dark)
                self.assertEqual([one for one in page.ask(CONTRASTS) if one[0] < 4.5], [], f"dark={dark}")
            for process in (worker, other.coordinator):
                process.kill()
                process.wait()
            other.start_coordinator()
            page.wait("document.body.innerText.includes('1 disconnected')", seconds=60)
            self.assertIn("device 1 failed its check: arithmetic", page.text())
            self.assertIn("heard of –", page.text())

    def test_device_that_is_slow_is_marked_and_told_in_words(self):
        with clusters.Cluster(PROGRAMS, ["--allow-inject", "--heartbeat-interval=500ms"]) as other:
            other.start_worker("delta", 6)
            make_data(other, count=200)
            job = submit(other, emoji_job(other, "slowed", FOR_EVER))
            other.await_job(job, lambda status: int(status.get("last_step", {}).get("step", 0)) >= 3)
            other.phalanx("inject", "--job", job, "--rank", "1", "--fault", "slow:3")
            page = self.browser.open(f"http://{other.http}/")
            page.wait("document.querySelector('.devices .slow')", seconds=200)
            self.assertIn("6 used, 0 free, 1 slow.", page.text())
            self.assertRegex(page.text(), r"device 1 takes \d+\.\d\d times as long for its work as the other one with the same")
            chip = page.ask("(({textContent, ariaLabel}) => [textContent, ariaLabel])(document.querySelector('.devices .slow'))")
            self.assertEqual(chip[0], "1 !", "not by its colour alone")
            self.assertRegex(chip[1], r"^device 1, job \d+, takes \d")
            for dark in (False, True):
                page.view(dark=dark)
                self.assertEqual([one for one in page.ask(CONTRASTS) if one[0] < 4.5], [], f"dark={dark}")

    def test_changes_come_without_a_reload(self):
        page = self.open()
        page.ask("window.kept = true")
        job = submit(self.cluster, emoji_job(self.cluster, "sudden", 10))
        page.wait(f"document.querySelector('a[href=\"#job-{id_of(job)}\"]')", seconds=10)
        self.cluster.phalanx("cancel", job)
        page.wait("[...document.querySelectorAll('tr')].some((row) => /sudden.*Cancelled/.test(row.textContent))", seconds=10)
        self.assertTrue(page.ask("window.kept"))

    def test_keyboard_reaches_every_link_and_shows_where_it_is(self):
        page = self.open()
        places = []
        links = page.ask("[...document.querySelectorAll('a')].length")
        for _ in range(links):
            page.press("Tab")
            focus = page.ask(FOCUS)
            self.assertTrue(focus["seen"], focus)
            places.append(focus["what"])
        self.assertEqual(places[0], "A #content", "the first way is past the head of the page")
        self.assertIn(f"A #job-{id_of(self.done)}", places)

    def test_keyboard_walks_to_a_job_opens_its_incident_and_goes_back(self):
        page = self.open()
        for _ in range(50):
            page.press("Tab")
            if page.ask("document.activeElement.getAttribute('href')") == f"#job-{id_of(self.running)}":
                break
        page.press("Enter")
        page.wait("document.title.startsWith('running')")
        self.assertEqual(page.ask("document.activeElement.id"), "content")
        for _ in range(10):
            page.press("Tab")
            if page.ask("document.activeElement.tagName") == "SUMMARY":
                break
        self.assertTrue(page.ask(FOCUS)["seen"])
        page.press("Enter")
        page.wait("document.querySelector('details[open] img').naturalWidth > 0")
        # The page is drawn anew with each step: what is open stays so, and the focus where it is.
        points = page.ask("document.querySelector('polyline').getAttribute('points')")
        page.wait(f"document.querySelector('polyline').getAttribute('points') !== {json.dumps(points)}")
        self.assertEqual(page.ask("document.querySelectorAll('details[open]').length"), 1)
        self.assertEqual(page.ask("document.activeElement.tagName"), "SUMMARY")
        page.press("Tab", shift=True)
        page.ask("history.back()")
        page.wait("document.title === 'Phalanx'")

    def test_job_shows_curves_that_grow(self):
        page = self.open_job(self.running)
        self.assertEqual(page.ask("document.querySelectorAll('.charts svg polyline').length"), 2)
        label = page.ask("document.querySelector('figcaption').textContent")
        self.assertRegex(label, r"^Loss: from [0-9.]+ at step 1 to [0-9.]+ at step [0-9]+$")
        page.wait(f"document.querySelector('figcaption').textContent !== {json.dumps(label)}", seconds=60)

    def test_job_shows_timeline_incidents_and_events(self):
        page = self.open_job(self.running)
        page.wait("document.querySelector('img[src*=\"timeline.svg\"]').naturalWidth > 0")
        self.assertEqual(page.ask("[...document.querySelectorAll('img')].filter((one) => !one.alt).length"), 0)
        page.ask("document.querySelector('summary').click()")
        page.wait("document.querySelector('details[open] img').naturalWidth > 0")
        phases = page.ask("[...document.querySelectorAll('details[open] tbody tr')].map((row) => row.firstChild.textContent)")
        self.assertIn("detected", phases)
        self.assertIn("first_step", phases)
        self.assertIn("FaultInjected", page.text())

    def test_ended_job_shows_samples_and_is_not_followed(self):
        page = self.open_job(self.done)
        page.wait("document.getElementById('live').textContent === 'ended'")
        self.assertIn("Loss on the validation set", page.text())
        self.assertGreater(page.ask("[...document.querySelectorAll('h2')].find((one) => one.textContent === 'Samples')"
                                    ".parentElement.querySelectorAll('tbody tr').length"), 0)

    def test_phone_has_nothing_beside_the_screen(self):
        for width in (320, 390):
            for job in (None, self.running):
                page = self.open_job(job, width=width, height=800, phone=True) if job else self.open(
                    width=width, height=800, phone=True)
                self.assertEqual(page.ask("innerWidth"), width)
                wide = page.ask("""[...document.querySelectorAll('main *')].filter((one) => !one.closest('.wide') &&
                  one.getBoundingClientRect().right > innerWidth + 0.5).map((one) => one.outerHTML.slice(0, 200))""")
                self.assertEqual(wide, [])
                self.assertEqual(page.ask("document.scrollingElement.scrollWidth"), width)
        page = self.open(width=320, height=800, phone=True)
        small = page.ask("""[...document.querySelectorAll('main a')].map((one) => one.getBoundingClientRect())
          .filter((box) => box.width < 24 || box.height < 20).length""")
        self.assertEqual(small, 0, "links that a finger does not meet")

    def test_texts_are_read_in_light_and_dark(self):
        for dark in (False, True):
            for job in (None, self.running, self.done):
                page = self.open_job(job, dark=dark) if job else self.open(dark=dark)
                page.wait("document.readyState === 'complete'")
                weak = [one for one in page.ask(CONTRASTS) if one[0] < 4.5]
                self.assertEqual(weak, [], f"dark={dark}")

    def test_nothing_comes_from_elsewhere_and_no_script_fails(self):
        page = self.open()
        page.ask(f"location.hash = '#job-{id_of(self.running)}'")
        page.wait("document.querySelector('img[src*=\"timeline.svg\"]').naturalWidth > 0")
        events = self.browser.take_events()
        asked = [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]
        self.assertGreater(len(asked), 4)
        self.assertEqual([url for url in asked if not url.startswith(f"http://{self.cluster.http}/")], [])
        wrong = [one["params"] for one in events if one["method"] == "Runtime.exceptionThrown" or
                 (one["method"] == "Log.entryAdded" and one["params"]["entry"]["level"] == "error")]
        self.assertEqual(wrong, [])

    def test_job_that_waits_has_its_place_in_the_queue(self):
        page = self.open()
        words = r"/number 1, starts by \d/.test(document.body.innerText)"
        page.wait(words)
        row = page.ask(f"document.querySelector('a[href=\"#job-{id_of(self.waiting)}\"]').closest('tr').innerText")
        self.assertRegex(row, r"Queued\s+number 1, starts by \d")
        page = self.open_job(self.waiting)
        page.wait(words)
        self.assertRegex(page.text(), r"Place in the queue\s+number 1, starts by \d")

    def test_markup_in_a_job_is_text(self):
        page = self.open_job(self.waiting)
        self.assertIn("<b>bold</b>", page.text())
        self.assertFalse(page.ask("!!document.querySelector('b')"))

    def test_pages_in_the_background_hold_no_connection(self):
        # A browser has six to one host, which six pages would take, and the seventh never came.
        for _ in range(7):
            page = self.open()
            page.ask("""Object.defineProperty(document, 'hidden', {value: true, configurable: true});
              document.dispatchEvent(new Event('visibilitychange'))""")
        job = submit(self.cluster, emoji_job(self.cluster, "unseen", 10))
        seen = self.open()
        seen.wait("document.body.innerText.includes('unseen')")
        self.assertNotIn("unseen", page.text())
        page.call("Page.bringToFront")  # newer browsers hide what stands behind another page by themselves
        page.ask("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        page.wait("document.body.innerText.includes('unseen')")
        self.cluster.phalanx("cancel", job)

    def test_job_that_is_not_there_says_so(self):
        page = self.browser.open(f"http://{self.cluster.http}/#job-999")
        page.wait("document.body.innerText.includes('There is no such job')")

    def test_page_without_script_names_the_command(self):
        page = self.browser.open("about:blank")
        page.call("Emulation.setScriptExecutionDisabled", value=True)
        self.browser.take_events()
        page.call("Page.navigate", url=f"http://{self.cluster.http}/")
        self.browser.await_event("Page.loadEventFired")
        tree = page.call("DOM.getDocument", depth=-1)
        self.assertIn("phalanx list", json.dumps(tree))

    def test_curves_begin_where_they_did_after_a_restart_and_go_on(self):
        with clusters.Cluster(PROGRAMS) as other:
            other.start_worker("epsilon", 6)
            make_data(other, count=200)
            job = submit(other, emoji_job(other, "kept", FOR_EVER))
            other.await_job(job, lambda status: int(status.get("last_step", {}).get("step", 0)) >= 3)
            other.coordinator.kill()
            other.coordinator.wait()
            other.start_coordinator()
            page = self.browser.open(f"http://{other.http}/#job-{id_of(job)}")
            first = r"document.querySelector('figcaption')?.textContent.match(/^Loss: from [0-9.]+ at step 1 to [0-9.]+ at step ([0-9]+)$/)?.[1]"
            page.wait(first, seconds=60)
            last = page.ask(first)
            page.wait(f"Number({first}) > {last}", seconds=60)

    def test_coordinator_that_comes_back_is_followed_again(self):
        with clusters.Cluster(PROGRAMS) as other:
            page = self.browser.open(f"http://{other.http}/")
            page.wait(LIVE)
            other.coordinator.kill()
            other.coordinator.wait()
            page.wait("document.getElementById('live').textContent !== 'live'")
            other.start_coordinator()
            other.start_worker("late", 1)
            page.wait(LIVE + " && document.body.innerText.includes('late')", seconds=60)


def write_pictures(folder):
    """The emoji job with a loss on the way, as docs/sight.md shows it."""
    with clusters.Cluster(PROGRAMS, ["--allow-inject"]) as cluster, browser.Browser(browser.find_program()) as chromium:
        cluster.start_worker("node-1", 4)
        cluster.start_worker("node-2", 3)
        make_data(cluster)
        job = submit(cluster, emoji_job(cluster, "emoji-captions", 500, "  time_limit: 2h\n"))
        submit(cluster, emoji_job(cluster, "next-in-line", 50))
        cluster.await_job(job, lambda status: int(status.get("last_step", {}).get("step", 0)) >= 200, seconds=900)
        lose_a_rank(cluster, job)
        cluster.await_job(job, lambda status: int(status["last_step"]["step"]) >= 300, seconds=900)
        page = chromium.open(f"http://{cluster.http}/", width=1000, height=640)
        page.wait(LIVE)
        save(page, folder / "page-cluster.png")
        phone = chromium.open(f"http://{cluster.http}/", width=390, height=760, phone=True, dark=True)
        phone.wait(LIVE)
        save(phone, folder / "page-phone.png")
        page.go(f"http://{cluster.http}/#job-{id_of(job)}")
        page.wait("document.querySelector('summary')")
        page.ask("document.querySelector('summary').click()")
        cluster.await_job(job, lambda status: status["phase"] == "Succeeded", seconds=1200)
        page.wait("document.getElementById('live').textContent === 'ended' && document.body.innerText.includes('Samples')")
        page.wait("[...document.querySelectorAll('img')].every((one) => one.naturalWidth > 0 || !one.closest('details[open]'))")
        page.ask("document.querySelector('main').lastElementChild.remove()")  # the events, which are long
        page.ask("[...document.querySelectorAll('h2')].pop().remove()")
        page.ask(f"""for (const one of document.querySelectorAll('dd'))
          one.textContent = one.textContent.replace('{cluster.folder}', '/data')""")
        page.ask("scrollTo(0, document.body.scrollHeight)")
        page.wait("[...document.querySelectorAll('img')].every((one) => one.naturalWidth > 0 || one.closest('details:not([open])'))")
        save(page, folder / "page-job.png", whole=True)


def save(page, path, whole=False):
    path.write_bytes(page.picture(whole))
    if shutil.which("pngquant"):
        subprocess.run(["pngquant", "--force", "--output", path, path], check=True)
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    if browser.find_program() is None:
        print("no Chromium here")
        sys.exit(int(os.environ.get("PHALANX_EXIT_WITHOUT_TOOL", "77")))
    PROGRAMS = pathlib.Path(sys.argv.pop(1))
    if sys.argv[1:2] == ["--write"]:
        write_pictures(pathlib.Path(sys.argv[2]))
    else:
        unittest.main(verbosity=2)
