"""Clients that evaluate and load: the commands of docs/serving.md, on SmolLM2. `make clients` installs and runs them.

They come with `datasets`, `pandas` and the like (500 MB), so `requirements/clients.txt` holds them, not test.txt.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import Served, serving

from tenon_core.loading.checkpoint import open_checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.full]
PAGE = Path(__file__).parents[3] / "docs" / "serving.md"
CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Japan": "Tokyo", "Spain": "Madrid", "Germany": "Berlin", "Egypt": "Cairo",
    "Greece": "Athens", "Russia": "Moscow",
}  # fmt: skip
TASK = """
task: tenon_capitals
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "The capital of {{country}} is"
doc_to_choice: choices
doc_to_target: label
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
NUM_REQUESTS = 6


@pytest.fixture(scope="module")
def served(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("eval") / "log"
    with serving(smollm2_path, log, "--max-model-len", "1024", "--served-model-name", "smollm2", threads=2) as running:
        yield running


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's tokenizer as a folder that Transformers opens."""
    folder = tmp_path_factory.mktemp("tokenizer")
    open_checkpoint(smollm2_path).load_tokenizer().save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder


def run_shown(program: str, package: str, places: dict[str, str], folder: Path, *more: str) -> None:
    """Run the page's command of a program, with what it leaves open filled in."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: make clients")
    (line,) = re.findall(rf"^```\n({program} .*)\n```$", PAGE.read_text(), re.M)
    for shown, here in places.items():
        assert shown in line
        line = line.replace(shown, here)
    command = [str(Path(sys.executable).parent / program), *shlex.split(line)[1:], *more]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=900, env={**os.environ, **offline}, cwd=folder
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_lm_eval(served: Served, tokenizer: Path, tmp_path: Path) -> None:
    """A multiple-choice task by log-likelihood; each likelihood is the sum of what one request for it says."""
    names = list(CAPITALS.values())
    rows = []
    for index, (country, capital) in enumerate(CAPITALS.items()):
        choices = [capital, names[(index + 3) % 8], names[(index + 5) % 8]]
        choices = choices[index % 3 :] + choices[: index % 3]
        rows.append({"country": country, "choices": choices, "label": choices.index(capital)})
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "capitals.yaml").write_text(TASK.replace("DATA", str(tmp_path / "data.jsonl")))
    places = {
        "TASK": "tenon_capitals", "MODEL": "smollm2", "http://127.0.0.1:8000": served.url, "TOKENIZER": str(tokenizer),
    }  # fmt: skip
    run_shown(
        "lm_eval", "lm_eval", places, tmp_path, "--include_path", str(tmp_path), "--output_path", str(tmp_path / "out"),
        "--log_samples",
    )  # fmt: skip
    (report,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(report.read_text())["results"]["tenon_capitals"]["acc,none"] == 1.0
    (log,) = (tmp_path / "out").rglob("samples_*.jsonl")
    samples = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(samples) == len(rows)
    for sample in samples[:2]:
        prompt = f"The capital of {sample['doc']['country']} is"
        for choice, ((said, _),) in zip(sample["doc"]["choices"], sample["resps"], strict=True):
            assert float(said) == pytest.approx(likelihood(served, prompt, f" {choice}"), abs=0.05)


def likelihood(served: Served, prompt: str, continuation: str) -> float:
    """Step by step, each token forced and asked for: no echo."""
    total, text = 0.0, prompt
    ids = [tokens_of(served, one) for one in (prompt, prompt + continuation)]
    for token in ids[1][len(ids[0]) :]:
        body: dict[str, Any] = {
            "prompt": text, "max_tokens": 1, "logprobs": 0, "allowed_token_ids": [token], "temperature": 0,
        }  # fmt: skip
        choice = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60).json()["choices"][0]
        total += choice["logprobs"]["token_logprobs"][0]
        text += choice["text"]
    return total


def tokens_of(served: Served, text: str) -> list[int]:
    body = {"prompt": text, "add_special_tokens": False}
    found: list[int] = httpx.post(f"{served.url}/tokenize", json=body, timeout=60).json()["tokens"]
    return found


def test_guidellm(served: Served, tokenizer: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"Count from {index} to ten:", "output_tokens_count": 12} for index in range(NUM_REQUESTS)]
    (tmp_path / "PROMPTS.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    places = {
        "MODEL": "smollm2", "http://127.0.0.1:8000": served.url, "TOKENIZER": str(tokenizer),
        "count=20": f"count={NUM_REQUESTS}",
    }  # fmt: skip
    run_shown("guidellm", "guidellm", places, tmp_path, "--disable-console")
    (benchmark,) = json.loads((tmp_path / "REPORT.json").read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert len(requests["successful"]) == NUM_REQUESTS, [one["info"]["error"] for one in requests["errored"]]
    assert all(one["output_tokens"] == 12 and one["time_to_first_token_ms"] > 0 for one in requests["successful"])
