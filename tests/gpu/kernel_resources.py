#!/usr/bin/env python3
"""Compares registers and spills of our CUDA kernels with those that are kept in kernel_resources.txt.

    kernel_resources.py BUILD_FOLDER [--update]

A kernel that needs more registers or spills more than it did fails, and so does one that is not listed; whoever
meant it runs this with --update and commits the difference. Compared, and updated, are the architectures that the
folder was configured for: tests/run compiles for one alone, `cmake --preset release` for all. What another nvcc makes
is not compared (exit code 77).
"""
import argparse
import glob
import os
import re
import subprocess
import sys

KEPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernel_resources.txt")
HEADER = """# Registers and bytes of spills of each kernel on each architecture, as ptxas says; kept by kernel_resources.py.
# {compiler}
"""


def compiler():
    nvcc = next((p for p in ("nvcc", "/usr/local/cuda/bin/nvcc") if subprocess.call(
        ["which", p], stdout=subprocess.DEVNULL) == 0), None)
    if nvcc is None:
        sys.exit("no nvcc on PATH or in /usr/local/cuda/bin")
    said = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    return "nvcc " + re.search(r"V([\d.]+)", said).group(1)


def readable(names):
    """Without what depends on where a file lies: the hash in the name of an unnamed namespace."""
    demangled = subprocess.run(["c++filt"], input="\n".join(names), check=True, capture_output=True, text=True).stdout
    unnamed = re.compile(r"_GLOBAL__N__[0-9a-f]+_\d+_\w+?_cu_[0-9a-f_]+::")
    where = re.compile(r"trainyard::kernels::(cuda::)?|\(anonymous namespace\)::")
    return [re.sub(r"^void ", "", where.sub("", unnamed.sub("", line))) for line in demangled.splitlines()]


def measured(build):
    """{(architecture, kernel): (registers, spilled bytes)}"""
    entries, found = [], {}
    for path in sorted(glob.glob(os.path.join(build, "kernels", "cuda", "**", "*.resources"), recursive=True)):
        name = architecture = spills = None
        with open(path) as f:
            for line in f:
                if m := re.search(r"Compiling entry function '(\S+)' for '(\w+)'", line):
                    name, architecture = m.groups()
                elif m := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
                    spills = int(m.group(1)) + int(m.group(2))
                elif (m := re.search(r"Used (\d+) registers", line)) and name:
                    entries.append((architecture, name, int(m.group(1)), spills))
                    name = None
    if not entries:
        sys.exit(f"{build}: no kernel was compiled here with CUDA on")
    for (architecture, _, registers, spills), kernel in zip(entries, readable([e[1] for e in entries])):
        # Those of one name in different files are taken together.
        before = found.get((architecture, kernel), (0, 0))
        found[architecture, kernel] = (max(registers, before[0]), max(spills, before[1]))
    return found


def kept():
    with open(KEPT) as f:
        lines = f.read().splitlines()
    table = {}
    for line in lines[2:]:
        architecture, registers, spills, kernel = line.split(maxsplit=3)
        table[architecture, kernel] = (int(registers), int(spills))
    return lines[1].removeprefix("# "), table


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--update", action="store_true")
    args = parser.parse_args()
    found = measured(args.build)
    architectures = sorted({architecture for architecture, _ in found})
    with_compiler, before = kept()
    if args.update:
        if with_compiler == compiler():  # what was not compiled now is as it was
            found |= {key: value for key, value in before.items() if key[0] not in architectures}
        with open(KEPT, "w") as f:
            f.write(HEADER.format(compiler=compiler()))
            for (architecture, kernel), (registers, spills) in sorted(found.items()):
                f.write(f"{architecture:7} {registers:4} {spills:5}  {kernel}\n")
        return
    if with_compiler != compiler():
        print(f"kernel_resources.txt is of {with_compiler}, this is {compiler()}")
        sys.exit(77)
    worse = 0
    for key, (registers, spills) in sorted(found.items()):
        was = before.get(key)
        if was is None or registers > was[0] or spills > was[1]:
            worse += 1
            print(f"{key[0]} {key[1]}: {registers} registers, {spills} bytes spilled;",
                  "not listed" if was is None else f"before {was[0]} and {was[1]}")
    spilling = sum(spills > 0 for _, spills in found.values())
    print(f"{len(found)} kernels of {', '.join(architectures)}, {spilling} of them spill,",
          f"{worse} worse than before or new")
    if worse:
        sys.exit("if that is meant: tests/gpu/kernel_resources.py BUILD_FOLDER --update")


if __name__ == "__main__":
    main()
