"""Whole-number vectors in a safetensors file (https://huggingface.co/docs/safetensors): the header's length, it, and data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.untrusted.door import fault, from_json
from orchestrator.untrusted.files import read_bytes

LENGTH_BYTES = 8
MAX_BYTES = 1 << 30  # a file may hold tensors beside the vectors
MAX_HEADER_BYTES = 1_000_000
SIZES = {"I32": ("<i4", 4), "I64": ("<i8", 8)}


def read_vector(path: Path, key: str) -> list[int]:
    """The vector that a file has under a key. Raises ValueError in words for a damaged file or another kind of tensor."""
    import numpy as np

    try:
        content = read_bytes(path, MAX_BYTES)
    except OSError as error:
        raise ValueError(f"{path.name}: {fault(error)}") from None
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    if len(content) < LENGTH_BYTES or not 0 < length <= min(MAX_HEADER_BYTES, len(content) - LENGTH_BYTES):
        raise ValueError(f"{path.name}: no safetensors file, or not a whole one")
    found = _entry(path, content[LENGTH_BYTES : LENGTH_BYTES + length], key)
    dtype, size = SIZES[found["dtype"]]
    count, (start, end) = found["shape"][0], found["data_offsets"]
    data = content[LENGTH_BYTES + length :]
    if not 0 <= start <= end <= len(data) or end - start != count * size:
        raise ValueError(f"{path.name}: {key} is cut off, or its header is wrong")
    vector: list[int] = np.frombuffer(data[start:end], dtype).tolist()
    return vector


def _entry(path: Path, header: bytes, key: str) -> Mapping[str, Any]:
    """The header's entry of a vector, with its keys checked."""
    try:
        found = from_json(header).get(key)
    except ValueError as error:
        raise ValueError(f"{path.name}: no safetensors file, its header is wrong ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path.name}: it has no tensor {key!r}")
    offsets, shape = found.get("data_offsets"), found.get("shape")
    whole = [type(n) is int for part in (offsets, shape) if isinstance(part, list) for n in part]
    if str(found.get("dtype")) not in SIZES or len(whole) != 3 or not all(whole) or not isinstance(shape, list) or len(shape) != 1:
        raise ValueError(f"{path.name}: {key} is no vector of whole numbers (I32 or I64)")
    return found


def with_vectors(vectors: Mapping[str, Sequence[int]]) -> bytes:
    """The bytes of a file with 32-bit vectors by their keys."""
    import numpy as np

    header, data = {}, b""
    for key, values in vectors.items():
        part = np.asarray(values, "<i4").tobytes()
        header[key] = {"dtype": "I32", "shape": [len(values)], "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text + data
