"""Safetensors checkpoints: what is read, and a corpus of what is refused (attack cases T12, T13, T16)."""

from __future__ import annotations

import json
import os
import pickle
import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tenon_core.loading.checkpoint import open_checkpoint
from tenon_core.loading.safetensors_header import MAX_HEADER_BYTES, read_header
from tenon_core.loading.safetensors_source import SafetensorsSource
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError

pytestmark = pytest.mark.unit
SECONDS, MEGABYTES = 1.0, 200
TENSORS = {
    "a.weight": torch.arange(6, dtype=torch.float32).view(2, 3),
    "b.weight": torch.arange(4).to(torch.bfloat16),
    "c": torch.tensor(3, dtype=torch.int64),
    "empty": torch.zeros(0, 4, dtype=torch.float16),
}


def write_raw(path: Path, header: bytes, data: bytes = b"", *, length: int | None = None) -> Path:
    """A file with this header as it is; length: what it claims instead."""
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)
    return path


def entry(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def refused(path: Path) -> str:
    """Reading must raise `ConfigError` in under a second of work and within bounded memory; returns its text."""
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(ConfigError) as caught:
            SafetensorsSource.open_file(path)
        assert time.process_time() - start < SECONDS * 3  # tracing costs about three times the time
        assert tracemalloc.get_traced_memory()[1] < MEGABYTES * 2**20
    finally:
        tracemalloc.stop()
    return str(caught.value)


def test_a_file_reads_as_it_was_saved(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    source = SafetensorsSource.open_folder(tmp_path)
    assert set(source.names()) == set(TENSORS)
    for name, expected in TENSORS.items():
        assert torch.equal(source.read(name), expected)
        info = source.info(name)
        assert (info.name, info.shape, info.gguf_type) == (name, tuple(expected.shape), None)
        assert info.num_bytes == expected.numel() * expected.element_size() and info.gguf_type is None
    assert source.info("b.weight").dtype is DType.BFLOAT16
    with pytest.raises(ConfigError, match="no tensor 'x'"):
        source.info("x")
    with pytest.raises(ConfigError, match="no tensor 'x'"):
        source.read("x")
    kept = source.read("a.weight")
    source.close()
    assert torch.equal(kept, TENSORS["a.weight"])  # what was read stays valid


def test_a_type_outside_the_contract_is_refused_when_asked_for(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2, dtype=torch.int16)}, tmp_path / "model.safetensors")
    source = SafetensorsSource.open_folder(tmp_path)
    with pytest.raises(ConfigError, match="'x' is stored as I16, which is not supported: supported are F64"):
        source.info("x")


BAD_HEADERS: dict[str, tuple[Any, bytes, str]] = {
    "unknown type": ({"w": entry("F31")}, bytes(4), "unknown type 'F31'"),
    "type of a list": ({"w": entry(["F32"])}, bytes(4), "unknown type"),
    "negative shape": ({"w": entry(shape=[-1])}, bytes(4), "has the shape"),
    "fraction": ({"w": entry(shape=[1.0])}, bytes(4), "has the shape"),
    "truth as size": ({"w": entry(shape=[True])}, bytes(4), "has the shape"),
    "many dims": ({"w": entry(shape=[1] * 9)}, bytes(4), "has the shape"),
    "wrapping product": ({"w": entry(shape=[2**32, 2**32], offsets=[0, 0])}, b"", "needs"),
    "wrapping to four bytes": ({"w": entry(shape=[2**62 + 1], offsets=[0, 4])}, bytes(4), "needs"),
    "beyond 2^63": ({"w": entry(shape=[2**63], offsets=[0, 4])}, bytes(4), "has the shape"),
    "reversed": ({"w": entry(offsets=[4, 0])}, bytes(4), "needs 4 bytes"),
    "negative": ({"w": entry(offsets=[-4, 0])}, bytes(4), "has the offsets"),
    "three offsets": ({"w": entry(offsets=[0, 4, 8])}, bytes(4), "has the offsets"),
    "text offsets": ({"w": entry(offsets="04")}, bytes(4), "has the offsets"),
    "past the end": ({"w": entry(shape=[2], offsets=[0, 8])}, bytes(4), "cut short"),
    "trailing": ({"w": entry()}, bytes(9), "bytes behind the last tensor"),
    "overlap": ({"a": entry(), "b": entry()}, bytes(4), "overlaps"),
    "gap": ({"a": entry(), "b": entry(offsets=[8, 12])}, bytes(12), "gap"),
    "late start": ({"a": entry(offsets=[4, 8])}, bytes(8), "gap"),
    "no entry": ({"w": 1}, b"", "is no {dtype"),
    "another key": ({"w": {**entry(), "url": "x"}}, bytes(4), "is no {dtype"),
    "missing key": ({"w": {"dtype": "F32", "shape": [1]}}, bytes(4), "is no {dtype"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, b"", "__metadata__"),
    "a list": ([], b"", "does not start"),
}


@pytest.mark.parametrize("case", BAD_HEADERS)
def test_headers_that_do_not_add_up(case: str, tmp_path: Path) -> None:
    header, data, message = BAD_HEADERS[case]
    assert message in refused(write_raw(tmp_path / "m.safetensors", json.dumps(header).encode(), data))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
         "'w' comes twice"),
        (b'{"w":{"dtype":"F32","dtype":"I32","shape":[1],"data_offsets":[0,4]}}', "'dtype' comes twice"),
        (b'{"w":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', "NaN is no JSON number"),
        (b'{"w":{"dtype":"F32","shape":[1e999],"data_offsets":[0,4]}}', "too large a number"),
        (b'{"w":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}', "400 digits"),
        (b'{"w":' * 100_000, "nested deeper"),
        (b'{"w":' + b"[" * 100_000, "nested deeper"),
        (b'{"w":' * 70 + b"1" + b"}" * 70, "nested deeper"),
        (b'{"\xff":1}', "not valid JSON"),
        (b"{ ", "not valid JSON"),
        (b"\x00\x00", "does not start"),
        (b"{" + b",".join(b'"t%d":{}' % index for index in range(1_000_000)) + b"}", "more than 100000 tensors"),
        (b'{"w":[' + b"[]," * 2_000_000 + b"1]}", "more than 100000 tensors"),
        (b'{"w":[' + b"1," * 5_000_000 + b"1]}", "more than 100000 tensors"),
    ],
    ids=range(14),
)  # fmt: skip
def test_hostile_json(header: bytes, message: str, tmp_path: Path) -> None:
    assert message in refused(write_raw(tmp_path / "m.safetensors", header, bytes(4)))


@pytest.mark.parametrize("length", [0, 1, 3, 2**31, 2**63, 2**64 - 1, MAX_HEADER_BYTES + 1])
def test_header_lengths(length: int, tmp_path: Path) -> None:
    path = write_raw(tmp_path / "m.safetensors", b"{}", length=length)
    if length == MAX_HEADER_BYTES + 1:
        os.truncate(path, MAX_HEADER_BYTES + 100)  # so that the claim fits the file
    assert "is no valid safetensors file: its header claims" in refused(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "whole.safetensors")
    whole, path = (tmp_path / "whole.safetensors").read_bytes(), tmp_path / "m.safetensors"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError):
            read_header(path)


def test_mutations_are_read_or_refused(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "whole.safetensors")
    whole, path, choose = (tmp_path / "whole.safetensors").read_bytes(), tmp_path / "m.safetensors", random.Random(13)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(1500):
        changed = bytearray(whole)
        at = choose.randrange(len(whole) - 24)
        with_bytes = choose.choice((b"\xff" * 8, bytes(8), choose.randbytes(1), b"9", b"-", b'"', b"]"))
        changed[at : at + len(with_bytes)] = with_bytes
        path.write_bytes(changed)
        try:
            source = SafetensorsSource.open_file(path)
            for name in source.names():
                source.read(name)
            outcomes["read"] += 1
        except ConfigError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 500 and outcomes["read"] > 5


class Canary:
    """Unpickling this writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("suffix", ["bin", "pt", "pth", "ckpt", "pt2", "pkl"])
def test_pickles_are_refused_with_the_way_to_convert(suffix: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (tmp_path / f"pytorch_model.{suffix}").write_bytes(pickle.dumps(Canary(canary)))
    with pytest.raises(ConfigError, match=r"(?s)as a pickle.*safe_serialization"):
        SafetensorsSource.open_folder(tmp_path)
    assert not canary.exists()


def test_no_fallback_to_a_pickle(tmp_path: Path) -> None:
    canary, content = tmp_path / "canary", pickle.dumps(Canary(tmp_path / "canary"))
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    save_file(TENSORS, tmp_path / "model.safetensors")
    os.truncate(tmp_path / "model.safetensors", 300)
    with pytest.raises(ConfigError, match=r"model\.safetensors is no valid"):
        SafetensorsSource.open_folder(tmp_path)
    for other in (content, pickle.dumps(Canary(canary), protocol=0), b"PK\x03\x04" + content):
        (tmp_path / "model.safetensors").write_bytes(other)
        with pytest.raises(ConfigError):
            SafetensorsSource.open_folder(tmp_path)
    torch.save({"w": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="is a pickle"):
        SafetensorsSource.open_folder(tmp_path)
    assert not canary.exists()


def shard(folder: Path, **weight_map: Any) -> None:
    """Two shards and an index; weight_map: what differs from the right one."""
    save_file({"a": torch.ones(2)}, folder / "model-00001-of-00002.safetensors")
    save_file({"b": torch.zeros(3)}, folder / "model-00002-of-00002.safetensors")
    content = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors", **weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": content}))


def test_shards_read_as_one(tmp_path: Path) -> None:
    shard(tmp_path)
    source = SafetensorsSource.open_folder(tmp_path)
    assert set(source.names()) == {"a", "b"}
    assert torch.equal(source.read("a"), torch.ones(2)) and torch.equal(source.read("b"), torch.zeros(3))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/etc/passwd.safetensors", "does not lie inside"),
        ("../x.safetensors", "does not lie inside"),
        ("a/../../x.safetensors", "does not lie inside"),
        ("a\\..\\x.safetensors", "does not lie inside"),
        ("C:\\x.safetensors", "does not lie inside"),
        ("\x00.safetensors", "does not lie inside"),
        ("pytorch_model.bin", "(?s)is no safetensors file.*convert it"),
        ("", "is no safetensors file"),
        ("none.safetensors", "cannot open"),
        ("model-00001-of-00002.safetensors", "holds the tensor 'b', but it does not"),
        (3, "no weight_map"),
        (["x"], "no weight_map"),
    ],
)
def test_an_index_stays_in_its_folder(name: Any, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"b": torch.zeros(3)}, tmp_path / "x.safetensors")
    shard(folder, b=name)
    with pytest.raises(ConfigError, match=message):
        SafetensorsSource.open_folder(folder)


def test_links_and_devices(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"b": torch.zeros(3)}, tmp_path / "x.safetensors")
    shard(folder)
    second = folder / "model-00002-of-00002.safetensors"
    second.unlink()
    second.symlink_to(tmp_path / "x.safetensors")
    with pytest.raises(ConfigError, match="outside the model folder"):
        SafetensorsSource.open_folder(folder)
    second.unlink()
    second.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="outside the model folder"):
        SafetensorsSource.open_folder(folder)
    second.unlink()
    second.symlink_to(second)
    with pytest.raises(ConfigError, match=r"cannot (follow|open)"):
        SafetensorsSource.open_folder(folder)
    second.unlink()
    os.mkfifo(second)
    with pytest.raises(ConfigError, match="is not a regular file"):
        SafetensorsSource.open_folder(folder)
    second.unlink()
    second.mkdir()
    with pytest.raises(ConfigError, match="is not a regular file"):
        SafetensorsSource.open_folder(folder)


def test_the_hub_caches_links_are_followed_to_its_blobs_only(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--o--n" / "snapshots" / "abc", tmp_path / "models--o--n" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save_file(TENSORS, blobs / "0123")
    (blobs / "4567").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (snapshot / "model.safetensors").symlink_to("../../blobs/0123")
    (snapshot / "config.json").symlink_to("../../blobs/4567")
    opened = open_checkpoint(snapshot)
    assert opened.config["architectures"] and torch.equal(opened.tensors.read("a.weight"), TENSORS["a.weight"])
    (tmp_path / "models--o--other" / "blobs").mkdir(parents=True)
    (tmp_path / "models--o--other" / "blobs" / "89").write_text("{}")
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to("../../../models--o--other/blobs/89")
    with pytest.raises(ConfigError, match="outside the model folder"):
        open_checkpoint(snapshot)


def test_which_file_is_meant(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no weights"):
        SafetensorsSource.open_folder(tmp_path)
    save_file(TENSORS, tmp_path / "weights.safetensors")
    assert set(SafetensorsSource.open_folder(tmp_path).names()) == set(TENSORS)
    save_file({"b": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(ConfigError, match="holds 2 safetensors files"):
        SafetensorsSource.open_folder(tmp_path)
    save_file({"b": torch.zeros(3)}, tmp_path / "model.safetensors")
    assert set(SafetensorsSource.open_folder(tmp_path).names()) == {"b"}
