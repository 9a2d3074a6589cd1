"""Processes that end in time, whatever they do: for tests/gpu/run and tests/bench/gpu/run."""
import os
import signal
import subprocess
import threading
import time

_running = set()


class Deadline:
    """A moment some seconds from now."""

    def __init__(self, seconds):
        self.at = time.monotonic() + seconds

    def left(self):
        return max(0.0, self.at - time.monotonic())

    def within(self, seconds):
        """So many seconds, or what is left of them."""
        return min(float(seconds), self.left())


class Done:
    """How a process ended: `code` is None where it was ended for `why`."""

    def __init__(self, code, why, out, err, seconds):
        self.code, self.why, self.out, self.err, self.seconds = code, why, out, err, seconds

    def how(self):
        if self.code is None:
            return self.why
        return f"exit code {self.code}" if self.code >= 0 else f"signal {-self.code}"


def _kill(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def end_all():
    """Ends whatever runs, for whoever leaves now."""
    for process in list(_running):
        _kill(process)


def start(command, **how):
    """A process, as subprocess.Popen makes one, that end_all ends. Its group is its own; `end` has to be called for it."""
    process = subprocess.Popen([str(word) for word in command], start_new_session=True, **how)
    _running.add(process)
    return process


def end(process, patience):
    """Asks it to leave, and ends it and its group when so many seconds are over; whether it went by itself."""
    try:
        if patience > 0:
            process.terminate()
        process.wait(patience)
        went = True
    except subprocess.TimeoutExpired:
        went = False
    _kill(process)  # or whoever it left behind
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        pass  # the driver holds it: nothing helps, and nobody waits for it
    _running.discard(process)
    return went


def run(command, seconds, *, environment=None, on_line=None, silence=None):
    """Runs a command for at most so many seconds, `silence` of them without a line. `on_line` hears each line of either
    output as it comes, and ends the process by returning a reason."""
    begin = last = time.monotonic()
    heard = {"out": [], "err": []}
    state = {"last": last, "why": None}
    lock = threading.Lock()
    try:
        process = start(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                        errors="replace", env=environment)
    except OSError as error:
        return Done(127, None, "", f"{command[0]}: {error.strerror}", 0.0)

    def read(name, pipe):
        for line in pipe:
            with lock:
                state["last"] = time.monotonic()
                heard[name].append(line)
                why = on_line(line.rstrip("\n")) if on_line else None
                if why and state["why"] is None:
                    state["why"] = why

    readers = [threading.Thread(target=read, args=of, daemon=True)
               for of in (("out", process.stdout), ("err", process.stderr))]
    for reader in readers:
        reader.start()
    why = None
    while why is None:
        try:
            process.wait(0.1)
            break
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            if state["why"]:
                why = state["why"]
            elif now - begin >= seconds:
                why = f"not done after {seconds:.0f} s"
            elif silence is not None and now - state["last"] >= silence:
                why = f"silent for {silence:.0f} s"
    if why is not None:
        end(process, 0)
    for reader in readers:
        reader.join(5)
    _running.discard(process)
    with lock:
        return Done(process.returncode if why is None else None, why, "".join(heard["out"]), "".join(heard["err"]),
                    time.monotonic() - begin)
