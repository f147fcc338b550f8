"""`tenon ops record MODEL`: the op cases of a real run, as a file that the conformance kit replays on any platform.

Recorded are inputs and stored weights, not results: a replay compares with float64 computed from the same inputs.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..flags import ENGINE_SECTIONS, SectionedCommand, config_flags, engine_config
from ..logs import start_logging
from ..output import human_bytes, print_table

if TYPE_CHECKING:
    from torch import Tensor

    from tenon_core.engine.assembly import Sockets
    from tenon_platforms.device import Device


@click.command(cls=SectionedCommand)
@click.option("--output", "-o", default="op-cases.safetensors", show_default=True, help="The file to write.")
@click.option(
    "--prompt", "-p", "prompts", multiple=True, help="A prompt to run; may be repeated; default: three texts."
)
@click.option("--max-tokens", type=click.IntRange(1), default=4, show_default=True, help="Tokens after each prompt.")
@click.option("--op", "ops", multiple=True, help="Record this op only; may be repeated.")
@click.option("--calls", type=click.IntRange(1), default=2, show_default=True, help="Calls kept of a spec and layer.")
@click.option("--max-case-mib", type=click.IntRange(1), default=256, show_default=True, help="Leave out larger cases.")
@config_flags(*ENGINE_SECTIONS)
def record(
    output: str,
    prompts: tuple[str, ...],
    max_tokens: int,
    ops: tuple[str, ...],
    calls: int,
    max_case_mib: int,
    **values: Any,
) -> None:
    """Record the op cases of a real run of MODEL, for `pytest --pyargs tenon_plugin_sdk.conformance.replay`."""
    config = engine_config({**values, "overlap": False, "enforce_eager": True})
    start_logging("error")
    from tenon_platforms.errors import ConfigError
    from tenon_platforms.execution import ExecutableKind

    from .case_file import write_cases
    from .recorder import RECORDED_OPS, Recorder
    from .recording import RecordingTable
    from .runs import encode, run_greedy

    if unknown := sorted(set(ops) - set(RECORDED_OPS)):
        raise ConfigError(
            f"--op {unknown[0]}: that op is not recorded", remedy=f"choose from {', '.join(RECORDED_OPS)}"
        )
    recorder = Recorder(ops=frozenset(ops), calls=calls, max_bytes=max_case_mib << 20)
    sizes: list[int] = []

    def begin(sockets: Sockets) -> None:
        if sockets.capabilities.executable is ExecutableKind.TRACE:
            raise ConfigError(
                f"platform {sockets.platform.name!r} compiles its steps, so single calls cannot be watched there",
                remedy="record with --platform reference and replay the file on this platform",
            )
        recorder.active = True

    def write(sockets: Sockets) -> None:
        recorder.active = False
        about = {"model": config.model.model, "platform": sockets.platform.name}
        fetch = partial(_to_host, sockets.device)
        sizes.append(write_cases(Path(output), recorder.cases, to_host=fetch, about=about))

    ran = run_greedy(
        config,
        encode(config, prompts),
        max_tokens=max_tokens,
        make_table=partial(RecordingTable, recorder=recorder),
        on_ready=begin,
        on_done=write,
    )
    counts: dict[str, tuple[int, set[Any]]] = {}
    for case in recorder.cases:
        count, specs = counts.get(case.spec.op, (0, set()))
        counts[case.spec.op] = (count + 1, specs | {case.spec})
    print_table(
        f"{output}: {len(recorder.cases)} cases of {config.model.model} on {ran.platform}, {human_bytes(sizes[0])}",
        ("op", "specs", "cases"),
        [(op, len(specs), count) for op, (count, specs) in sorted(counts.items())],
        right=("specs", "cases"),
    )
    for op, least in sorted(recorder.skipped.items()):
        click.echo(f"left out of {op}: cases of {human_bytes(least)} and more; raise --max-case-mib", err=True)


def _to_host(device: Device, tensor: Tensor) -> Tensor:
    staged = device.host_buffer(tuple(tensor.shape), tensor.dtype)
    device.copy(staged, tensor)
    device.synchronize()
    return staged.clone()
