"""The same function over many blocks of work, in several processes, with the results in order."""

import os
import threading
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import parent_process

_worker = None


def _start(make, arguments):
    global _worker
    # A worker whose parent was killed would wait for work for ever.
    threading.Thread(target=lambda: (parent_process().join(), os._exit(1)), daemon=True).start()
    _worker = make(*arguments)


def _work(block):
    return _worker(block)


def ordered_map(make, arguments, blocks, workers):
    """Yield `make(*arguments)(block)` for each block, in order; only a few blocks per process are in memory at a time.

    `make` builds the function once in each process. With one worker all happens in this process. Raises ValueError: a
    process was killed, as the system does when memory runs out.
    """
    if workers == 1:
        function = make(*arguments)
        yield from map(function, blocks)
        return
    waiting = deque()
    pool = ProcessPoolExecutor(workers, initializer=_start, initargs=(make, arguments))
    try:
        for block in blocks:
            waiting.append(pool.submit(_work, block))
            if len(waiting) > 3 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise ValueError(
            "a worker process was killed, perhaps for want of memory; the same command goes on from the last finished"
            " step, with --workers 1 it needs less."
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def blocks_of(items, size):
    """Lists of `size` items; the last may be shorter."""
    block = []
    for item in items:
        block.append(item)
        if len(block) == size:
            yield block
            block = []
    if block:
        yield block
