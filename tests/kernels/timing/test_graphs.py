"""When a capture gives kept memory back, and that it ends whatever happens. Real captures are in tests/gpu/test_step_gpu.py."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from kernels.timing import graphs

SHORT, PLENTY = graphs.LITTLE_BYTES - 1, graphs.LITTLE_BYTES


class Device:
    """What `capture` asks of a CUDA device, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
        self.did: list[object] = []
        self.is_invalid = False  # a call may break the capture, and then its end fails too
        did = self.did

        device = self

        class Graph:
            def capture_begin(self, pool: object = None) -> None:
                did.append(("begin", pool))

            def capture_end(self) -> None:
                did.append("end")
                if device.is_invalid:
                    raise RuntimeError("operation failed due to a previous error during capture")

            def pool(self) -> str:
                return "its pool"

        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: did.append("synchronize"))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free_bytes, 2 * free_bytes))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: did.append("empty_cache"))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "stream", nullcontext)
        monkeypatch.setattr(graphs, "_capture_stream", lambda device: f"stream of {device}")

    def call(self) -> None:
        self.did.append("call")


@pytest.mark.parametrize(("free", "emptied"), [(PLENTY, []), (SHORT, ["empty_cache"])])
def test_kept_memory_is_given_back_only_if_little_is_free(monkeypatch: pytest.MonkeyPatch, free: int, emptied: list[str]):
    device = Device(monkeypatch, free)
    graphs.capture(device.call)

    assert device.did == ["synchronize", *emptied, ("begin", None), "call", "end"]


def test_a_graph_takes_the_memory_of_the_one_that_it_shares_with(monkeypatch: pytest.MonkeyPatch):
    device = Device(monkeypatch, PLENTY)
    first = graphs.capture(device.call)
    graphs.capture(device.call, shares_with=first)

    assert [each for each in device.did if each not in ("synchronize", "call", "end")] == [("begin", None), ("begin", "its pool")]


@pytest.mark.parametrize("invalid", [False, True])
def test_the_capture_of_a_call_that_fails_ends_with_its_error(monkeypatch: pytest.MonkeyPatch, invalid: bool):
    device = Device(monkeypatch, PLENTY)
    device.is_invalid = invalid

    def fails() -> None:
        raise RuntimeError("no graph for this")

    with pytest.raises(RuntimeError, match="no graph for this"):
        graphs.capture(fails)

    assert device.did[-1] == "end"
