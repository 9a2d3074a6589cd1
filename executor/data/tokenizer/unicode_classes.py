"""Writes unicode_ranges.inc: the code points whose general category is a letter or a number.

    python3 -m venv v && v/bin/pip install unicodedata2==16.0.0 && v/bin/python unicode_classes.py

Unicode 16.0.0, because that is what the `tokenizers` package knows (its Oniguruma 6.9.10); with another
version a text in a newly encoded script would be cut into other words there than here.
"""
import pathlib

import unicodedata2


def ranges(kind):
    """Inclusive ranges of the code points whose category begins with `kind`."""
    found = []
    for c in range(0x110000):
        if unicodedata2.category(chr(c))[0] != kind:
            continue
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


def main():
    lines = [f"// Written by unicode_classes.py from Unicode {unicodedata2.unidata_version}."]
    for name, kind in (("kLetters", "L"), ("kNumbers", "N")):
        lines.append(f"constexpr char32_t {name}[][2] = {{")
        cells = [f"{{0x{first:X}, 0x{last:X}}}," for first, last in ranges(kind)]
        line = "   "
        for cell in cells:
            if len(line) + 1 + len(cell) > 100:
                lines.append(line)
                line = "   "
            line += " " + cell
        lines += [line, "};"]
    pathlib.Path(__file__).with_name("unicode_ranges.inc").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
