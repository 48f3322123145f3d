"""Dictionary and binary files of fairseq, byte for byte those of `fairseq-preprocess --joined-dictionary`, faster.

fairseq counts and numbers word by word and writes number by number into a tensor; here a block of lines is counted or
numbered at once.
"""

import struct
from array import array
from itertools import islice

import numpy as np
from parallel import ordered_map

LINES = 5000
# Lines of which the positions are computed at a time.
AT_ONCE = 1_000_000


def make_dictionary(counts, threshold):
    """fairseq's dictionary of `{subword: count}`, without those rarer than `threshold`."""
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for subword, count in sorted(counts.items()):
        dictionary.add_symbol(subword, count)
    dictionary.finalize(threshold=threshold, nwords=-1, padding_factor=8)
    return dictionary


class Numbered:
    """Called with a list of lines, gives `(numbers of all their subwords as bytes, lengths, unknown subwords)`."""

    def __init__(self, indices, unknown, end, dtype):
        self.indices, self.unknown, self.end, self.dtype = indices, unknown, end, dtype

    def __call__(self, lines):
        number, unknown, end = self.indices.get, self.unknown, self.end
        numbers, lengths = [], []
        for line in lines:
            words = line.decode("utf-8").split()
            numbers += [number(word, unknown) for word in words]
            numbers.append(end)
            lengths.append(len(words) + 1)
        numbers = np.array(numbers, dtype=self.dtype)
        return numbers.tobytes(), lengths, int((numbers == unknown).sum())


def binarise(text, dictionary, prefix, workers, progress):
    """Write `prefix.bin` and `prefix.idx` of a file of subwords; returns the counts of lines and of unknown subwords."""
    from fairseq.data import indexed_dataset

    dtype = indexed_dataset.best_fitting_int_dtype(len(dictionary))
    arguments = (dictionary.indices, dictionary.unk(), dictionary.eos(), dtype)
    all_lengths = array("i")
    unknown = 0
    with open(text, "rb") as lines, open(indexed_dataset.data_file_path(str(prefix)), "wb") as data:
        blocks = iter(lambda: list(islice(lines, LINES)), [])
        for numbers, lengths, missed in ordered_map(Numbered, arguments, blocks, workers):
            data.write(numbers)
            all_lengths.extend(lengths)
            unknown += missed
            progress(len(lengths))
    index_path = indexed_dataset.index_file_path(str(prefix))
    with indexed_dataset.MMapIndexedDataset.Index.writer(index_path, dtype):
        pass  # fairseq's own header; its list of positions would take 40 bytes of memory a line
    with open(index_path, "ab") as index:
        index.write(struct.pack("<Q", len(all_lengths)))
        index.write(np.asarray(all_lengths, dtype=np.int32).tobytes())
        position = 0
        for start in range(0, len(all_lengths), AT_ONCE):
            sizes = np.asarray(all_lengths[start : start + AT_ONCE], dtype=np.int64) * np.dtype(dtype).itemsize
            ends = position + np.cumsum(sizes)
            index.write((ends - sizes).tobytes())
            position = int(ends[-1])
    return len(all_lengths), unknown
