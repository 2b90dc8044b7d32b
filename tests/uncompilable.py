"""A backend whose kernel module no compiler takes: `adapters=[tests.uncompilable]`."""

from __future__ import annotations

from tests.faulty import Faulty, nothing

ADAPTERS = (Faulty("uncompilable", nothing, module="mha.cu(7): error: no such thing"),)
