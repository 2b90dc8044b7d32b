"""A backend whose kernel module no compiler takes: `adapters=[tests.backends.uncompilable]`."""

from __future__ import annotations

from tests.backends.faulty import Faulty, nothing

ADAPTERS = (Faulty(name="uncompilable", fault=nothing, module="mha.cu(7): error: no such thing"),)
