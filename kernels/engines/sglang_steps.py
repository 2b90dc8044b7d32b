"""SGLang with a model of a few layers, and the steps of one point in it. Read in 0.5.12.post1 and 0.5.23.

Runs in a process of the engine's own environment, without tokenizer and server. SGLang's scheduler runs its own event loop there,
which asks for requests before each step: the one place where it is held.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kernels.engines.steps import NotMeasured, Refused, Watch

# What is set already stays. A group of one rank opens sockets; no request to a network that waits for its end; nothing to compile
# beside attention.
ENVIRONMENT = {"SGLANG_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
ENVIRONMENT |= {"TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "SGLANG_ENABLE_JIT_DEEPGEMM": "0"}


class Finished(Exception):
    """All steps of a point were run: leaves the event loop."""


def start(spec: Mapping[str, Any]) -> tuple[RunningSglang, dict[str, Any]]:
    """The engine of a spec (`EngineStart.spec`), and what it says of itself. Raises Refused for a flag that it does not take."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from sglang.srt.entrypoints.engine import _set_envs_and_config
    from sglang.srt.server_args import ATTENTION_BACKEND_CHOICES, PortArgs, ServerArgs

    if spec["off"] is not None:
        raise Refused(f"sglang {version('sglang')} has no option {spec['off']} of attention")
    if spec["flag"] not in (None, *ATTENTION_BACKEND_CHOICES):
        known = ", ".join(ATTENTION_BACKEND_CHOICES)
        raise Refused(f"sglang {version('sglang')} has no attention backend {spec['flag']}; it has {known}")
    with tempfile.TemporaryDirectory() as folder:
        # No tokens that end a request: SGLang asks for them.
        model = spec["model"] | {"torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}
        Path(folder, "config.json").write_text(json.dumps(model))
        try:
            args = ServerArgs(model_path=folder, **_arguments(spec, later := hasattr(ServerArgs, "resolve_once")))
            if later:
                args.resolve_once()
        except ValueError as error:
            raise Refused(str(error)) from None
        _set_envs_and_config(args)
        scheduler = _scheduler(args, ports := PortArgs.init_new(args), later)
    for name in vars(ports).values():  # files that only reserve the names of its sockets
        if str(name).startswith("ipc://"):
            Path(str(name).removeprefix("ipc://")).unlink(missing_ok=True)
    return (engine := RunningSglang(scheduler, spec)), engine.about()


def _scheduler(args: Any, ports: Any, later: bool) -> Any:
    """Its ranks are published in `later` releases (0.5.23), and given to it in 0.5.12.post1."""
    from sglang.srt.managers.scheduler import Scheduler

    if not later:
        ranks = dict.fromkeys(("gpu_id", "tp_rank", "moe_ep_rank", "pp_rank", "attn_cp_rank", "moe_dp_rank"), 0)
        return Scheduler(server_args=args, port_args=ports, dp_rank=None, **ranks)
    from sglang.srt.runtime_context import SpawnRanks, publish

    publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    return Scheduler(args, ports)


def _arguments(spec: Mapping[str, Any], later: bool) -> dict[str, Any]:
    """What is given to SGLang. A flag is the decode backend alone, with drafts that of prompts too; n-grams draft whole chains."""
    batches, drafts = spec["batches"], spec["drafts"]
    lookup = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": drafts + 1, "speculative_eagle_topk": 1}
    how = {**lookup, "speculative_ngram_max_bfs_breadth": 1, "attention_backend": spec["flag"]} if drafts else {}
    sizes = {"context_length": spec["max_model_len"], "page_size": spec["page_size"], "max_total_tokens": spec["cache_tokens"]}
    # One more request, since one whose prompt is cut in chunks counts twice.
    sizes |= {"max_running_requests": max(batches) + 1, "chunked_prefill_size": spec["prefill_tokens"]}
    of, prompts = ("_decode", "prefill") if later else ("", "piecewise")
    graphs = {f"cuda_graph_bs{of}": batches, f"cuda_graph_max_bs{of}": max(batches), f"disable_{prompts}_cuda_graph": True}
    model = {"load_format": "dummy", "dtype": "bfloat16", "random_seed": 0, "skip_tokenizer_init": True}
    cache = {"kv_cache_dtype": {"fp8": "fp8_e4m3"}.get(spec["kv_cache_dtype"], spec["kv_cache_dtype"])}  # SGLang's own name
    other = {"sampling_backend": "pytorch", "watchdog_timeout": 1e7, "log_level": "warning"}  # seconds: the worker ends a step
    return {**model, **sizes, **graphs, **cache, **other, **(how or {"decode_attention_backend": spec["flag"]})}


class RunningSglang:
    """A running scheduler. One point at a time."""

    def __init__(self, scheduler: Any, spec: Mapping[str, Any]) -> None:
        self.spec, self.scheduler = spec, scheduler
        self.runner = scheduler.tp_worker.model_runner
        self.later = hasattr(scheduler, "request_receiver")
        graphs = self.runner.decode_cuda_graph_runner if self.later else self.runner.graph_runner
        self.graph = "no graphs" if graphs is None else type(graphs).__name__
        self.watch = Watch(spec, self.graph)
        self._receiver = scheduler.request_receiver if self.later else scheduler
        self._receive, self._points = self._receiver.recv_requests, 0
        _wrap(scheduler.model_worker, self.watch)

    def about(self) -> dict[str, Any]:
        """What the engine resolved its flag to, and how it runs, as columns of a row."""
        args = self.scheduler.server_args
        if self.later:  # they stay as they were typed
            from sglang.srt.arg_groups.model_override_base import resolved_view

            args = resolved_view(args)
        prefill, decode = (getattr(args, f"{of}_attention_backend") or args.attention_backend for of in ("prefill", "decode"))
        words = [f"{name}={getattr(args, name)}" for name in ("context_length", "page_size", "kv_cache_dtype")]
        ahead = "async" if self.scheduler.enable_overlap else "synchronous"
        return {
            "engine_version": version("sglang"),
            "resolved_backend": prefill if self.spec["drafts"] else decode,  # a verify runs that of prompts
            "kernel_config": " ".join([*words, f"prefill={prefill}"]),
            "engine_runner": f"SGLang's scheduler and {type(self.runner).__name__}, {ahead} scheduling",
            "engine_graph": self.graph,
        }

    def point(self, batch: int, prompt: int, most: int, steps: Mapping[str, int], read: Callable[[], None]) -> dict[str, Any]:
        """Columns of a row (`Watch.measure`). Requests have `prompt` tokens and may get `most`."""
        measure = self.watch.measure(batch, steps, read, lambda: not self.scheduler.is_fully_idle())
        script = self._script(self._requests(batch, prompt, most), measure)

        def receive(**local: Any) -> list[Any]:
            return [*self._receive(**local), *next(script)]

        type(self._receiver).recv_requests = staticmethod(receive)  # an object of 0.5.23 is frozen
        try:
            self.scheduler.run_event_loop()
        except (Finished, NotMeasured) as ended:
            self.scheduler.flush_cache()
            if isinstance(ended, NotMeasured):
                raise
        return self.watch.found

    def _script(self, requests: list[Any], measure: Iterator[None]) -> Iterator[list[Any]]:
        """What the scheduler receives before each step: all requests before the first, and that they end behind the last."""
        from sglang.srt.managers.io_struct import AbortReq

        ended: Exception = Finished()
        yield requests
        try:
            for _ in measure:
                yield []
        except NotMeasured as error:
            ended = error
        yield [AbortReq(abort_all=True)]
        while not self.scheduler.is_fully_idle():
            yield []
        raise ended

    def _requests(self, batch: int, prompt: int, most: int) -> list[Any]:
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        self._points += 1
        draw, vocabulary = random.Random(self._points), range(10, self.spec["model"]["vocab_size"] - 90)
        keys = {"input_text": "", "mm_inputs": None, "return_logprob": False, "logprob_start_len": -1, "top_logprobs_num": 0}
        keys |= {"token_ids_logprob": None, "stream": False, "input_embeds": None, "token_type_ids": None}
        found = []
        for request in range(batch):
            params = SamplingParams(max_new_tokens=most, ignore_eos=True, temperature=0.0)
            params.normalize(None)
            ids = draw.choices(vocabulary, k=prompt)
            of = {"input_ids": array("q", ids) if self.later else ids, "rid": f"{self._points}-{request}"}
            found.append(TokenizedGenerateReqInput(sampling_params=params, **of, **keys))
        return found


def _wrap(worker: Any, watch: Watch) -> None:
    """Tells of each step of a worker: its model runner, and the sampler."""
    forward = worker.forward_batch_generation

    def on_forward(step: Any, *args: Any, **keys: Any) -> Any:
        requests = len(step.seq_lens)
        pure = step.forward_mode.is_decode() and requests == watch.batch
        new = watch.q if watch.q > 1 else 0  # without drafts its lengths have the new token already
        watch.opens(float(step.seq_lens_cpu.sum()) / requests + new if pure else None)
        return watch.calls(lambda: forward(step, *args, **keys), ends=True)

    worker.forward_batch_generation = on_forward
