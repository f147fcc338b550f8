"""Collectives over torch.distributed: two processes of their own, every operation against what it must give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

RANK = """
import sys
import torch
from tenon_platforms.collectives import TorchCollectives

rank, address = int(sys.argv[1]), sys.argv[2]
group = TorchCollectives(rank=rank, size=2, address=address, timeout_s=60)


def of(which, *shape):
    return torch.arange(float(torch.Size(shape).numel())).view(shape) + 100 * which


both = of(0, 4, 3) + of(1, 4, 3)
reduced = of(rank, 4, 3)
assert group.all_reduce(reduced) is reduced and torch.equal(reduced, both)
assert torch.equal(group.reduce_scatter(of(rank, 4, 3)), both[2 * rank : 2 * rank + 2])
assert torch.equal(group.all_gather(of(rank, 2, 3)), torch.cat((of(0, 2, 3), of(1, 2, 3))))
assert torch.equal(group.all_gather(of(rank, 3, 2).t()), torch.cat((of(0, 3, 2).t(), of(1, 3, 2).t())))
assert torch.equal(group.broadcast(of(rank, 5), source=1), of(1, 5))
assert group.all_reduce(torch.zeros(0, 3)).shape == (0, 3)

# rank 0 keeps one row and sends two, rank 1 sends one and keeps none; later nobody sends anything
send, receive = ([1, 2], [1, 1]) if rank == 0 else ([1, 0], [2, 0])
mine = of(rank, sum(send), 2)
found = group.all_to_all(mine, send, receive)
expected = torch.cat((of(0, 3, 2)[:1], of(1, 1, 2))) if rank == 0 else of(0, 3, 2)[1:]
assert torch.equal(found, expected), (rank, found, expected)
assert group.all_to_all(of(rank, 0, 2), [0, 0], [0, 0]).shape == (0, 2)

if rank == 0:
    group.send(of(7, 3), 1)
else:
    assert torch.equal(group.receive(torch.zeros(3), 0), of(7, 3))
group.barrier()
assert group.agree("the same plan") and not group.agree(f"plan of rank {rank}")
group.close()
print("done", rank)
"""


def test_two_ranks(tmp_path: Path) -> None:
    script, address = tmp_path / "rank.py", f"file://{tmp_path / 'rendezvous'}"
    script.write_text(RANK)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), address],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        shown = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for one in ranks:
            one.kill()
    for rank, text in enumerate(shown):
        assert ranks[rank].returncode == 0 and f"done {rank}" in text, text
