#!/usr/bin/env python3
"""Which blocks of a page count as commands that somebody runs, and which escape."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import pages  # noqa: E402


def wrong_with(text):
    with tempfile.NamedTemporaryFile("w", suffix=".md", encoding="utf-8") as page:
        page.write(text)
        page.flush()
        return [what for _, what in pages.account_of(pathlib.Path(page.name))[0]]


def block(kind, *lines):
    return "\n".join([f"```{kind}", *lines, "```", ""])


class AccountTest(unittest.TestCase):
    def test_commands_in_a_text_block_are_refused(self):
        for line in ("$ ls", "phalanx nodes", "phalanx-worker ... --devices 8", "  systemctl restart phalanx-worker",
                     "PHALANX_SERVER=a:1 phalanx list", "sudo apt-get install phalanx", "scripts/make_ca ca worker a",
                     "export PHALANX_SERVER=10.0.0.5:4444", "kubectl apply -k deploy"):
            self.assertEqual(len(wrong_with(block("text", "some words", line))), 1, line)

    def test_commands_in_a_text_block_with_a_reason_are_not(self):
        self.assertEqual(wrong_with("<!-- not run: a synopsis -->\n" + block("text", "phalanx nodes")), [])
        self.assertEqual(wrong_with(block("text", "phalanx nodes") + "<!-- test: e2e/join -->\n"), [])

    def test_a_reason_is_for_one_block(self):
        self.assertEqual(len(wrong_with("<!-- not run: why -->\n" + 2 * block("text", "phalanx nodes"))), 1)

    def test_what_programs_print_is_no_command(self):
        for line in ("error: spec.steps: is required", "1f1b  1.190  23.5 %", "audit who=alice outcome=OK",
                     "phalanx (client) ---> phalanx-coordinator", 'WORKER_FLAGS="--device gpu"'):
            self.assertEqual(wrong_with(block("text", line)), [], line)

    def test_fences_that_are_none_are_refused(self):
        self.assertEqual(len(wrong_with(block("", "phalanx nodes"))), 1)
        for fence in ("  ```sh", "~~~", "```sh title", "````"):
            self.assertEqual(len(wrong_with(f"{fence}\n")), 1, fence)

    def test_commands_that_are_indented_are_refused(self):
        for line in ("$ ls", "phalanx nodes", "build/release/bin/phalanx-fault-matrix --write docs/faults.md"):
            self.assertEqual(len(wrong_with(f"It is written by\n\n    {line}\n")), 1, line)
            self.assertEqual(wrong_with(block("text", "    words") + "    words\n"), [])

    def test_blocks_of_several_machines_name_one_of_them(self):
        machines = "<!-- machines: a 10.0.0.5, b 10.0.0.6 /srv -->\n"
        self.assertEqual(len(wrong_with(machines + block("sh", "ls"))), 1)
        self.assertEqual(len(wrong_with(machines + "<!-- on: c -->\n" + block("sh", "ls"))), 1)
        self.assertEqual(len(wrong_with("<!-- on: a -->\n" + block("sh", "ls"))), 1)
        self.assertEqual(wrong_with(machines + "<!-- on: b, a -->\n" + block("sh", "ls")), [])
        self.assertEqual(len(wrong_with(machines + "<!-- on: b, a -->\n" + block("console", "$ ls"))), 1)


class InlineTest(unittest.TestCase):
    TEXT = "Behind it `etcdctl alarm disarm`, and look with `kubectl get nodes`.\n"

    def test_commands_within_text_are_refused(self):
        self.assertEqual(len(wrong_with(self.TEXT)), 2)

    def test_those_that_the_page_runs_or_has_a_reason_for_are_not(self):
        run = "<!-- run: etcdctl alarm disarm -->\n"
        reason = "<!-- inline: kubectl get, kubectl drain: there is no cluster here -->\n"
        self.assertEqual(len(wrong_with(run + self.TEXT)), 1)
        self.assertEqual(wrong_with(run + reason + self.TEXT + "`kubectl drain --force`\n"), [])
        self.assertEqual(len(wrong_with("<!-- not run: why -->\n" + block("sh", "etcdctl alarm disarm") + reason + self.TEXT
                                        + "`kubectl drain x`\n")), 1)

    def test_a_reason_is_used_and_is_one(self):
        self.assertEqual(len(wrong_with("<!-- inline: kubectl get: why -->\n")), 1)
        self.assertEqual(len(wrong_with("<!-- inline: kubectl get, etcdctl -->\n" + self.TEXT)), 1)

    def test_programs_and_names_within_text_are_none(self):
        for text in ("`openssl` makes it", "`phalanx nodes`", "`scripts/test`", "`kubectl`"):
            self.assertEqual(wrong_with(text + "\n"), [], text)


class CommandsTest(unittest.TestCase):
    def test_a_line_that_goes_on_and_a_document_are_one_command(self):
        lines = ["a \\", "  b", "cat > file << 'END'", "one", "two", "END", "c"]
        self.assertEqual(pages.commands_of(lines), ["a \\\n  b", "cat > file << 'END'\none\ntwo\nEND", "c"])


if __name__ == "__main__":
    unittest.main()
