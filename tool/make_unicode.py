#!/usr/bin/env python3
"""The table of letters, numbers and spaces, which the tokenizers split text by.

    tool/make_unicode.py >model/unicode.c          the table; needs the tables of Unicode of that version
    tool/make_unicode.py --check model/unicode.c   compares it with whatever version this Python has

The version is the one whose categories llama.cpp has too. Python 3.12 has it; for another Python the package unicodedata2,
version 15.0.0, has it.
"""
import sys
import unicodedata

VERSION = "15.0.0"
OTHER, LETTER, NUMBER, SPACE = range(4)


def tables(version):
    """A module with the categories of that version, or None."""
    if unicodedata.unidata_version == version:
        return unicodedata
    try:
        import unicodedata2
    except ImportError:
        return None
    return unicodedata2 if unicodedata2.unidata_version == version else None


def class_of(module, c):
    """White_Space is what is a separator, and six of the control characters."""
    category = module.category(chr(c))
    if category[0] == "Z" or 9 <= c <= 13 or c == 0x85:
        return SPACE
    return {"L": LETTER, "N": NUMBER}.get(category[0], OTHER)


def ranges(module):
    """The first character of each run of one class, with that class in the two lowest bits."""
    last, found = None, []
    for c in range(0x110000):
        kind = class_of(module, c)
        if kind != last:
            found.append(c << 2 | kind)
        last = kind
    return found


def source(found):
    lines = [
        "/* Made by `tool/make_unicode.py >model/unicode.c`: Unicode " + VERSION + ". */",
        '#include "unicode.h"',
        "",
        "const uint32_t unicode_ranges[] = {",
    ]
    for i in range(0, len(found), 12):
        lines.append("    " + " ".join("0x%x," % x for x in found[i : i + 12]))
    lines += ["};", "const size_t unicode_range_count = sizeof unicode_ranges / sizeof *unicode_ranges;", ""]
    return "\n".join(lines)


def read(path):
    """The class of every character, as the file has it."""
    with open(path) as file:
        text = file.read()
    found = [int(x, 16) for x in text[text.index("{") + 1 : text.index("}")].replace(",", " ").split()]
    classes = bytearray(0x110000)
    for at, end in zip(found, found[1:] + [0x110000 << 2]):
        for c in range(at >> 2, end >> 2):
            classes[c] = at & 3
    return classes


def check(path):
    module = tables(VERSION)
    if module:
        with open(path) as file:
            same = file.read() == source(ranges(module))
        print("%s is %swhat this prints" % (path, "" if same else "not "))
        return not same
    # Another version gives other characters their meaning, but takes it from none.
    classes = read(path)
    older = [int(x) for x in unicodedata.unidata_version.split(".")] < [int(x) for x in VERSION.split(".")]
    wrong = [
        c
        for c in range(0x110000)
        if classes[c] != class_of(unicodedata, c)
        and (unicodedata.category(chr(c)) != "Cn" if older else classes[c] != OTHER)
    ]
    print("%s against Unicode %s: %d characters differ" % (path, unicodedata.unidata_version, len(wrong)), *map(hex, wrong[:10]))
    return bool(wrong)


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--check":
        return check(arguments[1])
    module = tables(VERSION)
    if arguments or not module:
        print(__doc__ if arguments else "make_unicode.py: needs Unicode %s, see its head" % VERSION, file=sys.stderr)
        return 2
    sys.stdout.write(source(ranges(module)))
    return 0


sys.exit(main(sys.argv[1:]))
