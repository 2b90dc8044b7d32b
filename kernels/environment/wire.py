"""Messages between a worker and the process of an environment: a JSON header, and bytes behind it, over two pipes.

    message := length of the header (4 bytes, big-endian), header, blobs
    header  := JSON; "blobs" in it lists the length of each blob in bytes

Imports nothing but the standard library, so that it works under every Python and torch. A tensor travels as a blob.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import select
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

HEAD = 4  # bytes of the header's length
CHUNK = 2**20
POLL_MS = 200  # how often a wait without a limit looks whether the other side is there

Header = dict[str, Any]


class ConnectionClosed(Exception):
    """The other side is gone."""


class AnswerTimeout(Exception):
    """The other side has not answered in time."""


class Wire:
    """Both directions of a connection, by their file descriptors."""

    def __init__(self, reads: int, writes: int) -> None:
        self.reads, self.writes = reads, writes

    def send(self, header: Header, blobs: tuple[bytes, ...] = ()) -> None:
        """Raises ConnectionClosed if nobody reads."""
        text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
        try:
            for part in (len(text).to_bytes(HEAD, "big"), text, *blobs):
                _write(self.writes, part)
        except OSError:
            raise ConnectionClosed from None

    def receive(self, seconds: float = math.inf) -> tuple[Header, list[bytes]]:
        """The next message. Raises ConnectionClosed, and AnswerTimeout if it is not here whole after so many seconds."""
        until = time.monotonic() + seconds
        length = int.from_bytes(self._read(HEAD, until), "big")
        header: Header = json.loads(self._read(length, until))
        return header, [self._read(size, until) for size in header.pop("blobs")]

    def close(self) -> None:
        for descriptor in (self.reads, self.writes):
            os.close(descriptor)

    def _read(self, size: int, until: float) -> bytes:
        found = bytearray()
        waiting = select.poll()
        waiting.register(self.reads, select.POLLIN | select.POLLHUP)
        while len(found) < size:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise AnswerTimeout
            if not waiting.poll(min(POLL_MS, left_s * 1e3)):
                continue
            try:
                part = os.read(self.reads, min(CHUNK, size - len(found)))
            except OSError:
                part = b""
            if not part:
                raise ConnectionClosed
            found += part
        return bytes(found)


def _write(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def to_bytes(tensor: Tensor) -> tuple[dict[str, Any], bytes]:
    """What `from_bytes` needs to make the tensor again. It is copied to the host."""
    import torch

    here = tensor.detach().contiguous().cpu()
    plain = here.view(torch.uint8) if here.dim() else here.reshape(1).view(torch.uint8)
    content = ctypes.string_at(plain.data_ptr(), plain.numel()) if plain.numel() else b""
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}, content


def from_bytes(about: dict[str, Any], content: bytes, device: torch.device) -> Tensor:
    """The tensor on `device`, in memory of its own."""
    import torch

    dtype = getattr(torch, about["dtype"])
    if not content:
        return torch.empty(about["shape"], dtype=dtype, device=device)
    return torch.frombuffer(bytearray(content), dtype=dtype).view(about["shape"]).to(device)
