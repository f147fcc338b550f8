"""A GGUF file cut short, with bits turned over and fields of its index rewritten: a clear error or a model that runs.

Never a crash. The native kernels' own reads and writes are watched with a library that has the address sanitizer:

    make native-test
    cp build/native-address/libtenon_cpu.so plugins/cpu/src/tenon_cpu/
    LD_PRELOAD=$(g++ -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 pytest tests/test_gguf_fuzz.py
    make native
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import pytest
from driver import MAX_LEN, build, drive, open_platform, prompts_of, request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenon_core.engine.assembly import ModelSource, Sockets
from tenon_core.engine.weight_source import CheckpointSource
from tenon_core.loading.checkpoint import open_checkpoint
from tenon_core.models.registry import family_of
from tenon_platforms.errors import TenonError
from tenon_plugin_sdk.conformance.models.gguf_files import make_folder, write_gguf

pytest.importorskip("tenon_cpu")
pytestmark = pytest.mark.e2e
CHECKS = {"deadline": None, "suppress_health_check": list(HealthCheck)}
TELLING = (0, 1, 2, 3, 7, 8, 12, 14, 15, 16, 30, 31, 32, 33, 64, 255, 256, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40)
TELLING_LONG = (*TELLING, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Good:
    """A file that loads. fields: (begin, bytes) of what its index says; data: where the weights begin."""

    content: bytes
    fields: tuple[tuple[int, int], ...]
    data: int


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Good]:
    folder = tmp_path_factory.mktemp("gguf")
    made = {}
    for name, kind in (("llama", "Q4_1"), ("llama-tied", "Q8_0"), ("wide-llama", "Q4_K"), ("wide-llama", "Q6_K")):
        source = folder / name if (folder / name).is_dir() else make_folder(name, folder)
        made[f"{name}-{kind}"] = good_file(write_gguf(source, folder / f"{name}-{kind}.gguf", kind=kind).path)
    return made


def good_file(path: Path) -> Good:
    """Its fields, as the format's own library finds them."""
    reader = gguf.GGUFReader(path)
    fields = [(4, 4), (8, 8), (16, 8)]
    for field in (*reader.fields.values(), *(tensor.field for tensor in reader.tensors)):
        if field.name.startswith("GGUF."):
            continue  # the header, which is above
        at = field.offset
        for part in field.parts[:40]:  # of a vocabulary, the first words
            fields.append((at, part.nbytes))
            at += part.nbytes
    return Good(content=path.read_bytes(), fields=tuple(fields), data=reader.data_offset)


def run(content: bytes, path: Path, gguf_option: str) -> list[int] | None:
    """Tokens of a prompt, or None where the file is refused as it should be."""
    path.write_bytes(content)
    try:
        opened = open_checkpoint(path)
        family, platform = family_of(opened.config), open_platform("cpu", gguf=gguf_option)
        sockets = Sockets.open(platform)
        source = ModelSource(
            name="fuzzed",
            spec=family.spec(opened.config, MAX_LEN),
            names=family.weights,
            weights=CheckpointSource(opened.tensors, sockets.capabilities),
            eos_token_ids=(),
        )
        engine = build(source, platform, num_blocks=16).engine
    except TenonError as error:
        assert str(error)
        return None
    return drive(engine, [request(1, prompts_of((9,), vocab_size=8)[0], max_tokens=3)]).of(1)


def changed(good: Good, draw: Any) -> bytes:
    """One to three changes."""
    content = bytearray(good.content)
    for kind in draw(st.lists(st.sampled_from(("field", "field", "bits", "cut")), min_size=1, max_size=3)):
        if kind == "field":
            begin, size = draw(st.sampled_from(good.fields))
            if size in (1, 2, 4, 8):
                value = draw(st.sampled_from(TELLING_LONG if size == 8 else TELLING)) % 2 ** (8 * size)
                old = int.from_bytes(content[begin : begin + size], "little")
                value = draw(st.sampled_from((value, (old + 1) % 2 ** (8 * size), (old - 1) % 2 ** (8 * size))))
                content[begin : begin + size] = value.to_bytes(size, "little")
            else:
                content[begin] ^= 1 << draw(st.integers(0, 7))
        elif kind == "bits":
            end = draw(st.sampled_from((good.data, len(content))))
            for at in draw(st.lists(st.integers(0, end - 1), min_size=1, max_size=8)):
                content[at] ^= 1 << draw(st.integers(0, 7))
        else:
            return bytes(content[: draw(st.integers(0, len(content)))])
    return bytes(content)


def fuzz(good: dict[str, Good], path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(good)))
    tokens = run(changed(good[name], data.draw), path, data.draw(st.sampled_from(("auto", "inplace", "dequantize"))))
    assert tokens is None or len(tokens) == 3


@settings(max_examples=60, **CHECKS)  # type: ignore[arg-type]
@given(data=st.data())
def test_a_changed_file_is_refused_or_runs(
    data: st.DataObject, good: dict[str, Good], tmp_path_factory: pytest.TempPathFactory
) -> None:
    fuzz(good, tmp_path_factory.getbasetemp() / "fuzzed.gguf", data)


@pytest.mark.full
@settings(max_examples=3000, **CHECKS)  # type: ignore[arg-type]
@given(data=st.data())
def test_many_changed_files_are_refused_or_run(
    data: st.DataObject, good: dict[str, Good], tmp_path_factory: pytest.TempPathFactory
) -> None:
    fuzz(good, tmp_path_factory.getbasetemp() / "fuzzed.gguf", data)


@pytest.mark.parametrize("option", ["auto", "inplace"])
def test_any_bits_are_weights(good: dict[str, Good], option: str, tmp_path: Path) -> None:
    """The data alone turned over: scales that are infinite or no number, every code; it loads, and gives tokens."""
    for name, one in good.items():
        content = one.content[: one.data] + bytes(byte ^ 0xFF for byte in one.content[one.data :])
        assert run(one.content, tmp_path / "m.gguf", option) is not None, name
        assert len(run(content, tmp_path / "m.gguf", option) or ()) == 3, name


def test_every_length_short_of_the_whole_is_refused(good: dict[str, Good], tmp_path: Path) -> None:
    one = good["llama-Q4_1"]
    for length in [*range(0, 200, 7), *range(200, len(one.content), len(one.content) // 60), len(one.content) - 1]:
        assert run(one.content[:length], tmp_path / "m.gguf", "inplace") is None, length
