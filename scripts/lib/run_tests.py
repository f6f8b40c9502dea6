"""Builds all tests of the workspace and runs them, for scripts/test. Ends with 1 if a test failed or something does not compile.

The end-to-end tests run first, by themselves. The tests with a real etcd mostly wait, so they run beside all others."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

CARGO = ["cargo", "test", "--workspace", "--locked", "--quiet"]
# --show-output, because skipped tests print the reason, and the output of tests that pass is hidden without it.
HARNESS = ["--quiet", "--show-output"]
ALONE = ("warren", "e2e")
BESIDE = ("warren-fleet", "fleet")


def executables(messages):
    """Returns package, target, directory of the package and executable of each test, from cargo's messages."""
    for line in messages:
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            directory = Path(message["manifest_path"]).parent
            yield package_of(message["package_id"]), message["target"]["name"], directory, message["executable"]


def package_of(package_id):
    """Returns the package's name. Cargo writes path+file:///DIRECTORY#VERSION, or #NAME@VERSION if the directory has another name."""
    url, _, version = package_id.partition("#")
    name, at, _ = version.partition("@")
    return name if at else url.rpartition("/")[2]


def run(command, directory, **options):
    environment = os.environ | {"CARGO_MANIFEST_DIR": str(directory)}
    return subprocess.run(command, cwd=directory, env=environment, stderr=subprocess.STDOUT, check=False, **options)


class Run:
    """Runs commands and remembers whether one failed. Output of commands that run beside others is printed as a whole."""

    def __init__(self):
        self.has_failed = False
        self.printing = threading.Lock()

    def shown(self, command, directory):
        self.has_failed |= run(command, directory).returncode != 0

    def whole(self, commands):
        for command, directory in commands:
            done = run(command, directory, stdout=subprocess.PIPE)
            self.has_failed |= done.returncode != 0
            with self.printing:
                sys.stdout.buffer.write(done.stdout)
                sys.stdout.flush()


def main():
    built = subprocess.run([*CARGO, "--no-run", "--message-format=json-render-diagnostics"], stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode != 0:
        sys.exit(1)
    tests = list(executables(built.stdout.splitlines()))
    alone, beside, others = [], [], []
    for package, target, directory, executable in tests:
        lane = {ALONE: alone, BESIDE: beside}.get((package, target), others)
        lane.append(([executable, *HARNESS], directory))
    if not alone or not beside or not others:
        sys.exit("run_tests.py: the end-to-end tests, the tests with etcd or all others are missing")
    # Cargo itself finds and runs the examples in the documentation.
    others.append(([*CARGO, "--doc", "--", "--show-output"], Path.cwd()))

    tests_run = Run()
    for command, directory in alone:
        tests_run.shown(command, directory)
    lanes = [threading.Thread(target=tests_run.whole, args=(lane,)) for lane in (beside, others)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    sys.exit(tests_run.has_failed)


if __name__ == "__main__":
    main()
