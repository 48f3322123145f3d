"""``python -m vaswani_plugin``: where the plugin lies and what it runs on."""

import platform
import sys
from pathlib import Path

from . import __version__, toolkit


def main():
    problem = toolkit.problem()
    if problem is not None:
        sys.exit(f"error: {problem}")
    import torch

    name, version = toolkit.fairseq_distribution() or ("fairseq", "(a source tree)")
    print(f"vaswani_plugin {__version__}")
    print(f"user-dir  {Path(__file__).resolve().parent}")
    print(f"toolkit   {name} {version}")
    print(f"torch     {torch.__version__} ({torch.cuda.device_count()} GPUs)")
    print(f"Python    {platform.python_version()} on {platform.system()} {platform.machine()}")


if __name__ == "__main__":
    main()
