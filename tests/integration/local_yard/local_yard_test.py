#!/usr/bin/python3
"""`trainyard local`: what it starts, what it survives, what it leaves behind; LocalYardOfAnOrdinaryUser, which root alone
can run, as an ordinary user."""

import concurrent.futures
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

BIN = os.path.abspath(os.environ.get("TRAINYARD_BIN", "build/bin"))
PARTS = ("supervisor", "postgres", "server", "agent")


class LocalYard(unittest.TestCase):
    user = None  # name of an ordinary user, or None for whoever runs the tests

    def setUp(self):
        self.home = tempfile.mkdtemp(prefix="local-yard-")
        os.chmod(self.home, 0o755)
        self.who = {}
        if self.user is not None:
            entry = pwd.getpwnam(self.user)
            os.chown(self.home, entry.pw_uid, entry.pw_gid)
            self.who = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        self.dir = self.home + "/yard"
        self.yards = {self.dir}
        self.environment = dict(os.environ, HOME=self.home, XDG_CONFIG_HOME=self.home + "/config", LANG="C")
        for name in ("TRAINYARD_CONTEXT", "TRAINYARD_SERVER", "TRAINYARD_TOKEN", "TRAINYARD_CA_FILE", "TRAINYARD_PROJECT"):
            self.environment.pop(name, None)

    def tearDown(self):
        for yard in self.yards:
            self.run_cli("local", "stop", "--dir", yard, "--purge")
        shutil.rmtree(self.home, ignore_errors=True)

    def run_cli(self, *arguments):
        return subprocess.run([f"{BIN}/trainyard", *arguments], env=self.environment, text=True, cwd="/",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False, **self.who)

    def call(self, *arguments):
        done = self.run_cli(*arguments)
        self.assertEqual(done.returncode, 0, f"trainyard {' '.join(arguments)}: {done.stdout}")
        return done.stdout

    def start(self, yard=None, *more):
        self.yards.add(yard or self.dir)
        return self.call("local", "start", "--dir", yard or self.dir, *more)

    def parts(self):
        done = self.run_cli("local", "status", "--dir", self.dir, "-o", "json")
        return {part["name"]: part for part in json.loads(done.stdout)}

    def wait_until_well(self):
        deadline = time.monotonic() + 30
        while True:
            parts = self.parts()
            if all(part["alive"] and part["healthy"] for part in parts.values()):
                return parts
            self.assertLess(time.monotonic(), deadline, f"not well again: {parts}")

    def left_over(self, yard=None):
        """Command lines that name the yard, and processes that carry its mark."""
        yard = yard or self.dir
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    command = file.read().replace(b"\0", b" ").decode(errors="replace")
                with open(f"/proc/{pid}/environ", "rb") as file:
                    environment = file.read().split(b"\0")
            except OSError:
                continue
            mark = f"TRAINYARD_YARD={yard}".encode()
            if command and (f"{yard}/" in command or mark in environment):
                found.append(command)
        return found

    def test_start_brings_every_part_up_and_says_so_when_it_runs_already(self):
        self.assertIn("the yard is running", self.start())
        before = self.wait_until_well()
        self.assertIn("already running", self.start())
        after = self.parts()
        self.assertEqual([before[p]["pid"] for p in PARTS], [after[p]["pid"] for p in PARTS])
        for path in ("tokens/admin", "tokens/agent"):
            self.assertEqual(os.stat(f"{self.dir}/{path}").st_mode & 0o777, 0o600)
        self.assertEqual(os.stat(f"{self.home}/config/trainyard/contexts.yaml").st_mode & 0o777, 0o600)

    def test_whatever_is_killed_comes_back(self):
        self.start()
        for part in ("postgres", "server", "agent"):
            pid = self.wait_until_well()[part]["pid"]
            os.kill(pid, signal.SIGKILL)
            self.assertNotEqual(self.wait_until_well()[part]["pid"], pid)

    def test_a_new_supervisor_adopts_what_still_runs(self):
        self.start()
        before = self.wait_until_well()
        os.kill(before["supervisor"]["pid"], signal.SIGKILL)
        os.kill(before["server"]["pid"], signal.SIGKILL)
        self.start()
        after = self.wait_until_well()
        for part in ("postgres", "agent"):
            self.assertEqual(before[part]["pid"], after[part]["pid"])

    def test_start_while_the_supervisor_dies_brings_up_the_yard(self):
        self.start()
        before = self.wait_until_well()
        os.kill(before["supervisor"]["pid"], signal.SIGSTOP)
        os.kill(before["server"]["pid"], signal.SIGKILL)
        # While `start` waits for the yard that seems to be there.
        end = threading.Timer(0.5, os.kill, (before["supervisor"]["pid"], signal.SIGKILL))
        end.start()
        self.start()
        end.join()
        self.assertNotEqual(self.wait_until_well()["supervisor"]["pid"], before["supervisor"]["pid"])

    def test_stop_ends_everything_even_without_a_supervisor(self):
        self.start()
        os.kill(self.parts()["supervisor"]["pid"], signal.SIGKILL)
        self.call("local", "stop", "--dir", self.dir)
        self.assertEqual(self.left_over(), [])
        self.start()  # and it starts again on what it left
        self.call("local", "stop", "--dir", self.dir)
        self.assertEqual(self.left_over(), [])
        self.assertTrue(os.path.exists(self.dir + "/yard.json"))

    def test_start_goes_on_with_the_yard_of_the_context(self):
        self.start()
        self.call("local", "stop")
        self.assertIn(f"the yard is running: {self.dir}, ", self.call("local", "start"))

    def test_purge_leaves_no_file_but_those_of_others(self):
        self.start()
        with open(self.dir + "/note", "w") as file:
            file.write("mine")
        self.call("local", "stop", "--dir", self.dir, "--purge")
        self.assertEqual(os.listdir(self.dir), ["note"])
        self.assertIn("no contexts yet", self.call("context", "list"))

    def test_two_yards_live_side_by_side(self):
        other = f"{self.home}/" + "a-long-name/" * 9 + "yard"  # its socket has to live elsewhere
        with concurrent.futures.ThreadPoolExecutor() as pool:  # at once: both look for a free port
            list(pool.map(self.start, (self.dir, other)))
        self.assertEqual(self.call("context", "list").count("127.0.0.1:"), 2)
        self.call("local", "stop", "--dir", other, "--purge")
        self.wait_until_well()
        self.assertEqual(self.left_over(other), [])

    def test_a_removed_folder_ends_its_yard(self):
        self.start()
        shutil.rmtree(self.dir, ignore_errors=True)
        deadline = time.monotonic() + 60
        while self.left_over():
            self.assertLess(time.monotonic(), deadline, self.left_over())
            time.sleep(0.05)

    def test_a_taken_port_is_left_to_its_owner(self):
        self.start()
        self.call("local", "stop", "--dir", self.dir)
        with open(self.dir + "/yard.json") as file:
            port = json.load(file)["port"]
        with socket.create_server(("127.0.0.1", port)):
            self.start()
            with open(self.dir + "/yard.json") as file:
                self.assertNotEqual(json.load(file)["port"], port)
            self.call("ps")


def why_not_as(user):
    """Why an ordinary user cannot run the programs here, or None; a build below /root is closed to it."""
    if os.geteuid() != 0:
        return "only root can run programs as another user"
    entry = pwd.getpwnam(user)
    try:
        subprocess.run([f"{BIN}/trainyard", "version", "--client"], user=entry.pw_uid, group=entry.pw_gid,
                       extra_groups=[], cwd="/", stdout=subprocess.DEVNULL, check=True)
    except PermissionError:
        return f"user {user} may not run {BIN}/trainyard"
    return None


class LocalYardOfAnOrdinaryUser(LocalYard):
    user = "nobody"

    @classmethod
    def setUpClass(cls):
        if reason := why_not_as(cls.user):
            raise unittest.SkipTest(reason)


if __name__ == "__main__":
    if sys.argv[1:] == ["LocalYardOfAnOrdinaryUser"] and (reason := why_not_as(LocalYardOfAnOrdinaryUser.user)):
        print("skipped:", reason)
        sys.exit(77)  # ctest's word for it
    unittest.main(verbosity=2)
