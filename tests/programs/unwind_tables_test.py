#!/usr/bin/python3
# An exception finds its way through every function of the programs given.
"""Whoever throws looks functions up by their address in a table (.eh_frame_hdr). Where a function of no length begins
at the address of another one, the linker keeps one entry for both, and if it keeps the empty one, an exception that
passes the other ends the process without a word. The compiler makes such functions of unreachable cold parts."""
import collections
import pathlib
import re
import subprocess
import sys


def hidden_functions(program):
    """Addresses of functions that may not be found, and how many functions there are."""
    listing = subprocess.run(["readelf", "--debug-dump=frames-interp", program], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True, check=True).stdout
    lengths = collections.defaultdict(list)
    for begin, end in re.findall(r"FDE .*pc=([0-9a-f]+)\.\.([0-9a-f]+)", listing):
        lengths[int(begin, 16)].append(int(end, 16) - int(begin, 16))
    return [f"{address:x}" for address, found in lengths.items() if min(found) == 0 < max(found)], len(lengths)


def main():
    failed = False
    for program in sys.argv[1:]:
        hidden, functions = hidden_functions(program)
        print(f"{pathlib.Path(program).name}: {functions} functions, {len(hidden)} that an exception may not find "
              f"{' '.join(hidden[:10])}")
        failed |= bool(hidden) or functions < 100
    sys.exit(failed)


if __name__ == "__main__":
    main()
