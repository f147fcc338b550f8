"""Who serves which prompts: the option, the table, and what is said where a library cannot."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

pytest.importorskip("triton")

from attention_cases import make_batch, make_case, spec_of

from tenon_cuda.capabilities import Arch
from tenon_cuda.ops import installed
from tenon_cuda.ops.prompt_choice import ChosenPrompts, PromptLibraries, require
from tenon_cuda.ops.prompt_table import FLASH_ATTENTION, FLASHINFER, RULES, PromptShape, Rule
from tenon_cuda.ops.triton_offers import register
from tenon_cuda.ops.warpgroups import WarpgroupPrompts
from tenon_cuda.options import LIBRARIES, CUDAOptions
from tenon_platforms.attention import GraphSupport
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError
from tenon_platforms.kernel import No
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.table import OpTable
from tenon_triton.facts import DeviceFacts

pytestmark = pytest.mark.unit
HOPPER = Arch(9, 0)
FACTS = DeviceFacts(compute_units=132, shared_bytes=227 << 10, fp8=True)
LLAMA = spec_of(32, 8, 128, dtype=DType.BFLOAT16, kv_dtype=DType.BFLOAT16)
SHORT = Rule(library=FLASHINFER, arch=(9, 0), head_dim=128, group=(2, 4), row_tokens=(0, 256))
LONG = Rule(library=FLASH_ATTENTION, arch=(9, 0), head_dim=128, row_tokens=(257, 4096), context=(0, 4096))


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found = {"flashinfer-python": "0.6.13", "flash_attn_3": "3.0.0"}

    def version(name: str) -> str:
        if name not in found:
            raise PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(installed, "version", version)
    monkeypatch.setattr(installed, "find_spec", lambda name: name)
    return found


def asked(attention: str = "auto", *rules: Rule, arch: Arch = HOPPER) -> PromptLibraries:
    return PromptLibraries(attention=attention, device=Device(), arch=arch, compute_units=132, rules=rules)


def chosen(libraries: PromptLibraries, spec: AttentionSpec = LLAMA, **options: bool) -> OpTable:
    table = OpTable(platform="cuda", **options)
    register(table, Device(), FACTS, CUDAOptions(), long_prompts=WarpgroupPrompts(libraries.arch), libraries=libraries)
    table.choose(spec, Device())
    return table


def name_and_reasons(table: OpTable) -> tuple[str, str]:
    (choice,) = table.choices
    return choice.kernel.name, "; ".join(reason for _, reason in choice.refused)


@pytest.mark.parametrize("attention", ["auto", "triton", FLASHINFER, FLASH_ATTENTION])
def test_an_e4m3_cache_is_served_by_our_plain_kernels(versions: dict[str, str], attention: str) -> None:
    """No library, and not the prompts' kernel on warp groups: each says why, or leaves it."""
    spec = replace(LLAMA, kv_dtype=DType.FLOAT8_E4M3)
    table = chosen(asked(attention, SHORT, LONG), spec)
    name, why = name_and_reasons(table)
    assert name == "triton.paged"
    if attention != "triton":
        assert "no KV cache in float8_e4m3 under queries in bfloat16; instead: --kv-cache-dtype auto" in why, why
    backend = table.choose(spec, Device()).backend  # type: ignore[attr-defined]
    assert not backend.long_prompts.takes(spec, 64)
    assert backend.layout.block_bytes(64) == 2 * 8 * 128 * 64
    assert backend.graph_support is GraphSupport.ALWAYS and not backend.needs_exact_host_lengths


def test_what_was_not_measured_stays_with_our_kernels(versions: dict[str, str]) -> None:
    name, why = name_and_reasons(chosen(asked()))
    assert name == "triton.paged" and "no library was measured faster" in why
    for rule, arch in (
        (SHORT, Arch(10, 0)),
        (replace(SHORT, group=(8, 8)), HOPPER),
        (replace(SHORT, head_dim=64), HOPPER),
    ):
        assert name_and_reasons(chosen(asked("auto", rule, arch=arch)))[0] == "triton.paged"
    assert name_and_reasons(chosen(asked("triton", SHORT)))[0] == "triton.paged"
    assert name_and_reasons(chosen(asked("auto", SHORT), replace(LLAMA, sliding_window=9)))[0] == "triton.paged"


def test_a_rule_or_a_name_brings_a_library_in(versions: dict[str, str]) -> None:
    assert name_and_reasons(chosen(asked("auto", SHORT)))[0] == "triton.paged, prompts by flashinfer"
    both = name_and_reasons(chosen(asked("auto", SHORT, LONG)))[0]
    assert both == "triton.paged, prompts by flashinfer or flash-attention"
    named = chosen(asked(FLASH_ATTENTION), replace(LLAMA, sliding_window=9))
    assert name_and_reasons(named)[0] == "triton.paged, prompts by flash-attention"
    del versions["flashinfer-python"]
    assert name_and_reasons(chosen(asked("auto", SHORT, LONG)))[0] == "triton.paged, prompts by flash-attention"
    name, why = name_and_reasons(chosen(asked("auto", SHORT)))
    assert name == "triton.paged" and "flashinfer-python is not installed" in why


def test_prompts_are_captured_but_where_a_library_is_named(versions: dict[str, str]) -> None:
    """It plans on the host. Where a rule brought it in, captured steps are our kernels', whatever the rule says."""

    def support(libraries: PromptLibraries) -> GraphSupport:
        kernel: Any = chosen(libraries).choices[0].kernel
        return kernel.backend.graph_support  # type: ignore[no-any-return]

    assert support(asked()) is support(asked("triton")) is GraphSupport.ALWAYS
    assert support(asked("auto", SHORT, LONG)) is GraphSupport.ALWAYS
    assert support(asked(FLASHINFER)) is support(asked(FLASH_ATTENTION)) is GraphSupport.SINGLE_TOKEN_DECODE
    case = make_case(spec_of(), [(1, 9), (30, 30)], 16)
    log: list[str] = []
    libraries: Any = {FLASHINFER: Recorder(FLASHINFER, log)}
    prompts = ChosenPrompts(libraries=libraries, rules=(SHORT,), forced=None, own=Recorder("own", log))
    prompts.plan(make_batch(case, case.tables, pad_tokens=1, static=True), 0, case.spec)
    assert log == ["own"]


def test_sinks_and_invariance_are_refused_with_a_reason(versions: dict[str, str]) -> None:
    name, why = name_and_reasons(chosen(asked(FLASHINFER), replace(LLAMA, sinks=True)))
    assert name == "triton.paged" and "attention.sinks" in why
    name, why = name_and_reasons(chosen(asked(FLASHINFER), batch_invariant=True))
    assert name == "triton.paged" and "depend on the batch" in why


def test_the_layout_is_the_same_whoever_serves(versions: dict[str, str]) -> None:
    layouts = [
        chosen(libraries).choices[0].kernel.backend.layout  # type: ignore[attr-defined]
        for libraries in (asked(), asked(FLASHINFER))
    ]
    assert layouts[0] == layouts[1]


def test_a_library_by_name_that_is_not_there_is_an_error(versions: dict[str, str]) -> None:
    require(FLASHINFER, HOPPER)
    require(FLASH_ATTENTION, HOPPER)
    with pytest.raises(ConfigError, match=r"flashinfer: needs sm_80 or newer"):
        require(FLASHINFER, Arch(7, 5))
    versions.clear()
    require("auto", HOPPER)
    with pytest.raises(ConfigError, match=r"cuda\.attention=flashinfer: flashinfer-python is not installed"):
        require(FLASHINFER, HOPPER)
    with pytest.raises(ConfigError, match=r"pip install 'flash_attn_3"):
        require(FLASH_ATTENTION, HOPPER)
    with pytest.raises(ConfigError, match="kernels=torch"):
        CUDAOptions.read({"attention": FLASHINFER, "kernels": "torch"})
    with pytest.raises(ConfigError, match="flash-attention"):
        CUDAOptions.read({"attention": "fa3"})


@dataclass
class Recorder:
    """`LongPrompts` that notes what it plans."""

    name: str
    log: list[str]
    is_taker: bool = True
    plans: bool = True
    needs_exact_host_lengths: bool = False
    graph_support: GraphSupport = GraphSupport.ALWAYS
    workspace_bytes: int = 1
    warmed: list[int] = field(default_factory=list)

    def takes(self, spec: AttentionSpec, block_size: int) -> bool:
        return self.is_taker

    def warm(self, spec: AttentionSpec, block_size: int) -> None:
        self.warmed.append(block_size)

    def plan(self, batch: Any, first_row: int, spec: AttentionSpec) -> Any:
        self.log.append(self.name)
        return self if self.plans else None


def test_rows_go_where_their_shape_was_measured() -> None:
    log: list[str] = []
    libraries: Any = {name: Recorder(name, log) for name in (FLASHINFER, FLASH_ATTENTION)}
    own = Recorder("own", log)
    prompts = ChosenPrompts(libraries=libraries, rules=(SHORT, LONG), forced=None, own=own)
    spec = spec_of()

    def planned(*rows: tuple[int, int], decodes: int = 0) -> str:
        case = make_case(spec, [*((1, 9),) * decodes, *rows], 16)
        prompts.plan(make_batch(case, case.tables), decodes, spec)
        return log.pop()

    assert planned((100, 100), (300, 300), decodes=7) == FLASHINFER  # 200 a row
    assert planned((300, 300)) == FLASH_ATTENTION
    assert planned((300, 5000)) == "own"  # LONG ends at 4096
    libraries[FLASHINFER].is_taker = False
    assert planned((100, 100)) == "own"
    libraries[FLASH_ATTENTION].plans = False
    assert planned((300, 300)) == "own"
    assert log == [FLASH_ATTENTION]
    prompts.warm(spec, 64)
    assert [one.warmed for one in (*libraries.values(), own)] == [[], [64], [64]]
    assert prompts.workspace_bytes == 3
    own.needs_exact_host_lengths = True
    assert prompts.needs_exact_host_lengths


def test_the_table_is_sound() -> None:
    """Every rule names a library, and its bounds hold something."""
    for rule in RULES:
        assert rule.library in LIBRARIES
        assert all(low <= high for low, high in (rule.group, rule.row_tokens, rule.context))
    assert not LONG.holds(PromptShape(rows=2, tokens=512, context=10))
    assert LONG.holds(PromptShape(rows=1, tokens=257, context=4096))
    assert isinstance(asked().prompts(LLAMA, None), No)
