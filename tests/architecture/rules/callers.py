"""Everything the contract asks for is used: every op, hook and capability has a caller in the core, none is dead."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from architecture.sources import Source, dotted


def classes(sources: Iterable[Source]) -> Iterator[tuple[Source, ast.ClassDef]]:
    """Every class."""
    for source in sources:
        yield from ((source, node) for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef))


def spec_ops(contract: Iterable[Source]) -> dict[str, str]:
    """Spec class -> its op id, for every class in `ops/` that sets a non-empty `op`."""
    return {
        node.name: str(line.value.value)
        for source, node in classes(contract)
        if "/ops/" in source.name
        for line in node.body
        if isinstance(line, ast.AnnAssign) and dotted(line.target) == "op"
        if isinstance(line.value, ast.Constant) and line.value.value
    }


def parts(contract: Iterable[Source]) -> set[str]:
    """Classes that stand in the annotation of another class's field: parts of a spec, which need no kernel."""
    return {
        word.id
        for _, node in classes(contract)
        for line in node.body
        if isinstance(line, ast.AnnAssign)
        for word in ast.walk(line.annotation)
        if isinstance(word, ast.Name) and word.id != node.name
    }


def references(contract: Iterable[Source]) -> dict[str, str]:
    """Op id -> module of its reference factory, from the literal table `REFERENCES`."""
    for source in contract:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.AnnAssign) and dotted(node.target) == "REFERENCES":
                assert isinstance(node.value, ast.Dict)
                return {
                    str(key.value): str(value.args[0].value).partition(":")[0]
                    for key, value in zip(node.value.keys, node.value.values, strict=True)
                    if isinstance(key, ast.Constant)
                    and isinstance(value, ast.Call)
                    and isinstance(value.args[0], ast.Constant)
                }
    raise AssertionError("the contract has no table REFERENCES")


def instantiated(sources: Iterable[Source]) -> set[str]:
    """Names that are called, which is how a spec comes into being."""
    return {
        dotted(node.func).rpartition(".")[2]
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call)
    }


def op_violations(contract: list[Source], core: list[Source]) -> list[str]:
    """Ops without a caller, ops without a reference, references without a spec.

    An op is alive where the core makes its spec, or where the reference of a living op does (a composite's parts).
    A spec that the core only ever asks for with `table.offered` is optional and needs no reference.
    """
    table, held = references(contract), parts(contract)
    specs = {name: op for name, op in spec_ops(contract).items() if op in table or name not in held}
    found = [
        f"reference of op {op!r}: no spec of the contract has this op"
        for op in sorted(set(table) - set(specs.values()))
    ]
    reference_sources = {
        op: [source for source in contract if source.module.endswith(module)] for op, module in table.items()
    }
    made = instantiated(core)
    alive = {op for name, op in specs.items() if name in made}
    while True:
        inside = instantiated(source for op in alive for source in reference_sources.get(op, []))
        more = {op for name, op in specs.items() if name in inside} - alive
        if not more:
            break
        alive |= more
    optional = _offered(core)
    for name, op in sorted(specs.items()):
        if op not in alive:
            found.append(f"op {op!r} ({name}) is dead: nothing in the core makes its spec")
        if op not in table and name not in optional:
            found.append(f"op {op!r} ({name}) has no reference kernel")
    return found


def _offered(core: Iterable[Source]) -> set[str]:
    """Spec classes made inside a call of `offered`."""
    return {
        dotted(inner.func).rpartition(".")[2]
        for source in core
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and dotted(node.func).endswith("offered")
        for argument in node.args
        for inner in ast.walk(argument)
        if isinstance(inner, ast.Call)
    }


def hook_violations(contract: list[Source], core: list[Source]) -> list[str]:
    """Hooks that nothing fires: a method of the control plane must, and the core must call that method."""
    specs: list[str] = []
    fired: dict[str, str] = {}  # hook -> method of the control plane
    for _, node in classes(contract):
        for method in node.body:
            if not isinstance(method, ast.FunctionDef):
                continue
            if any(dotted(mark) == "hookspec" for mark in method.decorator_list):
                specs.append(method.name)
            for call in ast.walk(method):
                if isinstance(call, ast.Call) and ".hook." in dotted(call.func):
                    fired[dotted(call.func).rpartition(".")[2]] = method.name
    called = {
        node.func.attr
        for source in core
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Call)
        and dotted(node.func.value.func) == "control_plane"
    }
    assert specs, "the contract specifies no hook"
    return [f"hook {name!r} is fired by nothing in the core" for name in specs if fired.get(name) not in called]


def capability_violations(contract: list[Source], core: list[Source]) -> list[str]:
    """Fields of `Capabilities` that the core never reads: a capability that decides nothing is a promise unkept."""
    fields = [
        str(dotted(line.target))
        for source, node in classes(contract)
        if node.name == "Capabilities"
        for line in node.body
        if isinstance(line, ast.AnnAssign)
    ]
    assert fields, "the contract has no Capabilities"
    reads = {node.attr for source in core for node in ast.walk(source.tree) if isinstance(node, ast.Attribute)}
    methods = {  # a method of Capabilities that reads a field stands for it
        name: {sub.attr for sub in ast.walk(method) if isinstance(sub, ast.Attribute) and dotted(sub.value) == "self"}
        for source, node in classes(contract)
        if node.name == "Capabilities"
        for method in node.body
        if isinstance(method, ast.FunctionDef)
        for name in [method.name]
    }
    covered = reads | {field for name, used in methods.items() if name in reads for field in used}
    return [f"capability {name!r} is read by nothing in the core" for name in fields if name not in covered]
