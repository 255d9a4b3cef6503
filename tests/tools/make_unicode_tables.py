#!/usr/bin/env python3
"""Prints the tables by which runtime/text/pretok.c and runtime/text/nfc.c
follow the Unicode versions of the reference tokenizer.

The reference (Hugging Face `tokenizers`) matches letters and numbers with
Oniguruma, digits with Rust's standard library and normalises with a crate of
its own: three Unicode versions, none of them that of our libraries. This tool
asks the reference about every code point and prints what differs from
  - general categories L and N of Unicode 14 (the oldest PCRE2 we build with),
  - NFC of the newest Unicode there is (package unicodedata2).

Needs: pip install tokenizers unicodedata2, and Python 3.11 (Unicode 14).
"""
import unicodedata

import unicodedata2
from tokenizers import Regex
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import Digits, Split

SCALARS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def members(pattern):
    """Code points that the reference's regular expressions find."""
    split = Split(Regex(pattern), "removed")
    found = set()
    for i in range(0, len(SCALARS), 4096):
        chunk = SCALARS[i:i + 4096]
        kept = set()
        for _, (a, b) in split.pre_tokenize_str("".join(map(chr, chunk))):
            kept.update(range(a, b))
        found.update(c for k, c in enumerate(chunk) if k not in kept)
    return found


def ranges(points):
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def as_class(points):
    return " ".join(
        "\\x{%X}" % a if a == b else "\\x{%X}-\\x{%X}" % (a, b)
        for a, b in ranges(points))


def category(letter):
    assert unicodedata.unidata_version == "14.0.0"
    return {c for c in SCALARS if unicodedata.category(chr(c))[0] == letter}


def newer_than_reference():
    """Code points that the reference's NFC leaves alone and Unicode does
    not: marks that it does not sort, parts that it does not compose."""
    nfc = NFC().normalize_str
    new = set()
    for c in SCALARS:
        ch = chr(c)
        cc = unicodedata2.combining(ch)
        probes = []
        if cc not in (0, 1):
            probes.append("q" + ch + "\u0334")  # class 1 goes before it
        if cc not in (0, 240):
            probes.append("q\u0345" + ch)  # class 240 goes behind it
        if any(nfc(p) != unicodedata2.normalize("NFC", p) for p in probes):
            new.add(c)
        parts = unicodedata2.decomposition(ch).split()
        if parts and not parts[0].startswith("<"):
            text = "".join(chr(int(p, 16)) for p in parts)
            if nfc(text) != unicodedata2.normalize("NFC", text):
                new.update((c, ord(text[0])))
    return new


def main():
    space = members(r"\s")
    print("white space:", as_class(space))
    for name, letter in (("letters", "L"), ("numbers", "N")):
        have, want = category(letter), members(r"\p{%s}" % letter)
        print(name, "more:", as_class(want - have))
        print(name, "fewer:", as_class(have - want))
    digits = Digits(individual_digits=True)
    want = {c for c in SCALARS
            if len(digits.pre_tokenize_str("a" + chr(c))) == 2}
    print("digits more:", as_class(want - category("N")))
    print("digits fewer:", as_class(category("N") - want))
    print("unknown to NFC:")
    for a, b in ranges(newer_than_reference()):
        print("    {0x%X, 0x%X}," % (a, b))


if __name__ == "__main__":
    main()
