"""The process of a running engine: it starts the engine, and measures one point in it after another, as the worker asks.

The program of an engine is a module with `start(spec)`, which returns an engine with `point(**keys)`, and what it says of itself.
"""

from __future__ import annotations

import importlib
from typing import Any

from kernels.environment.wire import ConnectionClosed, Header, Wire, failure


class EngineServer:
    """Each public method answers the request of its name."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._engine: Any = None

    def start(self, program: str, spec: Header) -> Header:
        """Starts the engine; what it says of itself."""
        self._engine, about = importlib.import_module(program).start(spec)
        return {"about": about}

    def point(self, **keys: Any) -> Header:
        """Measures a point. The worker is told when to read the device's clocks."""
        return {"found": self._engine.point(**keys, read=lambda: self.wire.send({"event": "read"}))}

    def answer(self, request: Header) -> tuple[Header, tuple[bytes, ...]]:
        """The answer to one request. After an error the process is of no more use, unless the program says so (`healthy`)."""
        try:
            found: Header = getattr(self, request.pop("do"))(**request)
        except ConnectionClosed:
            raise
        except BaseException as error:  # an engine may raise anything, and end its process with SystemExit
            return failure(error, getattr(error, "healthy", False))
        return found, ()


def serve(reads: int, writes: int) -> None:
    wire = Wire(reads, writes)
    wire.serve(EngineServer(wire).answer)
