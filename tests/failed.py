#!/usr/bin/python3
"""Prints what failing tests printed, from JUnit reports of ctest, and then their names: a line for each.

    failed.py [--names] REPORT.xml...

With --names the names alone. Of long outputs the beginning and the end are printed. Exit code 0: every report could be
read, and one names a failing test."""
import argparse
import re
import sys
import xml.etree.ElementTree

FIRST, LAST = 60, 140  # lines of an output that are printed
# What GoogleTest says of the tests of a program that passed.
PASSED = re.compile(r"^\[( RUN      |       OK |----------|==========)\] .*\n?|^\n", re.MULTILINE)


def failed(report):
    """(name, seconds, output) of each test of a report that failed, or whose program could not be started."""
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is None and (skipped is None or skipped.get("message", "").startswith("SKIP_")):
            continue
        yield case.get("name"), float(case.get("time")), case.findtext("system-out") or ""


def shortened(output):
    lines = PASSED.sub("", output).splitlines()
    if len(lines) <= FIRST + LAST:
        return lines
    return [*lines[:FIRST], f"[{len(lines) - FIRST - LAST} lines are left out]", *lines[-LAST:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true", help="the names alone")
    parser.add_argument("report", nargs="+")
    options = parser.parse_args()
    found, unreadable = [], 0
    for report in options.report:
        try:
            found += failed(report)
        except (OSError, xml.etree.ElementTree.ParseError) as error:
            print(f"{report}: {error}")
            unreadable += 1
    if not options.names:
        for name, seconds, output in found:
            print(f"--- {name} failed after {seconds:.1f} s:", *shortened(output), sep="\n")
    for name, _, _ in found:
        print(f"failed: {name}")
    return 0 if found and not unreadable else 1


if __name__ == "__main__":
    sys.exit(main())
