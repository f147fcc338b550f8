"""No object deserialiser and no evaluation of text, anywhere in our tree (attack case T08).

In product code the modules may not even be imported. Tests may *make* such files, to prove that they are refused;
nothing of ours may load one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from architecture.sources import Source, dotted, imports

MODULES = frozenset(
    {
        "pickle",
        "_pickle",
        "cPickle",
        "cloudpickle",
        "dill",
        "marshal",
        "shelve",
        "joblib",
        "jsonpickle",
        "copyreg",
        "multiprocessing",
    }
)
HARMLESS = frozenset({"multiprocessing.shared_memory", "multiprocessing.resource_tracker"})
LOADING_MODULES = MODULES - {"multiprocessing", "copyreg"}
CALLS = frozenset({"torch.load", "torch.save", "torch.jit.load", "torch.package", "torch.export.load", "yaml.load"})
METHODS = frozenset(
    {"recv_pyobj", "send_pyobj", "read_pickle", "to_pickle", "all_gather_object", "broadcast_object_list"}
)
BUILTINS = frozenset({"eval", "exec", "compile"})


def violations(sources: Iterable[Source], *, is_test: bool = False) -> list[str]:
    """Every use; in tests only what loads or evaluates."""
    found = []
    for source in sources:
        if not is_test:
            found += [
                f"{source.at(node)} imports {module}"
                for module, node in imports(source)
                if module.partition(".")[0] in MODULES and module not in HARMLESS
            ]
        for node in ast.walk(source.tree):
            reason = _reason(node, is_test)
            if reason:
                found.append(f"{source.at(node)} {reason}")
    return found


def _reason(node: ast.AST, is_test: bool) -> str:
    if isinstance(node, ast.ImportFrom) and node.module in {"torch", "torch.serialization"}:
        names = {alias.name for alias in node.names} & {"load", "save"}
        return f"imports {', '.join(sorted(names))} from torch" if names else ""
    if not isinstance(node, ast.Call):
        return ""
    called = dotted(node.func)
    head, _, method = called.rpartition(".")
    if called in BUILTINS:
        return f"calls {called}()"
    if called in CALLS and not (is_test and called == "torch.save"):
        return f"calls {called}()"
    if (method or called) in METHODS:
        return f"calls {method or called}()"
    if head in LOADING_MODULES and method in {"load", "loads", "Unpickler", "open"}:
        return f"calls {called}()"
    for keyword in node.keywords:
        if keyword.arg == "allow_pickle" and not _is_false(keyword.value):
            return "passes allow_pickle"
        if keyword.arg == "weights_only":
            return "passes weights_only: that is a pickle loader"
    return ""


def _is_false(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is False
