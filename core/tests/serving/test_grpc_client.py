"""A gRPC client as others make one: generated from the committed .proto, running the code of docs/serving.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_model import model_folder
from running_server import KEY, free_port, start_server

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[3]
PROTO = ROOT / "core" / "src" / "tenon_core" / "serving" / "rpc" / "inference.proto"


def test_the_code_of_the_page(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO.parent}", f"--python_out={tmp_path}",
         f"--grpc_python_out={tmp_path}", PROTO.name],
        check=True, timeout=60,
    )  # fmt: skip
    page = (ROOT / "docs" / "serving.md").read_text()
    (code,) = re.findall(r"^```python\n# gRPC\n(.*?)^```$", page, re.M | re.S)
    port = free_port()
    for shown, here in (("127.0.0.1:9000", f"127.0.0.1:{port}"), ("Bearer none", f"Bearer {KEY}")):
        assert shown in code
        code = code.replace(shown, here)
    running = start_server(model_folder(tmp_path / "model"), tmp_path / "log", grpc_port=port)
    try:
        running.wait_healthy()
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )  # fmt: skip
    finally:
        running.stop()
    assert "What is the weather in Oslo?" in done.stdout, done.stderr[-3000:]
