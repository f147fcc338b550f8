"""Architecture, section 8.4: any plugin can be uninstalled and the rest works; core and contract alone suffice.

The same tiny model generates in interpreters that see ever fewer of our packages, through `LLM`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from architecture.clean_path import CleanPath, clean_path
from architecture.sources import PACKAGES
from tiny_models import TinyModel

pytestmark = pytest.mark.e2e
ALONE = ("tenon_platforms", "tenon_core")
GENERATE = """
import json, sys
from tenon_core import LLM, SamplingParams
params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
with LLM(sys.argv[1], max_num_seqs=2, dtype="float32", **json.loads(sys.argv[2])) as llm:
    output = llm.generate({"prompt_token_ids": [1, 2, 3]}, params)[0].outputs[0]
from tenon_platforms.selection import SelectionRequest, select
seen = sorted(name for name in sys.modules if name in ("tenon_cpu", "tenon_cuda", "tenon_sim", "tenon_plugin_sdk"))
print(json.dumps({
    "tokens": list(output.token_ids),
    "selected": select(SelectionRequest()).manifest.name,
    "modules": seen,
}))
"""


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the links to site-packages are, once for all tests."""
    return tmp_path_factory.mktemp("clean")


@pytest.fixture(scope="module")
def checkpoint(tiny_model: Callable[[str], TinyModel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with a tokenizer beside it."""
    folder = tmp_path_factory.mktemp("removal") / "tiny"
    shutil.copytree(tiny_model("llama").path, folder)
    write_byte_tokenizer(folder)
    return folder


def write_byte_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer with no merges: 256 tokens."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def generate(path: CleanPath, checkpoint: Path, **options: str) -> dict[str, object]:
    """What `GENERATE` prints there."""
    done = path.run(GENERATE, str(checkpoint), json.dumps(options))
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def expected_tokens(tiny: TinyModel) -> list[int]:
    """What Transformers generates."""
    import torch

    with torch.no_grad():
        found = tiny.model.generate(
            torch.tensor([[1, 2, 3]]), max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=0
        )
    return [int(token) for token in found[0, 3:]]


@pytest.mark.parametrize(
    ("packages", "selected", "options"),
    [
        (ALONE, "reference", {}),
        ((*ALONE, "tenon_plugin_sdk"), "reference", {}),
        ((*ALONE, "tenon_sim"), "reference", {}),
        ((*ALONE, "tenon_cpu"), "cpu", {}),
        ((*ALONE, "tenon_plugin_sdk", "tenon_cpu"), "cpu", {"platform": "reference"}),
    ],
    ids=["core and contract alone", "with the SDK", "with tenon-sim", "with tenon-cpu", "all, reference by name"],
)
def test_what_is_left_works(
    links: Path,
    checkpoint: Path,
    tiny_model: Callable[[str], TinyModel],
    packages: tuple[str, ...],
    selected: str,
    options: dict[str, str],
) -> None:
    found = generate(clean_path(links, packages), checkpoint, **options)
    assert found["tokens"] == expected_tokens(tiny_model("llama"))
    assert found["selected"] == selected
    used = ["tenon_cpu"] if selected == "cpu" and not options else []
    assert found["modules"] == used, "a plugin that was not selected was imported"


def test_a_core_that_needs_a_plugin_is_found(links: Path, checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(PACKAGES["tenon_core"] / "tenon_core", tmp_path / "tenon_core")
    with (tmp_path / "tenon_core" / "engine" / "start.py").open("a") as file:
        file.write("\nimport tenon_cpu\n")
    done = clean_path(links, ALONE, extra=[tmp_path]).run(GENERATE, str(checkpoint), "{}")
    assert done.returncode != 0
    assert "tenon_cpu" in done.stderr
