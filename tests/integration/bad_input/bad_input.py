#!/usr/bin/python3
"""What people get wrong, and what they are told: real programs against a real local yard.

    TRAINYARD_BIN=build/bin bad_input.py [-k WORD]

Each row of the tables below is a wrong input, a fragment of the message and the exit code. A row passes when
the fragment is in the output, the code is right, and nothing looks like a crash. At the end the yard must
still train a job: bad input loses nothing.
"""

import gzip
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

BIN = os.path.abspath(os.environ.get("TRAINYARD_BIN", "build/bin"))

# Exit codes of trainyard (clients/cli/README.md) and of trainyard-worker (executor/run/run_directory.h).
USAGE, NOT_FOUND, DENIED, UNAVAILABLE, PRECONDITION, TIMEOUT, UNIMPLEMENTED = 2, 3, 4, 5, 6, 7, 8
FAILED = 1
W_USAGE, W_DATA, W_STORAGE, W_NUMERIC = 64, 65, 74, 76

# A job that is right; the rows change it. {data} is the folder of make_data.
JOB = """\
spec:
  model:
    mlp: {hidden: [16]}
  data:
    idx:
      train_images: {data}/images
      train_labels: {data}/labels
      classes: 4
  training:
    steps: 4
    batch_size: 8
  optimizer:
    sgd: {momentum: 0.9}
  schedule:
    learning_rate: 0.1
"""

GPT = """\
spec:
  model:
    gpt: {layers: 1, heads: 2, width: 16, context: 8}
  data:
    text: {path: {data}/text}
  training: {steps: 2, batch_size: 4}
  optimizer: {adamw: {}}
"""

# Whole files: name, text of the file, fragment, code. `trainyard submit FILE`.
FILES = [
    ("misspelt key", "spec:\n  training:\n    batchsize: 3\n",
     "job.yaml:3:5: unknown field 'batchsize' (did you mean 'batch_size'?)", USAGE),
    ("misspelt section", "spec:\n  trainning: {steps: 3}\n",
     "job.yaml:2:3: unknown field 'trainning' (did you mean 'training'?)", USAGE),
    ("key in the wrong section", "spec: {training: {learning_rate: 1}}\n",
     "'learning_rate' belongs in spec.schedule", USAGE),
    ("key without spec", "training: {steps: 3}\n", "'training' belongs in spec", USAGE),
    ("two families", "spec:\n  model:\n    mlp: {}\n    gpt: {}\n",
     "job.yaml:4:5: spec.model: both 'mlp' and 'gpt' are given", USAGE),
    ("key given twice", "spec:\n  training:\n    steps: 1\n    steps: 2\n",
     "job.yaml:4:5: field 'steps' is given twice (first on line 3)", USAGE),
    ("field of the server", "state: RUNNING\n",
     "job.yaml:1:1: field 'state' is written by the server only", USAGE),
    ("word for a number", "spec: {training: {steps: many}}\n", "'many' is not an integer", USAGE),
    ("number too large", "spec: {training: {batch_size: 3000000000}}\n", "is out of range", USAGE),
    ("unknown enum value", "spec: {schedule: {shape: cosin}}\n", "(did you mean 'COSINE'?)", USAGE),
    ("scalar for a list", "spec: {model: {mlp: {hidden: 128}}}\n", "expected a list, found '128'", USAGE),
    ("tabs", "spec:\n\ttraining: {}\n", "job.yaml:2:1: a tab in the indentation", USAGE),
    ("two documents, one of them wrong", "job_id: a\n---\njbo_id: b\n", "job.yaml:3:1: unknown field 'jbo_id'", USAGE),
    ("empty file", "", "the file is empty", USAGE),
    ("broken YAML", "spec: {a: [\n", "not valid YAML", USAGE),
    ("binary file", "job_id: \0\1\2\n", "a NUL byte", USAGE),
    ("too long", "#" * 300000, "a job file has at most", USAGE),
    ("nothing to train", "spec: {}\n", "spec.model", USAGE),
]

# Changes to JOB with --set: name, changes, fragment, code. `trainyard submit --set ...`.
CHANGES = [
    ("misspelt --set", ["training.step=3"],
     "--set training.step: unknown field 'step' (did you mean 'steps'?)", USAGE),
    ("--set without a value", ["training.steps"], "expected FIELD=VALUE", USAGE),
    ("NaN learning rate", ["schedule.learning_rate=nan"], "spec.schedule.learning_rate", USAGE),
    ("infinite learning rate", ["schedule.learning_rate=.inf"], "spec.schedule.learning_rate", USAGE),
    ("negative learning rate", ["schedule.learning_rate=-1"], "spec.schedule.learning_rate", USAGE),
    ("batch that does not divide", ["training.micro_batch_size=3"], "micro_batch_size", USAGE),
    ("batch of nothing", ["training.batch_size=0"], "spec.training.batch_size", USAGE),
    ("steps and epochs", ["training.epochs=1"], "spec.training", USAGE),
    ("neither steps nor epochs", ["training.steps=null"], "spec.training", USAGE),
    ("negative steps", ["training.steps=-5"], "spec.training.steps", USAGE),
    ("momentum of one", ["optimizer.sgd.momentum=1"], "spec.optimizer.sgd.momentum", USAGE),
    ("nesterov without momentum", ["optimizer={sgd: {nesterov: true}}"], "spec.optimizer.sgd.nesterov", USAGE),
    ("group that matches nothing", ["optimizer.groups=[{pattern: '*.wieght', frozen: true}]"],
     "the nearest are 'layers.0.weight'", USAGE),
    ("everything frozen", ["optimizer.groups=[{pattern: '*', frozen: true}]"], "nothing is left to train", USAGE),
    ("average that does not move", ["training.ema_decay=1"], "spec.training.ema_decay", USAGE),
    ("steps without milestones", ["schedule.shape=STEP"], "spec.schedule.milestones", USAGE),
    ("dropout of one", ["model.mlp.dropout=1"], "spec.model.mlp.dropout", USAGE),
    ("negative clip", ["optimizer.clip_norm=-1"], "spec.optimizer.clip_norm", USAGE),
    ("layer without width", ["model.mlp.hidden=[0]"], "spec.model.mlp.hidden", USAGE),
    ("zero slots", ["resources.min_slots=0"], "spec.resources.min_slots", USAGE),
    ("GPU where there is none", ["resources.device=CUDA"], "slot", PRECONDITION),
    ("gang larger than all nodes together", ["resources.min_slots=96", "resources.device=CPU", "training.batch_size=96"],
     "min_slots of at most", PRECONDITION),
    ("model too large for every node", ["model.mlp.hidden=[65536, 65536, 65536]"], "slot", PRECONDITION),
    ("priority out of range", ["priority=5000"], "priority", USAGE),
    ("labels smoothed away", ["training.label_smoothing=1"], "spec.training.label_smoothing", USAGE),
    ("unknown policy", ["training.on_non_finite=IGNORE"], "on_non_finite", USAGE),
    ("rollbacks of a run that halts", ["training.max_rollbacks=3"], "spec.training.max_rollbacks", USAGE),
    ("stopping by an unknown metric", ["evaluation.early_stopping.metric=accuracies", "evaluation.every_steps=5"],
     "(did you mean 'accuracy'?)", USAGE),
    ("best without evaluations", ["checkpoint.best.metric=loss"], "set spec.evaluation.every_steps", USAGE),
    ("keeping too few checkpoints", ["checkpoint.keep=1"], "spec.checkpoint.keep", USAGE),
    ("negative restarts", ["retry.max_restarts=-1"], "spec.retry.max_restarts", USAGE),
    ("even kernel", ["model={convnet: {stages: [{channels: 4, kernel: 2}]}}"], "kernel", USAGE),
    ("pooled to nothing", ["model={convnet: {stages: [{channels: 4, pool: 4}, {channels: 4, pool: 4}]}}"],
     "pool", USAGE),
    ("clicks for a picture model", ["data={clicks: {train_samples: 9, validation_samples: 9}}"], "spec.data", USAGE),
    ("resnet of no known depth", ["model={resnet: {depth: 20, stem: CIFAR}}"], "spec.model.resnet.depth", USAGE),
    ("resnet without a stem", ["model={resnet: {depth: 18}}"], "spec.model.resnet.stem", USAGE),
    ("text for a picture model", ["data={text: {path: /etc/hostname}}"], "spec.", USAGE),
    ("loss scale of bf16", ["precision={compute: BF16, loss_scale: {initial: 2}}"], "spec.precision.loss_scale", USAGE),
    ("loss scale of nothing", ["precision={compute: FP16, loss_scale: {initial: 0}}"],
     "spec.precision.loss_scale.initial", USAGE),
    ("adapters of no rank", ["fine_tune={lora: {}}"], "spec.fine_tune.lora.rank", USAGE),
    ("adapters of more rank than a matrix has", ["fine_tune={lora: {rank: 900}}"],
     "spec.fine_tune.lora.rank: 900 is more than the smaller side of layers.0.weight", USAGE),
    ("adapters of nothing there is", ["fine_tune={lora: {rank: 2, targets: [nothing]}}"],
     "spec.fine_tune.lora.targets[0]", USAGE),
    ("adapter of the head", ["fine_tune={lora: {rank: 2, targets: [layers.1.weight]}}"], "makes the logits", USAGE),
    ("fine-tuning that says nothing", ["fine_tune={}"], "spec.fine_tune", USAGE),
    # Understood, not built yet: the field is named.
    ("tensor parallelism", ["parallel.tensor=2"], "spec.parallel.tensor", UNIMPLEMENTED),
    ("elastic job of fewer logical ranks than slots", ["resources={min_slots: 1, max_slots: 4, device: CPU}",
                                                       "parallel.logical_ranks=2"], "spec.parallel.logical_ranks: 2", USAGE),
    ("weights from a relative path", ["fine_tune.from=models/gpt2"], "spec.fine_tune.from", USAGE),
    ("weights from a bucket", ["fine_tune.from=s3://b/m"], "spec.fine_tune.from", UNIMPLEMENTED),
    ("weights from a folder that is no model", ["fine_tune.from={data}"], "{data}: has no config.json", USAGE),
    ("weights from a file", ["fine_tune.from={data}/images"], "expected the folder of a model", USAGE),
    ("weights of another family", ["fine_tune.from={data}/bert"], "set spec.model.bert", USAGE),
    ("index that leaves the folder", ["fine_tune.from={data}/leaves"], "in the same folder", USAGE),
    ("reinitialized without weights", ["fine_tune.reinitialize=['*']"], "spec.fine_tune.reinitialize", USAGE),
    ("images without a size", ["data={image_folder: {train: /x}}"],
     "spec.data.image_folder.transform.size", USAGE),
    ("no folder of images", ["data={image_folder: {train: /nowhere, transform: {size: 8}}}"], "/nowhere", USAGE),
    # Data that the server can see.
    ("missing images", ["data.idx.train_images=/nowhere/images"], "/nowhere/images", USAGE),
    ("relative path", ["data.idx.train_images=images"], "images", USAGE),
    ("wrong magic", ["data.idx.train_images={data}/text"], "magic", USAGE),
    ("labels for images", ["data.idx.train_images={data}/labels"], "magic", USAGE),
    ("folder for a file", ["data.idx.train_images={data}"], "{data}", USAGE),
    ("labels out of range", ["data.idx.train_labels={data}/wild"],
     "found label 200 of sample 9, expected [0, 4)", USAGE),
    ("S3, which is not built yet", ["data.idx.train_images=s3://bucket/images"], "s3", UNIMPLEMENTED),
]

# Jobs that are accepted, run, and fail: name, changes, fragment of what `submit --follow` says, code.
RUNS = [
    ("truncated gzip", ["data.idx.train_images={data}/cut.gz"], "cut.gz", FAILED),
    ("loss becomes NaN", ["schedule.learning_rate=1e30", "training.steps=200"], "loss is nan", FAILED),
]

# Other commands: name, arguments, fragment, code. {done} is a job that succeeded, {job} a right job file.
COMMANDS = [
    ("no command", [], "--help", USAGE),
    ("unknown command", ["sbmit"], "(did you mean 'submit'?)", USAGE),
    ("unknown option", ["ps", "--wobble"], "--wobble", USAGE),
    ("missing argument", ["get"], "JOB is required", USAGE),
    ("unknown output format", ["ps", "-o", "xml"], "'xml' is not a format", USAGE),
    ("missing job file", ["submit", "/nowhere/job.yaml"], "/nowhere/job.yaml: No such file", NOT_FOUND),
    ("folder as a job file", ["submit", "/tmp"], "is a folder", USAGE),
    ("no server there", ["--server", "127.0.0.1:1", "--patience", "0", "ps"],
     "no server at 127.0.0.1:1", UNAVAILABLE),
    ("wrong token", ["--token-file", "{data}/token", "ps"], "does not accept the token", DENIED),
    ("no token", ["--server", "localhost:{port}", "ps"], "wants a token", DENIED),
    ("unknown context", ["--context", "nowhere", "ps"], "no context 'nowhere'", NOT_FOUND),
    ("bad job name", ["get", "UPPER"], "is not the name of a job", USAGE),
    ("unknown job", ["get", "nowhere"], "nowhere", NOT_FOUND),
    ("watch of an unknown job", ["watch", "nowhere"], "nowhere", NOT_FOUND),
    ("logs of an unknown job", ["logs", "nowhere"], "nowhere", NOT_FOUND),
    ("metrics of an unknown job", ["metrics", "nowhere"], "nowhere", NOT_FOUND),
    ("explain an unknown job", ["explain", "nowhere"], "nowhere", NOT_FOUND),
    ("bad id at submission", ["submit", "{job}", "--name", "Bad_Name"], "Bad_Name", USAGE),
    ("id that is taken", ["submit", "{job}", "--name", "{done}"], "{done}", PRECONDITION),
    ("request id of another job", ["submit", "{job}", "--request-id", "once", "--set", "training.steps=9"],
     "request", PRECONDITION),
    ("request id too long", ["submit", "{job}", "--request-id", "x" * 65], "request_id", USAGE),
    ("unknown state", ["ps", "--state", "runing"], "(did you mean 'RUNNING'?)", USAGE),
    ("bad filter", ["ps", "--filter", "colour = 3"], "colour", USAGE),
    ("filter with OR", ["ps", "--filter", "priority = 1 OR priority = 2"], "OR", USAGE),
    ("bad page token", ["ps", "--page-token", "wobble"], "page_token", USAGE),
    ("unknown project", ["-p", "Bad/Project", "ps"], "project", USAGE),
    ("cancel of a job that ended", ["cancel", "{done}"], "SUCCEEDED", PRECONDITION),
    ("pause of a job that ended", ["pause", "{done}"], "SUCCEEDED", PRECONDITION),
    ("resume of a job that ended", ["resume", "{done}"], "SUCCEEDED", PRECONDITION),
    ("cancel of several, one unknown", ["cancel", "nowhere", "{done}"], "nowhere", NOT_FOUND),
    ("wait for slots that nobody has", ["wait", "wide", "--for", "RUNNING", "--timeout", "0.3"],
     "is not yet RUNNING", TIMEOUT),
    ("explain a job that fits nowhere today", ["explain", "wide"], "FITS_NO_NODE", 0),
    ("delete of a job that waits", ["delete", "wide"], "wide", PRECONDITION),
    ("cancel of a job that waits", ["cancel", "wide"], "CANCELLED", 0),
    ("wait for a word that is no state", ["wait", "{done}", "--for", "wobbling"], "is not a state", USAGE),
    ("wait for what will not come", ["wait", "{done}", "--for", "RUNNING"], "will not be RUNNING",
     PRECONDITION),
    ("bad split", ["metrics", "{done}", "--split", "test"], "expected train or validation", USAGE),
    ("ranks that are none", ["logs", "{done}", "--rank", "3-1"], "ranks as in 0,4-7, or all", USAGE),
    ("a rank that there is not", ["logs", "{done}", "--rank", "0,7"], "the attempt has 1 rank: 0", USAGE),
    ("the gang of a job that never ran", ["get", "wide", "--gang"], "never placed", NOT_FOUND),
    ("unknown node", ["node", "get", "nowhere"], "nowhere", NOT_FOUND),
    ("drain of an unknown node", ["node", "drain", "nowhere"], "nowhere", NOT_FOUND),
    ("unknown checkpoint", ["sample", "{done}", "--checkpoint", "77"], "77", NOT_FOUND),
    ("sample of a picture model", ["sample", "{done}"], "gpt", W_USAGE),
    ("sample of a folder that is none", ["sample", "/nowhere/step-1"], "there is no checkpoint", W_USAGE),
    ("unknown shell", ["completion", "tcsh"], "tcsh", USAGE),
    ("yard in a folder with other files", ["local", "start", "--dir", "{data}"], "is no yard", PRECONDITION),
    ("yard in a file", ["local", "start", "--dir", "{data}/text"], "is not a folder", PRECONDITION),
    ("yard on a port that is taken", ["local", "start", "--dir", "{scratch}/other", "--port", "{port}"],
     "is taken by another program", PRECONDITION),
    ("status of no yard", ["local", "status", "--dir", "{scratch}/none"], "no yard in", NOT_FOUND),
    ("stop of no yard", ["local", "stop", "--dir", "{scratch}/none"], "no yard in", NOT_FOUND),
]
ROOT_COMMANDS = [
    ("yard of another user", ["local", "start", "--dir", "{scratch}/foreign"], "belongs to user nobody",
     DENIED),
    ("yard where user postgres may not go", ["local", "start", "--dir", "{scratch}/closed/yard"],
     "may not enter", PRECONDITION),
    ("yard on a full disk", ["local", "start", "--dir", "{scratch}/small"], "MiB left", 10),
]

# The worker alone: name, arguments, fragment, code.
WORKER = [
    ("worker: no arguments", [], "--spec", W_USAGE),
    ("worker: missing job file", ["--spec", "/nowhere/job.yaml", "--out", "{scratch}/w"], "/nowhere", W_USAGE),
    ("worker: misspelt --set", ["--spec", "{job}", "--set", "training.step=1", "--out", "{scratch}/w"],
     "did you mean 'steps'?", W_USAGE),
    ("worker: NaN learning rate",
     ["--spec", "{job}", "--set", "schedule.learning_rate=nan", "--out", "{scratch}/w"], "learning_rate", W_USAGE),
    ("worker: not built yet", ["--spec", "{job}", "--set", "parallel.tensor=2", "--out", "{scratch}/w"],
     "spec.parallel.tensor", W_USAGE),
    ("worker: unknown device", ["--spec", "{job}", "--out", "{scratch}/w", "--device", "tpu"], "tpu", W_USAGE),
    ("worker: missing labels",
     ["--spec", "{job}", "--set", "data.idx.train_labels=/nowhere/labels", "--out", "{scratch}/w"],
     "/nowhere/labels", W_DATA),
    ("worker: truncated gzip",
     ["--spec", "{job}", "--set", "data.idx.train_images={data}/cut.gz", "--out", "{scratch}/w"], "cut.gz", W_DATA),
    ("worker: labels out of range",
     ["--spec", "{job}", "--set", "data.idx.train_labels={data}/wild", "--out", "{scratch}/w"], "label", W_DATA),
    ("worker: text with a context longer than itself",
     ["--spec", "{gpt}", "--set", "data.text.path={data}/short", "--out", "{scratch}/w"], "short", W_DATA),
    ("worker: weights that are nowhere",
     ["--spec", "{gpt}", "--set", "fine_tune.from=/nowhere/model", "--out", "{scratch}/w"],
     "spec.fine_tune.from: /nowhere/model: No such file", W_DATA),
    ("worker: weights of another family",
     ["--spec", "{gpt}", "--set", "fine_tune.from={data}/bert", "--out", "{scratch}/w"],
     "set spec.model.bert", W_USAGE),
    ("worker: weights whose header lies",
     ["--spec", "{gpt}", "--set", "fine_tune.from={data}/lies", "--out", "{scratch}/w"],
     "a header of 18446744073709551615 bytes", W_USAGE),
    ("worker: loss becomes NaN",
     ["--spec", "{job}", "--set", "schedule.learning_rate=1e30", "--set", "training.steps=200", "--out",
      "{scratch}/w"], "loss is nan", W_NUMERIC),
    ("worker: output folder that cannot be made", ["--spec", "{job}", "--out", "/proc/none"], "/proc/none", W_STORAGE),
]
ROOT_WORKER = [
    ("worker: full disk during a checkpoint",
     ["--spec", "{job}", "--set", "model.mlp.hidden=[2048, 512]", "--out", "{scratch}/small"],
     "No space left on device", W_STORAGE),
]


def idx(path, magic, dimensions, payload):
    with open(path, "wb") as file:
        file.write(struct.pack(">I", magic) + b"".join(struct.pack(">I", d) for d in dimensions) + payload)


def model(folder, config, **files):
    os.makedirs(folder)
    for name, content in {"config.json": config.encode(), **files}.items():
        with open(f"{folder}/{name}", "wb") as file:
            file.write(content)


def make_data(folder):
    """64 pictures of 8 x 8 in four classes, and the ways in which such files go wrong."""
    os.makedirs(folder)
    pixels = bytes((i * 37 + i // 64 * 11) % 256 for i in range(64 * 64))
    idx(f"{folder}/images", 0x803, (64, 8, 8), pixels)
    idx(f"{folder}/labels", 0x801, (64,), bytes(i % 4 for i in range(64)))
    idx(f"{folder}/wild", 0x801, (64,), bytes(i % 4 if i != 9 else 200 for i in range(64)))
    with open(f"{folder}/images", "rb") as file:
        packed = gzip.compress(file.read())
    with open(f"{folder}/cut.gz", "wb") as file:
        file.write(packed[: len(packed) // 2])
    with open(f"{folder}/text", "w") as file:
        file.write("the quick brown fox jumps over the lazy dog\n" * 50)
    with open(f"{folder}/short", "w") as file:
        file.write("abc")
    with open(f"{folder}/token", "w") as file:
        file.write("0" * 64 + "\n")
    model(f"{folder}/bert", '{"model_type": "bert"}', **{"model.safetensors": b"\x02" + b"\0" * 7 + b"{}"})
    model(f"{folder}/leaves", '{"model_type": "gpt2"}',
          **{"model.safetensors.index.json": b'{"weight_map": {"w": "../w.safetensors"}}'})
    model(f"{folder}/lies", '{"model_type": "gpt2"}', **{"model.safetensors": b"\xff" * 8 + b"{}"})


class Bench:
    """A yard of its own in a scratch folder, and the rows that are run against it."""

    def __init__(self, word):
        self.word = word
        self.scratch = tempfile.mkdtemp(prefix="bad-input-")
        os.chmod(self.scratch, 0o755)
        self.names = {"scratch": self.scratch, "data": f"{self.scratch}/data", "done": "good"}
        self.failed, self.passed = [], 0
        make_data(self.names["data"])
        for name, text in (("job", JOB), ("gpt", GPT)):
            self.names[name] = f"{self.scratch}/{name}.yaml"
            with open(self.names[name], "w") as file:
                file.write(self.fill(text))
        self.env = dict(os.environ, HOME=self.scratch, XDG_CONFIG_HOME=f"{self.scratch}/config", LANG="C")
        for name in ("TRAINYARD_CONTEXT", "TRAINYARD_SERVER", "TRAINYARD_TOKEN", "TRAINYARD_CA_FILE", "TRAINYARD_PROJECT"):
            self.env.pop(name, None)

    def run(self, program, arguments, stdin=None):
        return subprocess.run([f"{BIN}/{program}", *arguments], env=self.env, input=stdin, text=True,
                              errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
                              cwd=self.scratch)

    def good(self, *arguments):
        result = self.run("trainyard", arguments)
        if result.returncode != 0:
            raise SystemExit(f"trainyard {' '.join(arguments)} ended with {result.returncode}:\n{result.stdout}")
        return result.stdout

    def fill(self, text):
        for name, value in self.names.items():
            text = text.replace("{" + name + "}", value)
        return text

    def row(self, name, program, arguments, fragment, code):
        if self.word not in name:
            return
        arguments = [self.fill(a) for a in arguments]
        fragment = self.fill(fragment)
        result = self.run(program, arguments)
        wrong = []
        if result.returncode != code:
            wrong.append(f"exit code {result.returncode}, expected {code}")
        if fragment not in result.stdout:
            wrong.append(f"'{fragment}' is not in the output")
        if "terminate called" in result.stdout or "check failed" in result.stdout:
            wrong.append("it crashed")
        if wrong:
            self.failed.append(name)
            print(f"FAILED  {name}: {'; '.join(wrong)}\n        {' '.join(arguments)[:200]}")
            print("        | " + "\n        | ".join(result.stdout.strip().splitlines()[-6:]))
        else:
            self.passed += 1
            print(f"ok      {name}")

    def start(self):
        self.good("local", "start", "--dir", f"{self.scratch}/yard", "--cpu-slots", "1")
        show = self.good("context", "show")
        self.names["port"] = show.split("127.0.0.1:")[1].split()[0]
        self.good("submit", self.names["job"], "--name", "good", "--request-id", "once", "--follow")
        self.register_wide_node()
        self.good("submit", self.names["job"], "--name", "wide", "--set", "resources.min_slots=16", "--set",
                  "resources.device=CPU", "--set", "training.batch_size=64")

    def register_wide_node(self):
        """A node of 16 slots that is drained and away again: a job that needs it may wait for it."""
        agent = subprocess.Popen(
            [f"{BIN}/trainyard-agent", "--server", f"127.0.0.1:{self.names['port']}", "--node", "wide",
             "--token-file", f"{self.scratch}/yard/tokens/agent", "--state-dir", f"{self.scratch}/wide-agent",
             "--cpu-slots", "16", "--threads-per-slot", "1", "--standby", "0"], stderr=subprocess.DEVNULL)
        try:
            bound = time.monotonic() + 30
            while self.run("trainyard", ["node", "drain", "wide"]).returncode != 0:
                if time.monotonic() > bound:
                    raise SystemExit("the node of 16 slots did not register")
        finally:
            agent.send_signal(signal.SIGINT)
            agent.wait(20)

    def tables(self):
        for name, text, fragment, code in FILES:
            with open(f"{self.scratch}/job-file.yaml", "w") as file:
                file.write(text)
            os.replace(f"{self.scratch}/job-file.yaml", f"{self.scratch}/written-job.yaml")
            os.makedirs(f"{self.scratch}/files", exist_ok=True)
            shutil.copy(f"{self.scratch}/written-job.yaml", f"{self.scratch}/files/job.yaml")
            self.row(name, "trainyard", ["submit", "{scratch}/files/job.yaml"], fragment, code)
        for table, follow in ((CHANGES, []), (RUNS, ["--follow"])):
            for name, changes, fragment, code in table:
                sets = [word for change in changes for word in ("--set", change)]
                self.row(name, "trainyard", ["submit", "{job}", *sets, *follow], fragment, code)
        for name, arguments, fragment, code in COMMANDS:
            self.row(name, "trainyard", arguments, fragment, code)
        for name, arguments, fragment, code in WORKER:
            self.row(name, "trainyard-worker", arguments, fragment, code)
        if os.geteuid() == 0:
            self.as_root()
        else:
            print("skipped: rows that need root (full disks, other owners)")

    def as_root(self):
        os.makedirs(f"{self.scratch}/foreign")
        shutil.chown(f"{self.scratch}/foreign", "nobody")
        os.makedirs(f"{self.scratch}/closed", mode=0o700)
        os.makedirs(f"{self.scratch}/small")
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", f"{self.scratch}/small"],
                                 check=False).returncode == 0
        if not mounted:
            print("skipped: full disks (no right to mount)")
        for name, arguments, fragment, code in ROOT_COMMANDS:
            if mounted or "full disk" not in name:
                self.row(name, "trainyard", arguments, fragment, code)
        for name, arguments, fragment, code in ROOT_WORKER:
            if mounted:
                self.row(name, "trainyard-worker", arguments, fragment, code)

    def still_well(self):
        """After all that: no job but the good one is active, and another one trains to its end."""
        self.good("submit", self.names["job"], "--name", "after", "--follow")
        self.good("submit", self.names["gpt"], "--name", "gpt", "--follow")
        left = self.good("ps", "-o", "name").split()
        if left and not self.word:  # the row that cancels a job that waits may be left out
            self.failed.append("jobs are still active")
            print("FAILED  jobs are still active:", *left)
        self.good("local", "status", "--dir", f"{self.scratch}/yard")

    def close(self):
        subprocess.run(["umount", f"{self.scratch}/small"], stderr=subprocess.DEVNULL, check=False)
        self.run("trainyard", ["local", "stop", "--dir", f"{self.scratch}/yard", "--purge"])
        shutil.rmtree(self.scratch, ignore_errors=True)


def main():
    word = sys.argv[2] if len(sys.argv) > 2 and sys.argv[1] == "-k" else ""
    bench = Bench(word)
    try:
        bench.start()
        bench.tables()
        bench.still_well()
    finally:
        bench.close()
    print(f"{bench.passed} rows are right, {len(bench.failed)} are wrong")
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
