"""What the processes of tests/helpers/forked.py have imported when they begin: 4 of the 5 s of CPU time that a command costs.

Not Ray: it reads its RAY_ variables when it is imported, and tests set them.
"""

from __future__ import annotations

import gc
import pkgutil
from importlib import import_module

import jsonschema
import pandas
import pyarrow.parquet
import requests
import torch

from kernels import registry
from orchestrator import cli, commands
from tests.helpers.command_line import composed
from tests.helpers.parsed_once import parse_once

LIBRARIES = jsonschema, pandas, pyarrow.parquet, requests, torch, cli  # Ray imports jsonschema and requests

for command in pkgutil.iter_modules(commands.__path__):
    import_module(f"orchestrator.commands.{command.name}")
registry.adapters()
parse_once()
composed("+sweep=smoke")  # Hydra looks for its plugins and prepares its parser
gc.freeze()  # a collection in a child would copy every page
