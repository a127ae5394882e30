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


class CompareTest(unittest.TestCase):
    TABLE = ["NAME   STATE    AGE", "alpha  Ready    1s", "beta   Away     2s"]

    def test_columns_count_and_headers_are_compared_whole(self):
        for rules, columns in (("first words", 1), ("first 2 words", 2), ("", 3)):
            for row, other in (("gamma  Ready    1s", 0), ("alpha  Away     1s", 1), ("alpha  Ready    soon", 2)):
                self.assertEqual(pages.agree(self.TABLE, [self.TABLE[0], row, self.TABLE[2]], rules), other >= columns, (rules, row))
            self.assertFalse(pages.agree(self.TABLE, ["NAME   STATE    LOSS", *self.TABLE[1:]], rules), rules)
            self.assertFalse(pages.agree(self.TABLE, self.TABLE[1:], rules), rules)

    def test_lines_that_do_not_count_are_left_out_on_both_sides(self):
        self.assertTrue(pages.agree(self.TABLE, self.TABLE[:2], "first 2 words, any order, without ^beta|^gamma"))
        self.assertTrue(pages.agree(self.TABLE, [*self.TABLE, "gamma"], "without ^gamma"))
        self.assertFalse(pages.agree(self.TABLE, [*self.TABLE, "delta"], "without ^gamma"))
        self.assertTrue(pages.agree(self.TABLE, [self.TABLE[0], *self.TABLE[:0:-1]], "any order"))
        self.assertFalse(pages.agree(self.TABLE, [self.TABLE[0], *self.TABLE[:0:-1]], "first words"))

    def test_rules_that_leave_nothing_to_compare_are_refused(self):
        for rules in ("without .", "first words, without ^", "any order, without alpha|beta"):
            self.assertEqual(len(wrong_with(f"<!-- compare: {rules} -->\n" + block("console", "$ phalanx nodes", "alpha", "beta"))), 1, rules)
        for rules in ("without alpha", "first words"):
            self.assertEqual(wrong_with(f"<!-- compare: {rules} -->\n" + block("console", "$ phalanx nodes", "alpha", "beta")), [], rules)
        two = block("console", "$ phalanx nodes", "alpha", "$ phalanx list", "beta")
        self.assertEqual(len(wrong_with("<!-- compare: without beta -->\n" + two)), 1, "each command on its own")
        self.assertEqual(wrong_with("<!-- compare: without beta -->\n" + block("console", "$ phalanx nodes", "alpha", "$ ls")), [])

    def test_rules_that_there_are_not_are_refused(self):
        for rules in ("first word", "any orders", "first 0 words", "without (", "first words any order"):
            self.assertEqual(len(wrong_with(f"<!-- compare: {rules} -->\n" + block("console", "$ phalanx nodes", "alpha"))), 1, rules)


class CommandsTest(unittest.TestCase):
    def test_a_line_that_goes_on_and_a_document_are_one_command(self):
        lines = ["a \\", "  b", "cat > file << 'END'", "one", "two", "END", "c"]
        self.assertEqual(pages.commands_of(lines), ["a \\\n  b", "cat > file << 'END'\none\ntwo\nEND", "c"])


if __name__ == "__main__":
    unittest.main()
