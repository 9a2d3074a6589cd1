"""Where CUDA's libraries are: what the loader finds by itself, a toolkit, or PyTorch's packages below site-packages/nvidia."""
import glob
import os
import re
import shutil
import subprocess
import sys

# What the programs load, now or later: cuDNN compiles kernels by NVRTC.
NEEDED = {"libcudart.so.13": "CUDA 13", "libcublasLt.so.13": "CUDA 13 (cuBLAS)", "libnvrtc.so.13": "CUDA 13 (NVRTC)",
          "libcudnn.so.9": "cuDNN 9 for CUDA 13"}
DRIVER, DRIVERS = "libcuda.so.1", ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"]  # without one there is no GPU
TOOLKITS = ["/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/x86_64-linux/lib", "/usr/local/cuda*/lib",
            "/opt/cuda/lib64"]


def _loader_knows():
    """Names in the loader's cache, and the folders that it searches first."""
    known = set()
    for ldconfig in ("ldconfig", "/sbin/ldconfig"):
        try:
            text = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, timeout=20).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        known.update(re.findall(r"^\s+(\S+) \(", text, re.M))
        break
    return known, [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f]


def _packages():
    """Folders of libraries of the packages nvidia.* of this Python and of the one on PATH."""
    folders = []
    for python in dict.fromkeys([sys.executable, shutil.which("python3")]):
        if not python:
            continue
        try:
            text = subprocess.run([python, "-c", "import nvidia; print(*nvidia.__path__, sep='\\n')"],
                                  capture_output=True, text=True, timeout=60).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        for root in text.split("\n"):
            if root:
                folders += sorted(glob.glob(glob.escape(root) + "/*/lib"))
    return list(dict.fromkeys(folders))


def find(beside=None, known=None, toolkits=None, packages=None):
    """Folders to add to the loader's, and the names in NEEDED that are nowhere. `beside` is a folder that the programs
    search anyway."""
    cached, first = _loader_knows() if known is None else known
    toolkits = [f for pattern in TOOLKITS for f in sorted(glob.glob(pattern))] if toolkits is None else toolkits
    added, missing = [], []
    if DRIVER not in cached:
        added = [folder for folder in DRIVERS if os.path.exists(os.path.join(folder, DRIVER))][:1]
    for name in NEEDED:
        has = lambda folder: os.path.exists(os.path.join(folder, name))
        if name in cached or any(map(has, first + added + ([str(beside)] if beside else []))):
            continue
        if packages is None:
            packages = _packages()
        # A cuDNN of PyTorch's was tried with its CUDA: those two go together.
        folder = next(filter(has, packages + toolkits), None)
        if folder is None:
            missing.append(name)
        else:
            added.append(folder)
    return added, missing


def environment(beside=None, extra=None):
    """Of a program that uses a GPU, and one line on what is missing, or None."""
    added, missing = find(beside)
    variables = dict(os.environ, **(extra or {}))
    if added:
        before = variables.get("LD_LIBRARY_PATH")
        variables["LD_LIBRARY_PATH"] = ":".join(added + ([before] if before else []))
    if not missing:
        return variables, None
    return variables, (f"missing: {', '.join(f'{name} ({NEEDED[name]})' for name in missing)}: neither the loader nor "
                       "/usr/local/cuda nor a Python package nvidia.* has it; set LD_LIBRARY_PATH")
