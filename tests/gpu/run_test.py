#!/usr/bin/python3
"""tests/gpu/run with programs that behave as a GPU's tests may: they fail, fault, die, hang, or take too long."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import cuda_libraries  # noqa: E402

# As GoogleTest's: what a test does is in its name. After a fault every test of the process fails.
PROGRAM = """#!/usr/bin/python3
import os, signal, sys, time
tests = os.environ.get("FAKE_" + os.path.basename(__file__), "").split()
pattern = [word.split("=", 1)[1] for word in sys.argv if word.startswith("--gtest_filter=")][0]
if "--gtest_list_tests" in sys.argv:
    for suite in dict.fromkeys(name.split(".")[0] for name in tests):
        print(suite + ".")
        for name in tests:
            if name.startswith(suite + "."):
                print("  " + name.split(".")[1] + "  # GetParam() = 8-byte object <02-00>")
    sys.exit(0)
spoiled = failed = False
for name in tests if "*" in pattern else pattern.split(":"):
    print("[ RUN      ]", name, flush=True)
    if "Dies" in name:
        os.kill(os.getpid(), signal.SIGSEGV)
    while "Hangs" in name:
        time.sleep(10)
    if "Skips" in name:
        print("x.cc:1: Skipped\\nUNAVAILABLE: no usable GPU driver here\\n\\n[  SKIPPED ] %s (0 ms)" % name, flush=True)
        continue
    spoiled = spoiled or "Faults" in name
    if spoiled or "Fails" in name:
        failed = True
        print("x.cc:2: Failure\\n" + ("INTERNAL: illegal address" if spoiled else "other bits"))
        print("[  FAILED  ] %s, where GetParam() = 8-byte object <02-00> (3 ms)" % name, flush=True)
    else:
        print("[       OK ] %s (1 ms)" % name, flush=True)
if failed:
    print("[  FAILED  ] 1 test, listed below:\\n[  FAILED  ] one")
sys.exit(failed)
"""
SANITIZER = """#!/bin/sh
if [ "$1" = --help ]; then echo '  --kernel-name arg'; exit; fi
echo "$*" >>"$0.said"
tool=$2
while ! [ -x "$1" ]; do shift; done
"$@"
[ "$tool" != "$FAKE_FINDS" ] || { echo '========= Error: Race reported'; exit 9; }
"""


class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in ("tests/gpu_ops_test", "tests/gpu_families_test", "tests/gpu_nccl_test", "tests/op_times",
                     "bin/trainyard-worker"):
            self.program(self.folder / name, PROGRAM)

    @staticmethod
    def program(path, text):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def start(self, *words, tests="", **variables):
        environment = {**os.environ, "TRAINYARD_BIN": str(self.folder), "FAKE_gpu_ops_test": tests, **variables}
        return subprocess.Popen([sys.executable, HERE / "run", *words, "--out", self.folder / "out"], env=environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run_it(self, *words, **how):
        with self.start(*words, **how) as process:
            said, _ = process.communicate(timeout=100)
        return process.returncode, said

    def found(self):
        return json.loads((self.folder / "out/gpu.json").read_text())

    def test_a_fault_costs_one_test_and_the_rest_starts_anew(self):
        code, said = self.run_it("tests", tests="A.Good A.Faults A.After B.Fails B.Good")
        self.assertEqual(code, 1)
        self.assertIn("3 passed, 2 failed, 0 skipped, 0 not run", said)
        self.assertEqual(sorted(self.found()["tests"]["failed"]), ["A.Faults", "B.Fails"])

    def test_a_death_and_a_hang_cost_one_test_each(self):
        code, said = self.run_it("tests", "--silence", "1", tests="A.Dies A.Good B.Good B.Hangs B.Last")
        self.assertEqual(code, 1)
        self.assertIn("3 passed, 2 failed, 0 skipped, 0 not run", said)
        self.assertIn("the process: signal 11", said)
        self.assertIn("the process: silent for 1 s", said)

    def test_what_is_not_run_in_time_is_said_and_is_no_success(self):
        code, said = self.run_it("tests", "--seconds", "2", "--jobs", "1", tests="A.Good A.Hangs B.Good")
        self.assertEqual(code, 1)
        self.assertIn("1 passed, 0 failed, 0 skipped, 2 not run", said)

    def test_what_was_found_survives_the_end_of_the_process(self):
        with self.start("tests", "--jobs", "1", tests="A.Fails A.Good B.Hangs") as process:
            for line in process.stdout:
                if "FAILED A.Fails" in line:
                    break
            for line in process.stdout:  # what is said of a suite is kept before the next line
                if "other bits" in line:
                    break
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1)
        self.assertIn("FAILED A.Fails", (self.folder / "out/gpu.txt").read_text())

    def test_without_a_gpu_everything_is_skipped_and_it_says_so(self):
        code, said = self.run_it(tests="A.Skips B.Skips")
        self.assertEqual(code, 0)
        self.assertIn("Nothing was run: no GPU could be opened here.\nUNAVAILABLE: no usable GPU driver", said)
        self.assertIn("0 passed, 0 failed, 2 skipped", said)

    def test_where_there_is_a_gpu_skipping_everything_is_a_failure(self):
        self.program(self.folder / "path/nvidia-smi", "#!/bin/sh\necho 'NVIDIA H100, 580.0, 81559 MiB, 9.0'\n")
        code, said = self.run_it("tests", tests="A.Skips", PATH=f"{self.folder / 'path'}:{os.environ['PATH']}")
        self.assertEqual(code, 1, said)

    def sanitize(self, finds="", tests="A.Good"):
        self.program(self.folder / "path/compute-sanitizer", SANITIZER)
        return self.run_it("sanitizer", tests=tests, FAKE_gpu_families_test="R.Good", FAKE_FINDS=finds,
                           PATH=f"{self.folder / 'path'}:{os.environ['PATH']}")

    def test_the_sanitizer_looks_for_races_in_our_kernels_alone(self):
        code, said = self.sanitize()
        self.assertEqual(code, 0, said)
        lines = (self.folder / "path/compute-sanitizer.said").read_text().splitlines()
        for tool, programs, filtered in (("memcheck", 2, False), ("racecheck", 2, True), ("initcheck", 1, True)):
            of_tool = [line for line in lines if f"--tool {tool} " in line]
            self.assertGreaterEqual(len(of_tool), programs)
            self.assertEqual({"--kernel-name kns=trainyard" in line for line in of_tool}, {filtered})
        self.assertIn("memcheck, gpu_ops_test *-*GpuOnly*:*LackOfMemory*, part 10 of 10: clean", said)

    def test_a_sanitizer_that_finds_something_or_sees_no_test_fails(self):
        code, said = self.sanitize(finds="racecheck")
        self.assertEqual(code, 1)
        self.assertIn("========= Error: Race reported", said)
        code, said = self.sanitize(tests="A.Skips")
        self.assertEqual(code, 1)
        self.assertIn("no test ran", said)

    def test_an_archive_is_unpacked(self):
        with tarfile.open(self.folder / "gpu.tar.xz", "w:xz") as archive:
            for name in ("tests", "bin"):
                archive.add(self.folder / name, name)
        code, said = self.run_it("tests", tests="A.Good", TRAINYARD_BIN=str(self.folder / "gpu.tar.xz"))
        self.assertEqual(code, 0, said)
        self.assertIn("1 passed", said)


class CudaLibrariesTest(unittest.TestCase):
    def test_what_the_loader_lacks_comes_from_packages_then_toolkits_or_is_missing(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in ("cu13/libcublasLt.so.13", "cudnn/libcudnn.so.9", "toolkit/libcudnn.so.9", "lib/libcudart.so.13"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).touch()
        packages, toolkits = [f"{folder}/cu13", f"{folder}/cudnn"], [f"{folder}/toolkit"]
        find = lambda known: cuda_libraries.find(f"{folder}/lib", (known, []), toolkits, packages)
        driver = {cuda_libraries.DRIVER}
        self.assertEqual(find(driver), (packages, ["libnvrtc.so.13"]))
        self.assertEqual(find(driver | {"libnvrtc.so.13", "libcudnn.so.9"}), ([packages[0]], []))
        self.assertEqual(cuda_libraries.find(None, (driver, packages), toolkits, []),
                         ([], ["libcudart.so.13", "libnvrtc.so.13"]))


if __name__ == "__main__":
    unittest.main()
