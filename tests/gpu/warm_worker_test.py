#!/usr/bin/python3
"""tests/gpu/warm_worker.py with workers that train, die, never get warm, lose their lease or do not leave."""
import os
import pathlib
import struct
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import rank_events  # noqa: E402
import warm_worker  # noqa: E402

# As trainyard-worker --standby: what it does is in $FAKE. Its plan is there after 5 ms, its first step after 40.
WORKER = """#!/usr/bin/python3
import json, os, pathlib, signal, struct, sys, time
fake = os.environ["FAKE"]
assert sys.argv[1:] == ["--standby", "--device", "cuda:0", "--threads", "3"], sys.argv
if fake == "dies cold":
    sys.exit("CUDA driver is older than the runtime")
if fake == "never warm":
    signal.pause()
print('{"level":"info","message":"waiting, warm, on cuda:0 Fake"}', file=sys.stderr, flush=True)
order = json.loads(sys.stdin.readline())
begin = time.time_ns() // 1000
folder = pathlib.Path(order["run_dir"])
assignment = json.loads((folder / "assignment.json").read_text())
if fake == "dies":
    os.kill(os.getpid(), signal.SIGSEGV)
if struct.unpack("=q", (folder / "lease").read_bytes())[0] < time.clock_gettime_ns(time.CLOCK_BOOTTIME):
    sys.exit(75)
if fake == "stays":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(74 if fake == "leaves badly" else 0))
def varint(value):
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)
def event(sequence, after_ms, what):
    body = b"\\x08" + varint(sequence) + b"\\x10" + varint(begin + after_ms * 1000) + varint(what << 3 | 2) + b"\\x00"
    with open(folder / "events.log", "ab") as log:
        log.write(struct.pack("<II", len(body), 0) + body)
event(1, 5, 3)
event(2, assignment["spec"]["restored"], 4)
event(3, 40, 5)
while True:
    signal.pause()
"""


class WarmWorkerTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.program = self.folder / "worker"
        self.program.write_text(WORKER)
        self.program.chmod(0o755)

    def measure(self, fake, *, warm=30, step=30, leave=30):
        with warm_worker.WarmWorker(self.program, "cuda:0", 3, self.folder / "rank", {**os.environ, "FAKE": fake}) as worker:
            self.process = worker.process
            worker.wait_until_warm(warm)
            found = worker.first_step({"restored": 20}, step)
            worker.suspend(leave)
        return found

    def refused(self, fake, **how):
        with self.assertRaises(warm_worker.Failed) as refused:
            self.measure(fake, **how)
        self.assertIsNotNone(self.process.returncode)
        return str(refused.exception), refused.exception.told

    def test_the_figure_is_the_time_from_the_line_to_the_event_by_the_workers_clock(self):
        found = self.measure("trains")
        self.assertGreaterEqual(found["first_step_ms"], 40)
        self.assertAlmostEqual(found["first_step_ms"] - found["started_ms"], 35, 2)
        self.assertAlmostEqual(found["first_step_ms"] - found["restored_ms"], 20, 2)
        self.assertEqual(self.process.returncode, 0)

    def test_one_that_dies_says_when_and_why(self):
        why, told = self.refused("dies cold")
        self.assertEqual(why, "the worker ended before it was warm, exit code 1")
        self.assertEqual(told, ["CUDA driver is older than the runtime"])
        self.program.write_text("#!/nowhere\n")
        with self.assertRaisesRegex(warm_worker.Failed, "worker: No such file"):
            warm_worker.WarmWorker(self.program, "cuda:0", 3, self.folder / "other", {})

    def test_one_that_dies_with_its_rank_says_so(self):
        why, told = self.refused("dies")
        self.assertEqual(why, "the worker ended before its first step, signal 11")
        self.assertIn("waiting, warm, on cuda:0 Fake", told[-1])

    def test_one_that_never_gets_warm_is_ended(self):
        self.assertEqual(self.refused("never warm", warm=0.5),
                         ("the worker took more than 0.5 s before it was warm", ["(its log is empty)"]))

    def test_a_lease_that_is_over_is_named(self):
        self.addCleanup(setattr, warm_worker, "LEASE_SECONDS", warm_worker.LEASE_SECONDS)
        warm_worker.LEASE_SECONDS = -1
        self.assertEqual(self.refused("trains")[0],
                         "the worker ended before its first step, exit code 75: its lease was over")

    def test_one_that_does_not_leave_or_not_well_is_no_success(self):
        self.assertEqual(self.refused("stays", leave=0.5)[0],
                         "the worker was asked to leave after its first step and had not after 0.5 s")
        self.folder.joinpath("rank").rename(self.folder / "first")
        self.assertEqual(self.refused("leaves badly")[0],
                         "the worker was asked to leave after its first step: exit code 74")


class RankEventsTest(unittest.TestCase):
    def test_whole_events_are_read_and_a_torn_one_waits(self):
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "events.log"
        self.assertEqual(rank_events.read(path), [])
        # As protobuf writes {sequence: 1, time_us: 300, notice {severity: INFO, message: "hm"}}, and
        # {sequence: 2, time_us: 2^40, metrics {step: 1, split: TRAIN, values {"loss": 1.5}}}.
        notice = b"\x08\x01\x10\xac\x02" + b"\x3a\x06\x08\x01\x12\x02hm"
        value = b"\x0a\x04loss\x11" + struct.pack("<d", 1.5)
        metrics = b"\x08\x02\x10\x80\x80\x80\x80\x80\x20" + b"\x2a\x15\x08\x01\x10\x01\x1a" + bytes([len(value)]) + value
        log = b"".join(struct.pack("<II", len(event), 0) + event for event in (notice, metrics))
        first = rank_events.Event(1, 300, "notice", {1: 1, 2: b"hm"})
        for torn in (1, 8, len(metrics), len(metrics) + 7):
            path.write_bytes(log[:-torn])
            self.assertEqual(rank_events.read(path), [first])
        path.write_bytes(log + b"\x00\x00\x00")
        self.assertEqual(rank_events.read(path), [first, rank_events.Event(2, 1 << 40, "metrics", {1: 1, 2: 1, 3: value})])

    def test_what_is_no_event_is_refused(self):
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "events.log"
        for payload in (b"\x08", b"\x08\xff", b"\x2a\x05\x08\x01", b"\x0b\x01", b"\x11\x01"):
            path.write_bytes(struct.pack("<II", len(payload), 0) + payload)
            with self.assertRaises(ValueError):
                rank_events.read(path)


if __name__ == "__main__":
    unittest.main()
