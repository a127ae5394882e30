"""Tests that run where mounts, networks and processes end with them, or say why they cannot.

Where this process may not have that, they skip (77); where a tool is missing, too, but under CI, which names
PHALANX_EXIT_WITHOUT_TOOL.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile

from pods import pod as pods

INSIDE = "--inside"


def not_here(why):
    print(why)
    sys.exit(int(os.environ.get("PHALANX_EXIT_WITHOUT_TOOL", "77")))


def not_allowed(why):
    print(why)
    sys.exit(77)  # this process may not


def run_again(test, module, package):
    """Runs the program `test` again, with INSIDE and a folder of its own before its arguments, and ends as it does. It needs
    the Python module, which that package brings."""
    if os.getuid() != 0:
        not_allowed("pods have namespaces, which root alone makes")
    missing = [tool for tool in ("ip", "kubectl", "nsenter", "setpriv", "unshare") if shutil.which(tool) is None]
    if importlib.util.find_spec(module) is None:
        missing.append(package)
    if missing:
        not_here(f"no {missing[0]} here")
    if why := pods.why_not_here():
        not_allowed(why)
    with tempfile.TemporaryDirectory() as folder:
        command = [*pods.OWN, "--net", "--uts", sys.executable, test, INSIDE, folder, *sys.argv[1:]]
        sys.exit(subprocess.run(command, check=False).returncode)
