#!/usr/bin/env python3
"""The status page over TLS, in a Chromium that has a certificate of its person, or has none:

    tls_page_test.py PROGRAMS

Exits with 77, and says why, where there is no Chromium that shows certificates (apt-get install chromium), or nothing that
puts them where it finds them (certutil and pk12util of libnss3-tools; scripts/setup fetches them).
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests"))

from page import browser  # noqa: E402
from support import cluster as clusters  # noqa: E402

PROGRAMS = None
LIVE = "document.getElementById('live').textContent === 'live'"


def find(program):
    dependencies = os.environ.get("PHALANX_DEPS_DIR", os.path.expanduser("~/.cache/phalanx/deps"))
    return shutil.which(program) or shutil.which(program, path=f"{dependencies}/nss")


def do(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL, **options).stdout.strip()


class Authority:
    def __init__(self, folder):
        self.folder = folder
        self.certificate = folder / "ca.pem"

    def make(self, *what):
        """The certificate and its key."""
        made = pathlib.Path(do(SOURCE / "scripts/make_ca", self.folder, *what))
        return made, made.with_name(made.stem + "-key.pem")

    def flags(self, *what):
        certificate, key = self.make(*what)
        return [f"--tls-ca={self.certificate}", f"--tls-certificate={certificate}", f"--tls-key={key}"]


class TlsPageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.authority = Authority(cls.folder / "ca")
        cls.cluster = clusters.Cluster(PROGRAMS, cls.authority.flags("coordinator", "127.0.0.1"))
        cls.addClassCleanup(cls.cluster.__exit__, None, None, None)
        cls.worker("alpha")

    @classmethod
    def worker(cls, node):
        cls.cluster.start_worker(node, 1, f"--write-folder={cls.folder}", *cls.authority.flags("worker", node))

    def browser_of(self, *identity, trusts=True):
        """Of a person who has imported their certificate as docs/sight.md says, and chooses it when they are asked for one."""
        home = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        store = home / ".pki/nssdb"
        store.mkdir(parents=True)
        do(find("certutil"), "-N", "-d", f"sql:{store}", "--empty-password")
        if trusts:
            do(find("certutil"), "-A", "-d", f"sql:{store}", "-n", "ours", "-t", "C,,", "-a", "-i", self.authority.certificate)
        if identity:
            certificate, key = self.authority.make(*identity)
            do("openssl", "pkcs12", "-export", "-in", certificate, "-inkey", key, "-passout", "pass:", "-name", "own", "-out",
               home / "own.p12")
            do(find("pk12util"), "-d", f"sql:{store}", "-i", home / "own.p12", "-W", "")
        chosen = {f"https://{self.cluster.http},*": {"last_modified": "13300000000000000", "setting": {"filters": [{}]}}}
        made = browser.Browser(shutil.which("chromium"), home=home, preferences={
            "profile": {"content_settings": {"exceptions": {"auto_select_certificate": chosen}}}})
        self.addCleanup(made.__exit__, None, None, None)
        return made

    def open(self, person):
        return person.open(f"https://{self.cluster.http}/")

    def audit(self):
        return (self.cluster.folder / "coordinator.log").read_text(errors="replace")

    def test_viewer_sees_the_page_and_its_changes(self):
        person = self.browser_of("user", "vera", "viewer")
        page = self.open(person)
        page.wait(LIVE + " && document.body.innerText.includes('alpha')")
        self.worker("beta")
        page.wait("document.body.innerText.includes('beta')")
        self.assertTrue(page.ask("isSecureContext"))
        asked = [one["params"]["request"]["url"] for one in person.take_events() if one["method"] == "Network.requestWillBeSent"]
        self.assertEqual([url for url in asked if not url.startswith(f"https://{self.cluster.http}/")], [])

    def test_whoever_has_no_certificate_is_told_to_show_one_and_sees_nothing_else(self):
        page = self.open(self.browser_of())
        self.assertEqual(page.text().strip(),
                         "show a certificate of a viewer, submitter or operator; /livez and /readyz answer without one")
        for path in ("", "api/overview", "metrics", "api/stream?/api/overview"):
            status = page.ask(f"fetch('https://{self.cluster.http}/{path}').then((answer) => answer.status)")
            self.assertEqual(status, 401, path)
        self.assertIn("audit who=- role=- method=http outcome=UNAUTHENTICATED", self.audit())

    def test_worker_is_refused_by_name(self):
        page = self.open(self.browser_of("worker", "gamma"))
        self.assertIn("http is for viewer, submitter, operator; the role here is worker", page.text())
        self.assertNotIn("alpha", page.text())
        self.assertIn("audit who=gamma role=worker method=http outcome=PERMISSION_DENIED", self.audit())

    def test_browser_that_does_not_know_the_authority_shows_nothing(self):
        with self.assertRaisesRegex(browser.Refused, "ERR_CERT_AUTHORITY_INVALID"):
            self.open(self.browser_of(trusts=False))


if __name__ == "__main__":
    missing = [name for name in ("chromium", "certutil", "pk12util", "openssl") if find(name) is None]
    if missing:
        print(f"skipped: {', '.join(missing)} not here; scripts/setup brings what this needs")
        sys.exit(int(os.environ.get("PHALANX_EXIT_WITHOUT_TOOL", "77")))
    PROGRAMS = pathlib.Path(sys.argv.pop(1))
    unittest.main(verbosity=2)
