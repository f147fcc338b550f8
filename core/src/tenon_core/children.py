"""How Python is started again: a module in a process of its own, blind to the folder it is started in.

`python -m` puts the current folder first on the path: whoever starts a server inside a model's folder would run
that folder's `torch.py` or `json.py`; code of models is never run, so our processes drop the entry first. (Python's own
flag for that, -P, came with 3.11.)
"""

from __future__ import annotations

import sys

_START = (
    "import sys; sys.path[:] = filter(None, sys.path); del sys.argv[0];"
    " import runpy; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs `module` as `python -m` does, but for the current folder."""
    return [sys.executable, "-c", _START, module, *arguments]
