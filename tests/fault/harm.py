"""What campaigns do to processes and disks."""
import os


def send(pid, number):
    """Sends a signal; False: the process is gone."""
    try:
        os.kill(pid, number)
        return True
    except OSError:
        return False


def fill_disk(path):
    """Writes to `path` until its disk is full. Removing it heals the disk."""
    with open(path, "wb", buffering=0) as f:
        try:
            while True:
                f.write(b"\0" * (1 << 16))
        except OSError:  # it is full
            pass
