"""What a flush reads and writes, on tensors of a CPU: what it does to a real L2 is in docs/timing.md."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from kernels.timing import caches
from kernels.timing.caches import Caches, Flush, L2State

WORDS = 4096


@pytest.fixture
def flush() -> Flush:
    return Flush(torch.zeros(8 * WORDS, dtype=torch.uint8), torch.zeros((), dtype=torch.int64))


@pytest.mark.parametrize("at", [0, 1, 15, WORDS // 2, WORDS - 1])
def test_a_read_loads_every_line_and_writes_none(flush: Flush, at: int):
    flush.buffer.view(torch.int64)[at] = 7
    before = flush.buffer.clone()
    flush.read()

    assert flush.largest.item() == 7
    assert torch.equal(flush.buffer, before)


def test_a_write_leaves_every_line_written(flush: Flush):
    flush.buffer.fill_(1)
    flush.write()

    assert not flush.buffer.any()


@dataclass
class Diary:
    """A flush that notes what is asked of it."""

    entries: list[str] = field(default_factory=list)

    def read(self) -> None:
        self.entries.append("read")

    def write(self) -> None:
        self.entries.append("write")

    def replay(self) -> None:
        self.entries.append("other code")


@pytest.mark.parametrize(("l2", "did"), [("clean", ["read"]), ("dirty", ["write"]), ("warm", [])])
def test_each_state_is_brought_about_in_its_way(monkeypatch: pytest.MonkeyPatch, l2: L2State, did: list[str]):
    diary, asked = Diary(), []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(caches, "flush_of", lambda *key: asked.append(key) or diary)
    monkeypatch.setattr(caches, "other_code", lambda device: (diary, None))
    Caches(l2, l2_flush_factor=4.0).restore()
    Caches(l2, icache="cold").restore()

    assert diary.entries == [*did, "other code", *did]
    assert asked == ([(3, 4.0), (3, 2.0)] if did else [])


def test_a_new_buffer_is_as_large_as_the_l2_times_the_factor_and_is_read_before_it_is_used(monkeypatch: pytest.MonkeyPatch):
    reads: list[Flush] = []
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, dtype, device: zeros(*shape, dtype=dtype))
    monkeypatch.setattr(caches, "l2_bytes", lambda device: 1001)

    def read(flush: Flush) -> None:
        reads.append(flush)

    monkeypatch.setattr(Flush, "read", read)
    made = caches.flush_of.__wrapped__(0, 2.0)

    assert made.buffer.numel() == 2000  # whole words
    assert reads == [made] * caches.SETTLING_READS
