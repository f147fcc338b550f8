"""The child of `tenon doctor`: imports the selected platform, opens its device, and tells what it finds as JSON.

Standard input: {selection, options}. Standard output: {problem, platform, state, reason}, and nothing else: what a
plugin prints goes to standard error.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
import traceback
from typing import Any

from tenon_platforms.capabilities import Capabilities
from tenon_platforms.errors import TenonError
from tenon_platforms.handshake import PluginLoadError, load_selected
from tenon_platforms.mending import mending
from tenon_platforms.selection import Selection

from .output import human_bytes
from .platform_check import problem_of


def main() -> None:
    """Read the order, check, answer."""
    answer_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    order = json.load(sys.stdin)
    json.dump(check(Selection.from_dict(order["selection"]), order["options"]), answer_to)
    answer_to.close()


def check(selection: Selection, options: dict[str, Any]) -> dict[str, Any]:
    """Load and describe the platform; whatever it raises becomes the problem."""
    try:
        return {"problem": None, "platform": describe(selection, options), "state": None, "reason": None}
    except PluginLoadError as error:
        mine = next(item for item in error.selection.plugins if item.name == selection.platform)
        return {"problem": problem_of(error), "platform": None, "state": str(mine.state), "reason": mine.reason}
    except TenonError as error:
        return {"problem": problem_of(error), "platform": None, "state": "broken", "reason": error.message}
    except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything; the report says what
        message = f"platform {selection.platform!r} ({selection.manifest.owner}) fails: {type(error).__name__}: {error}"
        problem = {
            "kind": "PluginError",
            "message": message,
            "remedy": selection.manifest.remedy or mending(selection.manifest.distribution, selection.manifest.path),
            "traceback": traceback.format_exc(),
        }
        return {"problem": problem, "platform": None, "state": "broken", "reason": message}


def describe(selection: Selection, options: dict[str, Any]) -> dict[str, Any]:
    """Devices, capabilities, memory and which ops the platform has kernels for."""
    start = time.perf_counter()
    platform = load_selected(selection)(options)
    devices = [_device(info) for info in platform.probe()]
    device = platform.device(0)
    device.open()
    try:
        capabilities = platform.capabilities(device)
        memory = device.memory()
        offered = _offered(platform, device)
        seconds = time.perf_counter() - start
    finally:
        device.close()
    return {
        "seconds": round(seconds, 3),
        "devices": devices,
        "capabilities": _plain(capabilities),
        "memory": f"{human_bytes(memory.free)} of {human_bytes(memory.total)} free",
        "memory_free": memory.free,
        "memory_total": memory.total,
        **offered,
    }


def _device(info: Any) -> dict[str, Any]:
    plain = {**dataclasses.asdict(info), "links": list(info.links)}
    facts = [info.name, info.arch, human_bytes(info.memory) if info.memory else "", info.uuid]
    return {**plain, "line": ", ".join(fact for fact in facts if fact)}


def _offered(platform: Any, device: Any) -> dict[str, list[str]]:
    from tenon_platforms.ops.references import REFERENCES
    from tenon_platforms.ops.table import OpTable

    table = OpTable(platform=platform.name)
    platform.register_ops(table, device)
    offered = sorted({spec_type.op for spec_type in table.spec_types_offered})
    return {"ops_offered": offered, "ops_reference": sorted(set(REFERENCES) - set(offered))}


def _plain(capabilities: Capabilities) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(item) for item in value]
        return getattr(value, "value", value)

    return {item.name: plain(getattr(capabilities, item.name)) for item in dataclasses.fields(capabilities)}


if __name__ == "__main__":
    main()
