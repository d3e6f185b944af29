#!/usr/bin/env python3
"""Writes src/text/char_class_table.inc: the character classes of prompt-encoding.md 1.3 as ranges of code points.

Needs Unicode data 15.0 or later: the package unicodedata2 where it is installed (`pip install unicodedata2`), else
Python's own. Run from the root of the repository:  tools/unicode_classes.py > src/text/char_class_table.inc
"""
import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

if int(unicodedata.unidata_version.split(".")[0]) < 15:
    sys.exit(f"Unicode {unicodedata.unidata_version} is too old: 15.0 or later is needed (pip install unicodedata2)")

# The White_Space property; the general categories alone do not give it (U+0085 is a control, U+200B is none).
SPACE = {0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
SPACE |= set(range(0x09, 0x0E)) | set(range(0x2000, 0x200B))

NAMES = {"L": "kLetter", "M": "kMark", "N": "kNumber", "P": "kPunctuation", "S": "kSymbol"}


def char_class(c):
    if c in (0x0A, 0x0D):
        return "kLineBreak"
    if c in SPACE:
        return "kSpace"
    return NAMES.get(unicodedata.category(chr(c))[0], "kOther")


print(f"// Written by tools/unicode_classes.py from Unicode {unicodedata.unidata_version}. Do not edit.")
print("// {first code point, class}: the class holds up to the next row.")
previous = None
for c in range(0x110000):
    now = char_class(c)
    if now != previous:
        print(f"{{0x{c:X}, {now}}},")
        previous = now
