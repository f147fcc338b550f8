"""Writes the Python modules of `inference.proto` anew: `write_rpc.py [FOLDER]`, below core/src if no folder is named.

It wants grpcio-tools. A test holds what is committed against what this writes.
"""

from __future__ import annotations

import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "core" / "src"
PROTO = "tenon_core/serving/rpc/inference.proto"


def main(folder: Path) -> int:
    """Run the compiler; its exit code."""
    import grpc_tools
    from grpc_tools import protoc

    bundled = Path(grpc_tools.__file__).parent / "_proto"
    outputs = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
    code: int = protoc.main(["protoc", f"-I{SOURCE}", f"-I{bundled}", *outputs, PROTO])
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE))
