#!/usr/bin/python3
"""Prints which tests were skipped and why, from JUnit reports of ctest: a line for each reason.

    skipped.py REPORT.xml..."""
import collections
import re
import sys
import xml.etree.ElementTree

# GoogleTest writes the reason below "FILE:LINE: Skipped"; our own scripts write "skipped: REASON".
REASON = re.compile(r"^.*: Skipped\n(?P<of_gtest>.+)$|^skipped: (?P<of_script>.+)$", re.MULTILINE)


def skipped(report):
    """(name of the test, reason) of each test of a report that did not run to its end."""
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            continue
        found = REASON.search(case.findtext("system-out") or "")
        if found:
            reason = found["of_gtest"] or found["of_script"]
        else:
            reason = case.find("skipped").get("message") or "no reason was given"
        yield case.get("name"), reason.strip()


def main():
    tests = collections.defaultdict(list)
    for report in sys.argv[1:]:
        for name, reason in skipped(report):
            tests[reason].append(name)
    for reason, names in sorted(tests.items()):
        shown = ", ".join(sorted(set(names))[:3])
        more = len(set(names)) - 3
        print(f"skipped {len(names)}: {reason} ({shown}{f' and {more} more' if more > 0 else ''})")


if __name__ == "__main__":
    main()
