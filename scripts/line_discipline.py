"""One sentence, one line, for every program that reads the file afterwards.

fairseq opens text with Python's universal newlines, so that a carriage return ends a line as "\\n" does; other readers
stop at form feeds, U+0085 or U+2028 too; subword-nmt separates words at spaces only, fairseq at all that Unicode calls
white space. A sentence that holds none of these characters is one line to all of them.
"""

import re

SEPARATORS = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
CONTROLS = "".join(chr(n) for n in [*range(0x20), *range(0x7F, 0xA0)] if chr(n) not in SEPARATORS + "\t\n")
BYTE_ORDER_MARK = "\ufeff"

WINDOWS = "Windows line ends removed"
SEPARATED = "line separators within a line replaced by a space"
CONTROLLED = "control characters removed"
MARKED = "byte order marks removed"
AT_SIGNS = "literal @@ taken apart"

_ODD = re.compile(f"[{re.escape(SEPARATORS + CONTROLS + BYTE_ORDER_MARK)}]|@@")
_SEPARATOR = re.compile(f"[{re.escape(SEPARATORS)}]")
_CONTROL = re.compile(f"[{re.escape(CONTROLS)}]")


def tidy(line, found=None):
    """A line without its end, made fit to be one line: what breaks lines becomes a space, what has no width goes.

    `found`, a Counter, learns how many lines were mended, by what was found in them. `@@`, the mark of subwords, becomes
    `@ @`, which is what the tokeniser makes of it too.
    """
    if not _ODD.search(line):
        return line
    found = {} if found is None else found

    def changed(reason, after):
        if after != line:
            found[reason] = found.get(reason, 0) + 1
        return after

    line = changed(WINDOWS, line.removesuffix("\r"))
    line = changed(MARKED, line.replace(BYTE_ORDER_MARK, ""))
    line = changed(CONTROLLED, _CONTROL.sub("", line))
    line = changed(SEPARATED, _SEPARATOR.sub(" ", line))
    return changed(AT_SIGNS, re.sub("@(?=@)", "@ ", line))
