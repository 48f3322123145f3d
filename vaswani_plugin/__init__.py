"""The Transformer of "Attention Is All You Need" (2017) as a plugin of fairseq.

    fairseq-train DATA --user-dir vaswani_plugin --arch vaswani2017

Importing this package registers the architectures, the learning-rate schedule, the criterion and
the task with fairseq.
"""

import sys

from . import toolkit

__version__ = "1.0.0"

_problem = toolkit.problem()
if _problem is None:
    toolkit.silence_known_warnings()
    toolkit.allow_safe_checkpoints()
    toolkit.show_user_errors_as_sentences()
    toolkit.end_prefetching_at_exit()
    toolkit.bound_onednn_caches()
    __path__.extend(toolkit.name_every_path(__path__))

    from . import adam, architectures, deviations, label_smoothing, learning_rate, transformer, translation  # noqa: F401
elif sys.argv[0] != "-m":  # `python -m vaswani_plugin` reports the problem itself, in one line
    raise ImportError(_problem)
