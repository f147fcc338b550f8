"""Standard streams that are full or closed: a message, or none where nobody hears it, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenon_core.cli.main import open_standard_streams

pytestmark = pytest.mark.unit
VERSION = [sys.executable, "-m", "tenon_core.cli.main", "version"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_is_said() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(VERSION, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 4
    assert done.stderr.startswith("error: the output cannot be written") and "remedy" in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_streams_are_the_null_device_also_for_children() -> None:
    """Descriptors 0 to 2 are closed, as by a daemon; a child's standard error must be open."""
    check = "import sys; sys.exit(0 if sys.stderr is not None and sys.stdin is not None else 7)"
    script = (
        "import os, subprocess, sys\n"
        "from tenon_core.cli.main import open_standard_streams\n"
        "for number in (0, 1, 2): os.close(number)\n"
        "sys.stdout = sys.stderr = None\n"
        "open_standard_streams()\n"
        "print('nobody hears it', file=sys.stderr)\n"
        f"sys.exit(subprocess.run([sys.executable, '-c', {check!r}]).returncode)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def test_open_streams_stay_what_they_are() -> None:
    before = [os.fstat(number).st_ino for number in (0, 1, 2)], sys.stdout, sys.stderr
    open_standard_streams()
    assert ([os.fstat(number).st_ino for number in (0, 1, 2)], sys.stdout, sys.stderr) == before
