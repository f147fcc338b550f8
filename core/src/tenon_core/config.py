"""`EngineConfig`: everything an operator can ask of an engine, as nested frozen dataclasses.

The command line is generated from these fields (`cli/flags.py`): a field's metadata carries its help, aliases and
choices. Nothing here is changed after construction: platforms return adjustments, and `engine/start.py` builds the
effective configuration with `dataclasses.replace`. Torch-free.
"""

from __future__ import annotations

import dataclasses
import os
import types
import typing
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from tenon_platforms.errors import ConfigError

INT32_MAX = 2**31 - 1  # rows, blocks and positions are 32-bit numbers on the device
LIMITS: dict[str, tuple[int, int]] = {
    "max_num_seqs": (1, INT32_MAX),
    "max_waiting": (1, INT32_MAX),
    "max_num_batched_tokens": (1, INT32_MAX),
    "max_model_len": (2, INT32_MAX),
    "block_size": (1, INT32_MAX),
    "num_blocks": (2, INT32_MAX),
    "kv_cache_memory": (1, 2**63 - 1),
    "seed": (-(2**63), 2**63 - 1),
    "tensor_parallel_size": (1, 64),
}


def flag(
    default: Any,
    help: str,
    *,
    aliases: tuple[str, ...] = (),
    choices: tuple[str, ...] | None = None,
    positional: bool = False,
    env: str | None = None,
) -> Any:
    """A configuration field that becomes a command-line flag named after it (`max_num_seqs` -> `--max-num-seqs`)."""
    metadata = {"help": help, "aliases": aliases, "choices": choices, "positional": positional, "env": env}
    if isinstance(default, (list, dict)):
        raise TypeError("a flag's default must be immutable")
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, and how its weights and context are used."""

    model: str = flag("", "model folder, .gguf file, Hugging Face id, or pkg:PACKAGE", positional=True)
    tokenizer: str | None = flag(None, "tokenizer folder or file, where it is not the model's own")
    revision: str | None = flag(None, "revision (branch, tag or commit) of a Hugging Face model")
    download_dir: str | None = flag(None, "folder for downloaded models", env="TENON_DOWNLOAD_DIR")
    dtype: str = flag(
        "auto", "type of weights and activations", choices=("auto", "float32", "float16", "bfloat16", "half", "float")
    )
    max_model_len: int | None = flag(None, "longest prompt plus output in tokens; default: the model's own limit")
    load_format: str = flag("auto", "checkpoint format", choices=("auto", "safetensors", "gguf", "dummy"))
    runner: str = flag(
        "auto", "what the model is served for; auto: what the checkpoint says", choices=("auto", "generate", "pooling")
    )
    convert: str = flag(
        "auto", "serve a generator as another kind; embed: vectors of its last token", choices=("auto", "none", "embed")
    )
    pooling: str = flag(
        "auto",
        "which token's state a pooling model gives; auto: what the checkpoint says",
        choices=("auto", "last", "mean", "first", "all"),
    )
    trust_remote_code: bool = flag(False, "refused: Tenon never runs code from a model folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The KV cache: its blocks and the prefix cache over them."""

    block_size: int | None = flag(None, "tokens in a KV block; default: what the platform's attention prefers")
    memory_utilization: float | None = flag(
        None,
        "share of the device's memory the engine may use; default: the platform's",
        aliases=("--gpu-memory-utilization",),
    )
    kv_cache_memory: int | None = flag(
        None, "bytes for the KV cache, instead of a share", aliases=("--kv-cache-memory-bytes",)
    )
    num_blocks: int | None = flag(None, "number of KV blocks, instead of bytes", aliases=("--num-gpu-blocks-override",))
    kv_cache_dtype: str = flag(
        "auto",
        "type of the KV cache; of one byte a value: int8, with scales, or fp8 (float8_e4m3), without",
        choices=("auto", "float32", "float16", "bfloat16", "int8", "fp8", "fp8_e4m3", "float8_e4m3"),
    )
    enable_prefix_caching: bool = flag(True, "reuse the KV blocks of prompts that begin alike")
    block_allocator: str = flag("default", "block allocator, by its entry-point name (tenon.block_allocators)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How requests share the device."""

    max_num_seqs: int = flag(256, "greatest number of sequences running at once")
    max_num_batched_tokens: int | None = flag(None, "token budget of a step; default: the platform's")
    enable_chunked_prefill: bool = flag(True, "split long prompts over steps")
    max_waiting: int = flag(4096, "greatest number of requests waiting; more are answered 429", aliases=())
    overlap: bool = flag(True, "prepare the next step while the device runs this one", aliases=("--async-scheduling",))
    scheduler: str = flag("default", "scheduler, by its entry-point name (tenon.schedulers)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformConfig:
    """Which hardware backend, and how strictly its choices are taken."""

    platform: str | None = flag(
        None, "platform to run on; default: the accelerator that is there", env="TENON_PLATFORM", aliases=("--device",)
    )
    platform_opt: tuple[str, ...] = flag((), "an option of a platform, NAME.KEY=VALUE; may be repeated")
    strict: bool = flag(False, "refuse platform adjustments that change meaning")
    strict_ops: bool = flag(False, "refuse to run ops on their reference kernels")
    batch_invariant: bool = flag(False, "the same tokens whatever else is in the batch")
    enforce_eager: bool = flag(False, "no captured or compiled executables")
    enable_sleep_mode: bool = flag(
        False, "let the engine sleep: weights and KV cache leave the device when asked to (POST /sleep) and come back"
    )
    seed: int = flag(0, "seed of the dummy weights and of requests that bring none (their own seeds derive from it)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How a model is spread over devices."""

    tensor_parallel_size: int = flag(1, "devices that share every layer of the model", aliases=("-tp",))


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsConfig:
    """What makes outputs follow a grammar."""

    structured_outputs_backend: str = flag(
        "auto",
        "library that follows grammars; auto: guidance, and xgrammar (extra xgrammar) for what it alone follows",
        aliases=("--structured-outputs-config.backend", "--guided-decoding-backend"),
        choices=("auto", "guidance", "xgrammar"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine: model, cache, scheduler, platform, parallelism, structured outputs."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    platform: PlatformConfig = field(default_factory=PlatformConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    structured_outputs: StructuredOutputsConfig = field(default_factory=StructuredOutputsConfig)

    @classmethod
    def from_flat(cls, **values: Any) -> EngineConfig:
        """Build from flat field names, as `LLM(model, max_num_seqs=8)` and the command line give them.

        Raises `ConfigError` for a name that no section has.
        """
        sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        for name, value in values.items():
            section = _SECTION_OF.get(name)
            if section is None:
                raise ConfigError(f"unknown option {name!r}: known are {', '.join(sorted(_SECTION_OF))}")
            if isinstance(value, os.PathLike):
                value = os.fspath(value)
            sections[section][name] = tuple(value) if isinstance(value, list) else value
        config = cls(**{name: SECTIONS[name](**fields) for name, fields in sections.items()})
        config.check()
        return config

    def flat(self) -> dict[str, Any]:
        """Every field by its flat name."""
        return {
            item.name: getattr(getattr(self, section), item.name)
            for section, kind in SECTIONS.items()
            for item in dataclasses.fields(kind)
        }

    def check(self) -> None:
        """Raise `ConfigError` for values that can be judged without the model or the platform."""
        flat = self.flat()
        for kind in SECTIONS.values():
            check_types(kind, flat)
        for name, (least, most) in LIMITS.items():
            _check_range(name, flat[name], least, most)
        share = self.cache.memory_utilization
        if share is not None and not 0 < share <= 1:
            raise ConfigError(f"memory_utilization is {share}: it lies between 0 and 1")
        for name in _FIELDS:
            value = flat[name]
            choices = _FIELDS[name].metadata.get("choices")
            if choices is not None and value not in choices:
                raise ConfigError(f"{name} is {value!r}: expected one of {', '.join(choices)}")
        if self.structured_outputs.structured_outputs_backend == "xgrammar" and find_spec("xgrammar") is None:
            raise ConfigError(
                "structured_outputs_backend is xgrammar, which is not installed",
                remedy="run: pip install tenon-core[xgrammar]",
            )
        size = self.parallel.tensor_parallel_size
        if size > 1 and self.platform.enable_sleep_mode:
            raise ConfigError("enable_sleep_mode is for one device: the ranks of several do not sleep yet")
        if size > 2 and self.platform.batch_invariant:
            raise ConfigError(
                f"batch_invariant with {size} ranks: the order in which their sums are added hangs on the batch",
                remedy="pass --tensor-parallel-size 2 or 1",
            )
        if self.model.trust_remote_code:
            raise ConfigError(
                "--trust-remote-code is not available: Tenon never runs code from a model folder",
                remedy="use a model whose architecture is listed by `tenon inspect --architectures`, or install a"
                " plugin that brings it through the entry-point group tenon.models",
            )


SECTIONS: dict[str, Any] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "platform": PlatformConfig,
    "parallel": ParallelConfig,
    "structured_outputs": StructuredOutputsConfig,
}
_SECTION_OF = {item.name: section for section, kind in SECTIONS.items() for item in dataclasses.fields(kind)}
_FIELDS = {item.name: item for kind in SECTIONS.values() for item in dataclasses.fields(kind)}


def check_types(kind: type[Any], values: dict[str, Any]) -> None:
    """Raise `ConfigError` for a value of another type than its field says."""
    for name, hint in typing.get_type_hints(kind).items():
        if not _fits(values[name], hint):
            raise ConfigError(f"{name} is {values[name]!r:.80}: expected {_described(hint)}")


def _fits(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        return isinstance(value, tuple) and all(_fits(one, inner) for one in value)
    if hint in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if hint is float else hint)


def _described(hint: Any) -> str:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_described(part) for part in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return f"a list of {typing.get_args(hint)[0].__name__}"
    return str({type(None): "None", bool: "True or False", int: "a whole number", float: "a number", str: "text"}[hint])


def _check_range(name: str, value: int | None, least: int, most: int) -> None:
    if value is None:
        return
    if value < least:
        raise ConfigError(f"{name} is {value}: it must be at least {least}")
    if value > most:
        raise ConfigError(f"{name} is {value}: it must be at most {most}")
