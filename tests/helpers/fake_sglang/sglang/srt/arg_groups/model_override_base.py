from __future__ import annotations

from types import SimpleNamespace

from sglang.srt.server_args import LATER, ServerArgs


def resolved_view(args: ServerArgs) -> SimpleNamespace:
    assert LATER and args.resolved, "not of this release, or not resolved"
    return SimpleNamespace(**{**vars(args), "attention_backend": args.attention_backend or "fa3"})
