"""The process of a running engine: it starts the engine, and measures one point in it after another, as the worker asks.

The program of an engine is a module with `start(spec)`, which returns an engine with `point(**keys)`, and what it says of itself.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from kernels.contract.runner import said
from kernels.environment.wire import ConnectionClosed, Header, Wire


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

    def answer(self, request: Header) -> Header:
        """The answer to one request. After an error the process is of no more use, unless the program says so (`healthy`)."""
        try:
            found: Header = getattr(self, request.pop("do"))(**request)
        except ConnectionClosed:
            raise
        except BaseException as error:  # an engine may raise anything, and end its process with SystemExit
            return {
                "error": {"kind": type(error).__name__, "message": said(error).partition(": ")[2]},
                "healthy": getattr(error, "healthy", False),
            }
        return found


def serve(reads: int, writes: int) -> None:
    """Answers requests until the worker closes the connection. Then it ends at once: an engine may have threads that wait."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the engine prints goes to the log
    wire = Wire(reads, writes)
    server = EngineServer(wire)
    try:
        while True:
            request, _ = wire.receive()
            wire.send(server.answer(request))
    except ConnectionClosed:
        os._exit(0)
