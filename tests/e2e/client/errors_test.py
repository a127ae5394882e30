#!/usr/bin/env python3
"""Every command of `phalanx` brought to an error, of real coordinators where it asks one: what is wrong, and what to do next.

    errors_test.py PROGRAMS

A command without a row here fails the test.
"""

import dataclasses
import pathlib
import re
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(SOURCE / "tests"))

from support import cluster as clusters  # noqa: E402

PROGRAMS = None
NO_JOB = ('error: there is no job "7"', "phalanx list shows the jobs that there are")
NO_NODE = ('error: there is no node "nobody"', "phalanx nodes lists those there are")
NO_FILE = ("error: /nowhere: No such file or directory", "name one that is there and that you can read")
NO_FOLDER = ("error: /nowhere: is no folder", "name one that is there and that you can read")
NO_CONTEXT = ('error: CONFIG has no context "nowhere"', "phalanx config list shows those that there are")
NO_TOKENS = ("error: this coordinator takes no join tokens: it has no key to sign certificates with",
             "start it with --join-ca-certificate and --join-ca-key, beside --tls-ca and the like")
# Of the command line: what it must be is in the line already.
USAGE = "Run with --help or --help-all for more information."


@dataclasses.dataclass
class Row:
    arguments: str  # behind the command
    # The first line of what it says; CONFIG is the config file.
    wrong: str
    # What to do: the rest of that line behind "; ", or the last line, behind "what to do: ".
    next: str


# Of commands that ask nobody.
LOCAL = {
    "run": Row("/nowhere", *NO_FILE),
    "plan": Row("/nowhere", *NO_FILE),
    "validate": Row("/nowhere", *NO_FILE),
    "checkpoints list": Row("/nowhere", *NO_FILE),
    "checkpoints verify": Row("/nowhere", *NO_FOLDER),
    "checkpoints show": Row("/nowhere", *NO_FOLDER),
    "config show": Row("--context nowhere", 'error: CONFIG has no context "nowhere"',
                       "phalanx config set NAME server=HOST:PORT makes one"),
    "config list": Row("-o xml", "-o: xml not in {table,wide,json,yaml,name}", USAGE),
    "config use": Row("nowhere", *NO_CONTEXT),
    "config set": Row("lab colour=red", "SETTING: colour=red: must be one of server, output, timeout, tls_ca, tls_certificate, "
                      "tls_key, plaintext, then = and its value", ""),
    "config delete": Row("nowhere", *NO_CONTEXT),
    "version": Row("now", "The following argument was not expected: now", USAGE),
    "completion": Row("csh", "SHELL: csh not in {bash,zsh,fish}", USAGE),
}

# Of those that ask a coordinator: it has the queued job waits (job-1), nothing else.
ASKED = {
    "submit": Row("--directory relative JOB_FILE", "error: --directory: relative: must begin with /: it is a folder of the "
                  "cluster's machines", "name it as the nodes do, such as /shared/jobs, or leave --directory out where they have the job "
                  "file's own folder"),
    "rerun": Row("waits", "error: job-1 is Queued", "only a job that has ended runs again: phalanx cancel job-1 ends it"),
    "get": Row("7", *NO_JOB),
    "describe": Row("7", *NO_JOB),
    "why": Row("7", *NO_JOB),
    "cancel": Row("7", *NO_JOB),
    "suspend": Row("7", *NO_JOB),
    "resume": Row("7", *NO_JOB),
    "delete": Row("waits", "error: job-1 is Queued", "only a job that has ended can be deleted: cancel it first"),
    "watch": Row("7", *NO_JOB),
    "events": Row("7", *NO_JOB),
    "logs": Row("7", *NO_JOB),
    "incidents list": Row("7", *NO_JOB),
    "incidents show": Row("waits 1", "error: waits has no incident 1", "phalanx incidents list waits shows those that are kept"),
    "inject": Row("--job waits --rank 0 --fault kill", "error: this coordinator brings no faults about on demand: it runs without "
                  "--allow-inject", "ask an operator for one that has it"),
    "cordon": Row("nobody --reason fan", *NO_NODE),
    "uncordon": Row("nobody", *NO_NODE),
    "drain": Row("nobody --reason fan", *NO_NODE),
    "reserve": Row("nobody --reason fan", *NO_NODE),
    "unreserve": Row("nobody", *NO_NODE),
    "token create": Row("", *NO_TOKENS),
    "token revoke": Row("any", *NO_TOKENS),
}

# Of the same and of those that always have an answer: what it is called with, and whom it is for, where the caller
# shows a worker's certificate.
VIEWERS, SUBMITTERS, OPERATORS = "viewer, submitter, operator", "submitter, operator", "operator"
REFUSED = {
    "submit": ("JOB_FILE", "SubmitJob", SUBMITTERS),
    "rerun": ("waits", "GetJob", VIEWERS),
    "list": ("", "ListJobs", VIEWERS),
    "get": ("waits", "GetJob", VIEWERS),
    "describe": ("waits", "ExplainJob", VIEWERS),
    "why": ("waits", "ExplainJob", VIEWERS),
    "cancel": ("waits", "CancelJob", SUBMITTERS),
    "suspend": ("waits", "SuspendJob", SUBMITTERS),
    "resume": ("waits", "ResumeJob", SUBMITTERS),
    "delete": ("waits", "DeleteJob", SUBMITTERS),
    "watch": ("waits", "WatchJob", VIEWERS),
    "events": ("waits", "ListEvents", VIEWERS),
    "logs": ("waits", "GetLogs", VIEWERS),
    "incidents list": ("waits", "ListIncidents", VIEWERS),
    "incidents show": ("waits 1", "ListIncidents", VIEWERS),
    "inject": ("--job waits --rank 0 --fault kill", "InjectFault", SUBMITTERS),
    "nodes": ("", "ListNodes", VIEWERS),
    "cordon": ("any --reason fan", "CordonNode", OPERATORS),
    "uncordon": ("any", "UncordonNode", OPERATORS),
    "drain": ("any --reason fan", "DrainNode", OPERATORS),
    "reserve": ("any --reason fan", "ReserveNode", OPERATORS),
    "unreserve": ("any", "UnreserveNode", OPERATORS),
    "token create": ("", "CreateToken", OPERATORS),
    "token list": ("", "ListTokens", OPERATORS),
    "token revoke": ("any", "RevokeToken", OPERATORS),
    "top": ("-o json", "ListNodes", VIEWERS),
}
# It tells of an error as of one of its findings.
FINDS = "doctor"


class ErrorsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.open = cls.start([])
        job = (SOURCE / "examples/emoji-captions.yaml").read_text(encoding="utf-8")
        assert "name: emoji-captions" in job
        cls.job_file = cls.open.folder / "job.yaml"
        cls.job_file.write_text(job.replace("name: emoji-captions", "name: waits"), encoding="utf-8")
        cls.open.phalanx("submit", cls.job_file)
        folder = cls.open.folder / "ca"
        for identity in ("coordinator 127.0.0.1", "worker here"):
            subprocess.run([SOURCE / "scripts/make_ca", folder, *identity.split()], check=True, capture_output=True, timeout=60)
        cls.guarded = cls.start([f"--tls-ca={folder}/ca.pem", f"--tls-certificate={folder}/coordinator.pem",
                                 f"--tls-key={folder}/coordinator-key.pem"])
        cls.as_worker = ["--tls-ca", folder / "ca.pem", "--tls-certificate", folder / "worker-here.pem",
                         "--tls-key", folder / "worker-here-key.pem"]

    @classmethod
    def start(cls, flags):
        cluster = clusters.Cluster(PROGRAMS, flags)
        cls.addClassCleanup(cluster.__exit__, None, None, None)
        return cluster

    def phalanx(self, cluster, command, arguments, flags=()):
        words = [str(self.job_file) if word == "JOB_FILE" else word for word in arguments.split()]
        return subprocess.run(["phalanx", *command.split(), *words, *map(str, flags)], env=cluster.environment(),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)

    def expect_error(self, row, command, cluster, flags=()):
        with self.subTest(command=command, wrong=row.wrong):
            done = self.phalanx(cluster, command, row.arguments, flags)
            lines = done.stderr.replace(str(cluster.folder / "config.yaml"), "CONFIG").splitlines()
            self.assertNotEqual(done.returncode, 0, done.stdout)
            if row.next == USAGE:
                self.assertEqual(lines, [row.wrong, row.next])
            elif not row.next:  # a rule says what to do
                self.assertEqual(lines[0], row.wrong)
                self.assertRegex(row.wrong, " must (?:be|begin with|have) ")
            elif len(lines) == 1:
                self.assertEqual(lines, [f"{row.wrong}; {row.next}"])
            else:
                self.assertEqual(lines, [row.wrong, f"what to do: {row.next}"])

    def commands(self, *above):
        """Those that have none below them."""
        text = self.phalanx(self.open, " ".join(above), "--help").stdout
        if "Subcommands:" not in text:
            return {" ".join(above)}
        names = [line.split()[0] for line in text.split("Subcommands:")[1].split("\n") if re.match("  [a-z]", line)]
        return set().union(*(self.commands(*above, name) for name in names))

    def test_every_command_has_a_row(self):
        commands = self.commands()
        self.assertGreater(len(commands), 30)
        self.assertEqual(commands, {*LOCAL, *ASKED, *REFUSED, FINDS})
        self.assertEqual(set(ASKED) - set(REFUSED), set(), "a worker may do none of it")

    def test_commands_that_ask_nobody(self):
        for command, row in LOCAL.items():
            self.expect_error(row, command, self.open)

    def test_words_that_are_no_command_or_stand_before_it(self):
        lists = "phalanx --help lists them"
        for words, wrong in (("submt job.yaml", f"unknown command 'submt'; did you mean submit? {lists}"),
                             ("token revok x", "unknown command 'token revok'; did you mean token revoke? phalanx token --help lists them"),
                             ("xyzzy", f"unknown command 'xyzzy'; {lists}"),
                             ("-o json nodes", "-o: stands behind the command that it is of, as in phalanx list -o json; "
                              "phalanx --help has those that may stand before it"),
                             ("describe job-1 node", f"describe takes one JOB, or node NODE\n{USAGE}"),
                             ("list --colour", f"The following argument was not expected: --colour\n{USAGE}")):
            with self.subTest(words=words):
                done = self.phalanx(self.open, words, "")
                self.assertEqual((done.returncode, done.stderr), (2, wrong + "\n"))

    def test_commands_whose_subject_is_not_there_or_not_so(self):
        for command, row in ASKED.items():
            self.expect_error(row, command, self.open)

    def test_commands_of_somebody_who_may_not(self):
        for command, (arguments, method, roles) in REFUSED.items():
            row = Row(arguments, f"error: {method} is for {roles}; the role here is worker", "ask somebody who has it")
            self.expect_error(row, command, self.guarded, self.as_worker)

    def test_handshakes_that_fail_are_told_of_once(self):
        other = self.open.folder / "other-ca"
        subprocess.run([SOURCE / "scripts/make_ca", other, "user", "sam", "viewer"], check=True, capture_output=True, timeout=60)
        done = self.phalanx(self.guarded, "list", "", ["--timeout", "2s", "--tls-ca", other / "ca.pem",
                                                       "--tls-certificate", other / "user-sam.pem", "--tls-key", other / "user-sam-key.pem"])
        self.assertNotEqual(done.returncode, 0, done.stdout)
        lines = done.stderr.splitlines()
        self.assertRegex(lines[0], "^error: ", "what gRPC writes by itself is not for users")
        self.assertLessEqual(len(lines), 2, done.stderr)

    def test_doctor_finds_what_others_are_told(self):
        done = self.phalanx(self.guarded, FINDS, "", self.as_worker)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^coordinator +problem +ListNodes is for .*; ask somebody who has it$")
        self.assertNotIn("see that phalanx-coordinator runs", done.stdout, "it does")


if __name__ == "__main__":
    PROGRAMS = pathlib.Path(sys.argv.pop(1))
    unittest.main(verbosity=2)
