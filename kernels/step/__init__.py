"""Attention inside a step: a graph of several layers of a model, each with its own KV cache, as an engine replays it."""
