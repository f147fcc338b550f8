"""The GGUF reader: what it reads, and a corpus of what it refuses (attack case T14), made from one good file."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from tenon_core.loading.checkpoint import open_checkpoint
from tenon_core.loading.gguf_file import GGUFFile
from tenon_core.loading.gguf_source import unpermute
from tenon_platforms.errors import ConfigError

pytestmark = pytest.mark.unit
U32, U64, STRING, ARRAY = 4, 10, 8, 9
Keys = dict[str, tuple[int, bytes]]  # key -> value type, value's bytes


def text(value: bytes | str, *, length: int | None = None) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def array(kind: int, count: int, content: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + content


def tensor(name: str, *dims: int, kind: int = 0, offset: int = 0, num_dims: int | None = None) -> bytes:
    """A tensor info; dims: innermost first, as the file counts."""
    count = len(dims) if num_dims is None else num_dims
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, kind, offset)


def file(
    *tensors: bytes, keys: Keys | None = None, version: int = 3, num_tensors: int | None = None,
    num_keys: int | None = None, data: bytes = bytes(64), magic: bytes = b"GGUF", pad: bool = True,
) -> bytes:  # fmt: skip
    """A GGUF file; counts: what it claims instead."""
    keys = keys or {}
    head = magic + struct.pack(
        "<IQQ",
        version,
        len(tensors) if num_tensors is None else num_tensors,
        len(keys) if num_keys is None else num_keys,
    )
    index = head + b"".join(text(key) + struct.pack("<I", kind) + raw for key, (kind, raw) in keys.items())
    index += b"".join(tensors)
    return index + (bytes(-len(index) % 32) if pad else b"") + data


def refused(content: bytes, tmp_path: Path) -> str:
    """Opening must raise `ConfigError` in under a second of work and in memory bounded by the file's size."""
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(ConfigError) as caught:
            GGUFFile(path)
        assert time.process_time() - start < 1
        assert tracemalloc.get_traced_memory()[1] < 2**20 + 30 * len(content)
    finally:
        tracemalloc.stop()
    return str(caught.value)


def test_what_a_file_says_is_read(tmp_path: Path) -> None:
    scalars = {
        "u8": (0, "<B", 200), "i8": (1, "<b", -7), "u16": (2, "<H", 60000), "i16": (3, "<h", -300),
        "u32": (4, "<I", 2**32 - 1), "i32": (5, "<i", -(2**31)), "f32": (6, "<f", 0.5), "bool": (7, "<?", True),
        "u64": (10, "<Q", 2**64 - 1), "i64": (11, "<q", -(2**63)), "f64": (12, "<d", 0.1),
    }  # fmt: skip
    keys: Keys = {name: (kind, struct.pack(code, value)) for name, (kind, code, value) in scalars.items()}
    keys["text"] = (STRING, text("\u00e9"))
    keys["bad text"] = (STRING, text(b"\xff"))
    keys["texts"] = (ARRAY, array(STRING, 3, text("a") + text("") + text("\u4f60")))
    keys["numbers"] = (ARRAY, array(5, 2, struct.pack("<2i", -1, 2)))
    keys["truths"] = (ARRAY, array(7, 2, b"\x01\x00"))
    keys["empty"] = (ARRAY, array(STRING, 0, b""))
    path = tmp_path / "m.gguf"
    data = np.arange(16, dtype="<f4").tobytes() + np.arange(3, dtype="<f2").tobytes()
    path.write_bytes(file(tensor("a", 8, 2), tensor("b", 3, kind=1, offset=64), keys=keys, data=data))
    read = GGUFFile(path)
    assert read.version == 3
    for name, (_, _, value) in scalars.items():
        assert read.metadata[name] == value and type(read.metadata[name]) is type(value)
    assert (read.metadata["text"], read.metadata["bad text"]) == ("\u00e9", "\ufffd")
    assert (read.metadata["texts"], read.metadata["numbers"]) == (["a", "", "\u4f60"], [-1, 2])
    assert (read.metadata["truths"], read.metadata["empty"]) == ([True, False], [])
    assert read.tensors["a"].shape == (2, 8) and read.tensors["a"].num_bytes == 64
    assert read.tensors["b"].type_name == "F16" and read.tensors["b"].offset == read.tensors["a"].offset + 64
    path.write_bytes(file(tensor("a", 8, 2), version=2))
    assert GGUFFile(path).version == 2


BIG = (2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
ONE = tensor("a", 16)
CASES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it has 0 bytes"),
    "a header alone": (b"GGUF" + struct.pack("<I", 3), "less than a header"),
    "another magic": (file(ONE, magic=b"GGML"), "is no GGUF file"),
    "version 1": (file(ONE, version=1), "version 1, which is not supported"),
    "version 0": (file(ONE, version=0), "version 0"),
    "version 4": (file(ONE, version=4), "version 4: supported are 2 and 3"),
    "big-endian": (file(ONE, version=3 << 24), "big-endian"),
    **{f"{n} keys": (file(ONE, num_keys=n), "more than its") for n in BIG},
    **{f"{n} tensors": (file(ONE, num_tensors=n), "more than its") for n in BIG},
    **{f"key of {n}": (file(keys={"k": (STRING, text("x", length=n))}), "claims|needs") for n in BIG},
    **{f"array of {n} texts": (file(keys={"k": (ARRAY, array(STRING, n, text("x")))}), "claims") for n in BIG},
    **{f"array of {n} numbers": (file(keys={"k": (ARRAY, array(U64, n, bytes(8)))}), "claims") for n in BIG},
    "array just too long": (file(keys={"k": (ARRAY, array(U64, 2**24, bytes(8)))}), "needs"),
    "texts just too many": (file(keys={"k": (ARRAY, array(STRING, 30, b""))}), "more than its|reaches past"),
    **{
        f"text of {n} in an array": (file(keys={"k": (ARRAY, array(STRING, 1, text("x", length=n)))}), "past")
        for n in BIG
    },
    "array of arrays": (file(keys={"k": (ARRAY, array(ARRAY, 1, array(U32, 1, bytes(4))))}), "array of arrays"),
    "unknown value type": (file(keys={"k": (13, bytes(8))}), "unknown type 13"),
    "unknown element type": (file(keys={"k": (ARRAY, array(99, 1, bytes(8)))}), "unknown type 99"),
    "truth of 2": (file(keys={"k": (7, b"\x02")}), "truth value 2"),
    "key of no text": (file(num_keys=1, data=text(b"\xff\xfe") + bytes(64), pad=False), "not UTF-8"),
    "huge key": (file(num_keys=1, data=text(b"x" * 70_000) + bytes(64), pad=False), "expected at most"),
    "one key twice": (
        file(num_keys=2, data=(text("k") + struct.pack("<II", U32, 1)) * 2 + bytes(64), pad=False),
        "comes twice",
    ),
    **{
        f"alignment {n}": (file(ONE, keys={"general.alignment": (U32, struct.pack("<I", n))}), "general.alignment is")
        for n in (0, 1, 3, 24, 2**21, 2**31, 2**32 - 1)
    },
    "alignment of text": (file(ONE, keys={"general.alignment": (STRING, text("32"))}), "general.alignment is"),
    "alignment of truth": (file(ONE, keys={"general.alignment": (7, b"\x01")}), "general.alignment is"),
    "no dims": (file(tensor("a")), "0 dimensions"),
    "five dims": (file(tensor("a", 1, 1, 1, 1, 1)), "5 dimensions"),
    "2^32-1 dims": (file(tensor("a", 1, num_dims=2**32 - 1)), "dimensions"),
    "a dim of zero": (file(tensor("a", 4, 0)), "none may be 0"),
    **{f"a dim of {n}": (file(tensor("a", n)), "takes") for n in BIG},
    "wrapping product": (file(tensor("a", 2**32, 2**32)), "takes"),
    "wrapping to 64 bytes": (file(tensor("a", 16, 2**60 + 1)), "takes"),
    "wrapping blocks": (file(tensor("a", 2**63, 2, kind=8)), "takes"),
    "half a block": (file(tensor("a", 33, kind=8)), "no whole number of Q8_0 blocks"),
    "half a K block": (file(tensor("a", 128, kind=12)), "no whole number of Q4_K blocks"),
    "unknown type": (file(tensor("a", 16, kind=77)), "unknown type number 77"),
    "a type not served": (file(tensor("a", 256, kind=17)), "IQ2_XS is not supported: supported are F32"),
    "past the end": (file(tensor("a", 17)), "cut short"),
    **{f"offset {n}": (file(tensor("a", 16, offset=n - n % 32)), "cut short") for n in BIG},
    "crooked offset": (file(tensor("a", 8, offset=4)), "not aligned"),
    "overlap": (file(tensor("a", 16), tensor("b", 8, offset=32)), "overlap"),
    "one name twice": (file(tensor("a", 8), tensor("a", 8, offset=32)), "comes twice"),
    "long name": (file(tensor("a" * 1025, 8)), "expected at most"),
    "data cut": (file(ONE, data=bytes(63)), "cut short"),
    "no data": (file(ONE, data=b"", pad=False), "cut short"),
}


@pytest.mark.parametrize("case", CASES)
def test_hostile_files(case: str, tmp_path: Path) -> None:
    import re

    content, message = CASES[case]
    shown = refused(content, tmp_path)
    assert re.search(message, shown), shown


def good_file(
    path: Path, *, architecture: str = "llama", changes: Callable[[gguf.GGUFWriter], None] | None = None
) -> Path:
    """A whole one-layer llama; changes: called before the file is written, with keys written last winning."""
    writer = gguf.GGUFWriter(str(path), architecture)
    counts = {"block_count": 1, "context_length": 64, "embedding_length": 64, "feed_forward_length": 96}
    counts |= {"attention.head_count": 4, "attention.head_count_kv": 2}
    for key, value in counts.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "b", "ab", "<e>"])
    writer.add_token_types([1, 1, 1, 3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(3)
    if changes is not None:
        changes(writer)
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (4, 64), "output_norm": (64,)}
    layer = {"attn_norm": (64,), "attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)}
    layer |= {"ffn_norm": (64,), "ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}
    for name, shape in (shapes | {f"blk.0.{name}": shape for name, shape in layer.items()}).items():
        writer.add_tensor(f"{name}.weight", random.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def outcome_of(path: Path) -> bool:
    """Whether a model opens, all of it read; anything but `ConfigError` fails the test."""
    try:
        opened = open_checkpoint(path)
        opened.load_tokenizer()
        for name in opened.tensors.names():
            opened.tensors.read(name)
    except ConfigError:
        return False
    return True


def test_truncation_at_every_byte_of_the_index(tmp_path: Path) -> None:
    whole, path = good_file(tmp_path / "whole.gguf").read_bytes(), tmp_path / "m.gguf"
    index = GGUFFile(tmp_path / "whole.gguf").tensors["token_embd.weight"].offset
    assert outcome_of(tmp_path / "whole.gguf")
    for length in [*range(index), *range(index, len(whole), 4099), len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert not outcome_of(path), length


@pytest.mark.parametrize("seed", range(4))
def test_mutations_are_read_or_refused(seed: int, tmp_path: Path) -> None:
    whole, path, choose = good_file(tmp_path / "whole.gguf").read_bytes(), tmp_path / "m.gguf", random.Random(seed)
    index = GGUFFile(tmp_path / "whole.gguf").tensors["token_embd.weight"].offset
    opened, slowest = 0, 0.0
    for _ in range(500):
        changed, size = bytearray(whole), choose.choice((1, 4, 8))
        at = choose.randrange(index)
        kinds = (
            b"\xff" * size,
            bytes(size),
            choose.randbytes(size),
            bytes(size - 1) + b"\x80",
            b"\x01" + bytes(size - 1),
        )
        changed[at : at + size] = choose.choice(kinds)
        path.write_bytes(changed)
        start = time.process_time()
        opened += outcome_of(path)
        slowest = max(slowest, time.process_time() - start)
    assert 0 < opened < 400
    assert slowest < 1


def u32(key: str, value: int) -> Callable[[gguf.GGUFWriter], None]:
    """Set a key, over what was set before."""

    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        writer.add_uint32(key, value)

    return change


def value(key: str, content: Any) -> Callable[[gguf.GGUFWriter], None]:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        add = {str: writer.add_string, float: writer.add_float32, bool: writer.add_bool, list: writer.add_array}
        add[type(content)](key, content)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (u32("llama.attention.head_count", 0), "attention.head_count is 0"),
        (u32("llama.attention.head_count_kv", 0), "attention.head_count_kv is 0"),
        (u32("llama.attention.head_count", 129), "head_count is 129, which does not divide"),
        (u32("llama.attention.head_count", 2**31 - 1), "head_count is 2147483647"),
        (u32("llama.attention.head_count", 64), "64 rows, which 64 heads of even dimensions do not divide"),
        (u32("llama.attention.head_count_kv", 3), "32 rows, which 3 heads"),
        (u32("llama.attention.key_length", 0), "key_length is 0"),
        (u32("llama.attention.value_length", 8), "value_length differs"),
        (u32("llama.block_count", 0), "block_count is 0"),
        (u32("llama.block_count", 2), "block_count is 2, which its tensors contradict"),
        (u32("llama.block_count", 2**31 - 1), "block_count is 2147483647"),
        (u32("llama.embedding_length", 0), "embedding_length is 0"),
        (u32("llama.expert_count", 8), "expert_used_count is missing"),
        (value("llama.embedding_length", "64"), "embedding_length is '64'"),
        (value("llama.attention.head_count", [4, 2]), r"head_count is \[4, 2\]"),
        (value("llama.rope.freq_base", float("nan")), "freq_base is nan"),
        (value("llama.rope.freq_base", float("inf")), "freq_base is inf"),
        (value("llama.rope.freq_base", 0.0), "freq_base is 0.0"),
        (value("llama.attention.layer_norm_rms_epsilon", -1.0), "rms_epsilon is -1.0"),
        (value("llama.rope.scaling.type", "yarn"), "scaling.factor is missing"),
        (value("general.architecture", "mamba"), "'mamba', which is not supported: supported are llama, qwen2"),
        (u32("general.architecture", 3), "architecture 3, which is not supported"),
        (u32("tokenizer.ggml.eos_token_id", 4), "eos_token_id is 4, but there are 4 tokens"),
        (u32("tokenizer.ggml.bos_token_id", 2**32 - 1), "bos_token_id is 4294967295"),
        (u32("tokenizer.ggml.eom_token_id", 99), "eom_token_id is 99"),
        (u32("split.count", 3), "(?s)one of 3 parts.*--merge"),
    ],
)  # fmt: skip
def test_hostile_metadata(change: Callable[[gguf.GGUFWriter], None], message: str, tmp_path: Path) -> None:
    path = good_file(tmp_path / "m.gguf", changes=change)
    start = time.process_time()
    with pytest.raises(ConfigError, match=message):
        open_checkpoint(path)
    assert time.process_time() - start < 1


def test_unknown_tensors_are_refused_and_not_ignored(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.attn_sinks.weight", np.zeros(4, np.float32))

    with pytest.raises(ConfigError, match=r"'blk\.0\.attn_sinks\.weight' is not known in 'llama' models"):
        open_checkpoint(good_file(tmp_path / "m.gguf", changes=change))


def test_bad_rope_factors(tmp_path: Path) -> None:
    for values, message in (
        (np.array([1.0, 0.0], np.float32), "no number above 0"),
        (np.array([1.0, np.nan], np.float32), "no number above 0"),
        (np.ones(2, np.float16), "expected F32"),
    ):
        path = good_file(tmp_path / "m.gguf", changes=lambda w, v=values: w.add_tensor("rope_freqs.weight", v))
        with pytest.raises(ConfigError, match=message):
            open_checkpoint(path)


def test_tensors_are_mapped_and_outlive_the_file(tmp_path: Path) -> None:
    path = good_file(tmp_path / "m.gguf")
    opened = open_checkpoint(path)
    first, again = (opened.tensors.read("model.layers.0.mlp.up_proj.weight") for _ in range(2))
    assert first.data_ptr() == again.data_ptr()  # no copy was made
    before = first.clone()
    opened.tensors.close()
    assert torch.equal(first, before)  # the memory was not pulled away
    with pytest.raises(ValueError, match="was closed"):
        opened.tensors.read("model.layers.0.mlp.up_proj.weight")
    opened.tensors.close()
    with pytest.raises(ConfigError, match="no tensor 'x'"):
        opened.tensors.info("x")
    with pytest.raises(ConfigError, match="no tensor 'x'"):
        opened.tensors.read("x")


def test_pipes_devices_and_links(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (tmp_path / "pipe.gguf", Path("/dev/zero"), tmp_path):
        with pytest.raises(ConfigError, match="is not a regular file"):
            GGUFFile(path)
    with pytest.raises(ConfigError, match="cannot open"):
        GGUFFile(tmp_path / "none.gguf")


@pytest.mark.skipif(sys.platform != "linux", reason="says how much of a map is in memory on Linux only")
def test_closing_gives_pages_back_under_a_tensor_that_lives(tmp_path: Path) -> None:
    path, count = tmp_path / "m.gguf", 2**20
    values = np.arange(count, dtype="<f4")
    path.write_bytes(file(tensor("a", count), data=values.tobytes()))
    opened = GGUFFile(path)
    kept = torch.frombuffer(opened.data, dtype=torch.float32, offset=opened.tensors["a"].offset, count=count)
    assert kept.sum() > 0 and resident_kib(path) > 4000
    opened.close()
    assert resident_kib(path) < 1000
    assert torch.equal(kept, torch.from_numpy(values))


def resident_kib(path: Path) -> int:
    """KiB of this process's maps of a file that are in memory."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split(maxsplit=1)
        if not first.endswith(":"):
            inside = line.endswith(str(path))
        elif inside and first == "Rss:":
            found += int(rest[0].split()[0])
    return found


def test_rows_come_back_in_halves() -> None:
    stored = torch.arange(16)[:, None]  # two heads of eight rows: pairs 0 1, 2 3, ...
    assert unpermute(stored, 2)[:, 0].tolist() == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]


def test_many_tokens_are_read_quickly(tmp_path: Path) -> None:
    words = b"".join(text(f"token{index}") for index in range(150_000))
    path = tmp_path / "m.gguf"
    path.write_bytes(file(ONE, keys={"tokenizer.ggml.tokens": (ARRAY, array(STRING, 150_000, words))}))
    start = time.process_time()
    tokens = GGUFFile(path).metadata["tokenizer.ggml.tokens"]
    assert time.process_time() - start < 1  # a tenth of it, measured
    assert len(tokens) == 150_000 and tokens[-1] == "token149999"


def test_reading_the_index_of_a_sparse_file_takes_no_memory(tmp_path: Path) -> None:
    """A file that claims 8 GB and has them as a hole: opened without touching them, its last element right."""
    path, rows = tmp_path / "m.gguf", 2**15
    index = file(tensor("output.weight", 2**16, rows), data=b"")  # over 2^31 elements
    path.write_bytes(index)
    with path.open("r+b") as sparse:
        sparse.seek(len(index) + 4 * 2**16 * rows - 4)
        sparse.write(struct.pack("<f", 1.5))
    code = (
        "import resource, sys; from pathlib import Path; import torch\n"
        "from tenon_core.loading.gguf_file import GGUFFile\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "read = GGUFFile(Path(sys.argv[1])); found = read.tensors['output.weight']\n"
        "flat = torch.frombuffer(read.data, dtype=torch.float32, offset=found.offset, count=found.num_bytes // 4)\n"
        "assert flat.view(found.shape)[-1, -1].item() == 1.5 and flat[-2].item() == 0\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "sys.exit(0 if grown < 100_000 else f'{grown} KB')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    path.unlink()
