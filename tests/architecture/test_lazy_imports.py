"""Architecture, section 8.2: what must not be imported by the parts that have to be quick or harmless."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit
TORCH = frozenset({"torch"})
PLUGINS = frozenset({"tenon_cpu", "tenon_cuda", "tenon_triton", "tenon_sim", "tenon_plugin_sdk"})
WEB = frozenset({"fastapi", "starlette", "uvicorn", "httptools", "aiohttp"})
QUEUES = frozenset({"zmq"})
VENDOR = frozenset({"triton", "cupy", "pynvml", "jax", "torch_xla", "torch_npu", "habana_frameworks", "flashinfer"})
MODEL_CODE = frozenset({"transformers"})

HELP = "import sys\nfrom tenon_core.cli.main import main\nsys.argv = ['tenon', '--help']\nrun(main)"
DOCTOR = "import sys\nfrom tenon_core.cli.main import main\nsys.argv = ['tenon', 'doctor']\nrun(main)"
MANIFESTS = "from tenon_platforms.manifest import read_manifests\nassert len(read_manifests().valid) >= 2"
SELECTION = (
    "from tenon_platforms.selection import SelectionRequest, select\n"
    "assert select(SelectionRequest(platform='reference')).manifest.name == 'reference'"
)
FACE = "from tenon_core import LLM, SamplingParams, RequestOutput\nassert LLM.generate"
# What `tenon serve` has imported when it starts the engine's process, which takes longest and waits for nothing else.
SPAWN = (
    "import subprocess, sys\n"
    "from tenon_core.cli.main import main\n"
    "def spawn(*_, **__):\n    raise SystemExit\n"
    "known = {'__init__': spawn, '__class_getitem__': classmethod(lambda kind, _: kind)}\n"
    "subprocess.Popen = type('Popen', (), known)\n"
    "sys.argv = ['tenon', 'serve', '/nowhere', '--port', '0']\nrun(main)\n"
    "assert 'tenon_core.client.engine_process' in sys.modules"
)
FRONT_END = "import tenon_core.serving.lifetime, tenon_core.serving.api_process, tenon_core.client.model_files"
WORKERS = "import tenon_core.client.template_worker, tenon_core.client.grammar_worker"
HEAVY = frozenset({"numpy", "asyncio", "ssl", "tokenizers", "jinja2", "importlib_metadata"})
CONTRACT = "import tenon_platforms, tenon_core"


def imported_by(code: str) -> tuple[set[str], str]:
    """(top-level modules that `code` leaves in sys.modules, what it printed), in an interpreter of its own."""
    wrapped = (
        "import sys, json\n"
        "def run(main):\n"
        "    try:\n        main()\n"
        "    except SystemExit:\n        pass\n"
        f"{code}\n"
        "print('\\n' + json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", wrapped],
        capture_output=True,
        text=True,
        timeout=120,
        env={key: value for key, value in os.environ.items() if not key.startswith("TENON_")},
    )
    assert done.returncode == 0, done.stderr
    output, _, last = done.stdout.rstrip("\n").rpartition("\n")
    return set(json.loads(last)), output


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        pytest.param(CONTRACT, TORCH | PLUGINS | WEB | QUEUES | VENDOR, id="import of the packages"),
        pytest.param(MANIFESTS, TORCH | PLUGINS | VENDOR, id="manifest reading"),
        pytest.param(SELECTION, TORCH | PLUGINS | VENDOR, id="selection"),
        pytest.param(HELP, TORCH | PLUGINS | WEB | QUEUES | VENDOR | MODEL_CODE, id="tenon --help"),
        pytest.param(DOCTOR, TORCH | PLUGINS | WEB | VENDOR | MODEL_CODE, id="parent of tenon doctor"),
        pytest.param(SPAWN, TORCH | PLUGINS | WEB | QUEUES | VENDOR | HEAVY, id="before the engine is spawned"),
        pytest.param(FRONT_END, TORCH | PLUGINS | VENDOR | MODEL_CODE, id="a server's front end"),
        pytest.param(WORKERS, TORCH | PLUGINS | WEB | QUEUES | VENDOR | {"numpy"}, id="workers"),
        pytest.param(FACE, PLUGINS | WEB | QUEUES | VENDOR | MODEL_CODE, id="from tenon_core import LLM"),
    ],
)
def test_heavy_modules_stay_out(code: str, forbidden: frozenset[str]) -> None:
    modules, _ = imported_by(code)
    assert not modules & forbidden, f"imported: {sorted(modules & forbidden)}"


def test_help_names_every_command() -> None:
    _, output = imported_by(HELP)
    for command in ("serve", "chat", "bench", "doctor", "ops", "inspect", "plugins"):
        assert command in output


@pytest.mark.parametrize("line", ["import torch.nn", "def f():\n    import zmq\nf()", "import starlette.routing"])
def test_an_eager_import_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "planted.py").write_text(line)
    modules, _ = imported_by(f"sys.path.insert(0, {str(tmp_path)!r})\nimport planted")
    assert modules & (TORCH | QUEUES | WEB)
