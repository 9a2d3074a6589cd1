#!/usr/bin/python3
"""Jobs of a project that has a Unix user run as that user: what their ranks may read and write, and what they may not."""
import os
import pathlib
import pwd
import stat
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from replicas import MovingWatcher, Replicas  # noqa: E402
from yard import ENDED, eventually, gpt, grpc, json_format, jobs_pb, resources_pb, text_file, uuid  # noqa: E402

USER = "nobody"  # every Debian has it
CANNOT_RUN = 77  # ctest's SKIP_RETURN_CODE


class UsersYard(Replicas):
    """Two nodes whose agents, started as root, run projects as their users, and know roots."""

    def __init__(self):
        super().__init__(servers=1, agents=2)

    def _make_folders(self):
        super()._make_folders()
        for folder in ("data", "environments"):
            pathlib.Path(self.dir, folder).mkdir()
        os.chmod(self.dir + "/checkpoints", 0o711)
        self.environment["AWS_SECRET_ACCESS_KEY"] = "the agent's own"

    def _agent(self, i):
        part = super()._agent(i)
        part._command += ["--data-root", self.dir + "/data", "--checkpoint-root", self.dir + "/checkpoints",
                          "--project-environments", self.dir + "/environments"]
        if i == 1:
            part._command.append("--require-user")
        return part

    def admin(self, *arguments):
        done = self.run("--server", self.addresses[0], "--token-file", self.dir + "/tokens/admin", *arguments)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return done.stdout

    def submit_in(self, project, spec):
        job = resources_pb.Job(spec=json_format.ParseDict(spec, resources_pb.Job().spec))
        return self.api.job.SubmitJob(jobs_pb.SubmitJobRequest(parent="projects/" + project, job=job,
                                                               request_id=uuid.uuid4().hex)).name

    def end_of(self, name):
        return eventually(lambda: (job := self.get(name)).state in ENDED and job, 120, f"the end of {name}")


def status_of(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


class ProjectUserTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.yard = UsersYard().__enter__()
        cls.text = text_file(cls.yard.dir + "/data")
        cls.user = pwd.getpwnam(USER)
        cls.yard.admin("admin", "project", "set", "vision", "--unix-user", USER)

    @classmethod
    def tearDownClass(cls):
        cls.yard.__exit__(None, None, None)

    def spec(self, text, steps=40, **checkpoint):
        spec = gpt(text, steps, **checkpoint)
        spec["data"]["text"].update(tokenizer="BYTES")  # so that all that matters is declared
        spec["retry"] = {"max_restarts": 0}
        return spec

    def fails(self, spec, *words):
        job = self.yard.end_of(self.yard.submit_in("vision", spec))
        self.assertEqual(job.state, resources_pb.FAILED, job)
        for word in words:
            self.assertIn(word, job.reason.message)
        return job.reason.message

    def test_gang_runs_as_the_user_with_its_own_and_moves_in_memory(self):
        yard = self.yard
        environment = pathlib.Path(yard.dir, "environments/vision.env")
        environment.write_text("AWS_ACCESS_KEY_ID=vision\n")
        os.chmod(environment, 0o600)
        spec = self.spec(self.text, 20000, every_steps=5000)
        spec["parallel"], spec["resources"] = {"logical_ranks": 2}, {"min_slots": 1, "max_slots": 2}
        name = yard.submit_in("vision", spec)
        watcher = MovingWatcher(yard, name)
        yard.wait_for(name, resources_pb.RUNNING)
        ranks = eventually(lambda: len(found := yard.workers()) == 2 and found, 30, "two ranks")
        yard.wait_for_step(name, 20)
        for agent, rank, pid in ranks:
            status = status_of(pid)
            self.assertEqual(set(status["Uid"].split()), {str(self.user.pw_uid)})
            self.assertEqual(set(status["Gid"].split()), {str(self.user.pw_gid)})
            self.assertEqual(status["Groups"].split(), [str(self.user.pw_gid)])
            for field, value in (("CapPrm", "0" * 16), ("CapEff", "0" * 16), ("NoNewPrivs", "1"), ("Seccomp", "2")):
                self.assertEqual(status[field], value, field)
            self.assertNotIn("AWS_", pathlib.Path(f"/proc/{pid}/environ").read_text())
            self.assertRegex(pathlib.Path(f"/proc/{pid}/limits").read_text(), r"Max core file size +0 +0 ")
            folder = pathlib.Path(yard.state_dirs[agent], "ranks", rank)
            self.assertEqual(stat.S_IMODE(folder.stat().st_mode), 0o2710)
            for file in folder.iterdir():
                self.assertEqual(file.stat().st_uid, self.user.pw_uid if file.name == "events.log" else 0, file)
                self.assertEqual(file.stat().st_mode & 0o027, 0, file)
        step = yard.get(name).step
        yard.admin("resize", name, "--min", "1", "--max", "1")
        eventually(lambda: yard.get(name).attempt == 2 and any(
            item.HasField("metrics") and item.attempt == 2 for item in list(watcher.items)), 60, "one rank that trains")
        started = [item.attempt_started for item in list(watcher.items) if item.HasField("attempt_started")]
        self.assertEqual(len(started), 2)
        self.assertGreaterEqual(started[1].step, step, "it went on from memory, with no step again")
        yard.admin("pause", name)
        yard.wait_for(name, resources_pb.SUSPENDED)
        yard.admin("cancel", name)
        self.assertTrue(watcher.join(60))
        project = pathlib.Path(yard.dir, "checkpoints/vision")
        self.assertEqual((project.stat().st_uid, stat.S_IMODE(project.stat().st_mode)), (self.user.pw_uid, 0o700))
        written = [file for file in project.rglob("*") if file.is_file()]
        self.assertTrue(written)
        for file in written:
            self.assertEqual((file.stat().st_uid, file.stat().st_mode & 0o007), (self.user.pw_uid, 0))

    def test_files_that_are_not_the_projects_are_out_of_reach_and_not_quoted(self):
        data = pathlib.Path(self.yard.dir, "data")
        secret = data / "secret.txt"
        secret.write_text("the word is swordfish " * 1000)
        os.chmod(secret, 0o600)
        outside = pathlib.Path(self.yard.dir, "outside.txt")
        outside.write_text("the word is swordfish " * 1000)
        os.chmod(outside, 0o644)
        (data / "link.txt").symlink_to(outside)
        os.makedirs(self.yard.dir + "/checkpoints/other/job/step-00000001")
        os.chmod(self.yard.dir + "/checkpoints/other", 0o700)
        for path in (secret, outside, data / "link.txt", data / "../outside.txt",
                     self.yard.dir + "/checkpoints/other/job/step-00000001/model.safetensors"):
            message = self.fails(self.spec(str(path)), "Permission denied")
            self.assertNotIn("swordfish", message)

    def test_nodes_look_at_files_as_the_user_and_the_server_does_not(self):
        yard = self.yard
        spec = self.spec(self.text)
        spec["data"]["text"].update(tokenizer="CHARACTERS")  # so that somebody has to look
        job = yard.end_of(yard.submit_in("vision", spec))
        self.assertEqual(job.state, resources_pb.SUCCEEDED, job)
        hidden = pathlib.Path(yard.dir, "data/hidden.txt")
        hidden.write_text("the word is swordfish " * 1000)
        os.chmod(hidden, 0o600)  # the server's user, root, could read it
        spec["data"]["text"].update(path=str(hidden))
        refused = self.refused("vision", spec)
        for words in ("spec.data", "Permission denied", f"user {USER} must be able to read", "seen from nodes/node-"):
            self.assertIn(words, refused.details())
        self.assertNotIn("swordfish", refused.details())
        broken = pathlib.Path(yard.dir, "data/images")
        broken.write_text("no images")
        classes = {"model": {"mlp": {"hidden": [8]}}, "training": {"steps": 1, "batch_size": 8}, "data": {"idx": {
            "train_images": str(broken), "train_labels": str(broken)}}, "schedule": {"learning_rate": 0.1}, "optimizer": {"sgd": {}}}
        self.assertIn(str(broken), self.refused("vision", classes).details())
        # A name in any bytes reaches the caller, and ends nobody's session.
        pictures = os.fsencode(yard.dir) + b"/data/pictures"
        for name in (b"/\xffa", b"/\xffb"):
            os.makedirs(pictures + name)
        classes["data"] = {"image_folder": {"train": os.fsdecode(pictures), "transform": {"size": 8}}}
        self.assertIn("/?a: found a class without", self.refused("vision", classes).details())
        self.assertEqual(len(yard.connected_nodes()), 2)
        # Others' jobs still have theirs read by the server's own user.
        spec["data"]["text"].update(path=self.text)
        self.assertEqual(yard.end_of(yard.submit_in("open", spec)).state, resources_pb.SUCCEEDED)

    def refused(self, project, spec):
        with self.assertRaises(grpc.RpcError) as refused:
            self.yard.submit_in(project, spec)
        self.assertEqual(refused.exception.code(), grpc.StatusCode.INVALID_ARGUMENT, refused.exception.details())
        return refused.exception

    def test_project_whose_user_cannot_be_is_told_why(self):
        yard = self.yard
        yard.admin("admin", "project", "set", "lost", "--unix-user", "who-is-this")
        yard.admin("admin", "project", "set", "system", "--unix-user", "daemon")
        for project, words in (("lost", "knows no user 'who-is-this'"), ("system", "a user of the system")):
            job = yard.end_of(yard.submit_in(project, self.spec(self.text)))
            self.assertEqual(job.state, resources_pb.FAILED, job)
            self.assertIn(words, job.reason.message)
        self.assertRegex(yard.admin("admin", "project", "list"), r"system +daemon ")
        theirs = pathlib.Path(yard.dir, "checkpoints/theirs")
        theirs.mkdir(0o700)
        yard.admin("admin", "project", "set", "theirs", "--unix-user", USER)
        job = yard.end_of(yard.submit_in("theirs", self.spec(self.text)))
        self.assertIn(f"chown -R {USER}: {theirs}", job.reason.message)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: only root may run jobs as other users")
        sys.exit(CANNOT_RUN)
    unittest.main()
