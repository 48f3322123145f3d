"""Which pairs repeat an earlier one, found in memory that does not grow with the corpus."""

import numpy as np

# So many pairs are compared at a time; 16 bytes each and as much again for sorting.
AT_ONCE = 2_000_000


def first_occurrences(path, at_once=AT_ONCE):
    """For a file of digests of 16 bytes, one a pair: an array of bool, True for each that was not there before."""
    digests = np.memmap(path, dtype=np.uint64, mode="r").reshape(-1, 2) if path.stat().st_size else np.empty((0, 2), np.uint64)
    first = np.zeros(len(digests), bool)
    shares = len(digests) // at_once + 1
    for share in range(shares):
        # Equal digests fall into the same share; a part of the file is looked at after the other.
        rows = np.concatenate(
            [
                start + np.flatnonzero(digests[start : start + at_once, 0] % shares == share)
                for start in range(0, len(digests), at_once)
            ]
            or [np.empty(0, int)]
        )
        part = digests[rows]
        order = np.lexsort((part[:, 1], part[:, 0]))  # stable: of equal ones the earliest comes first
        part = part[order]
        new = np.ones(len(part), bool)
        new[1:] = (part[1:] != part[:-1]).any(axis=1)
        first[rows[order[new]]] = True
    return first
