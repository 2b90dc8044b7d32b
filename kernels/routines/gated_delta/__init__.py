"""Gated delta nets: a recurrent state in place of keys and values, as in three of four layers of Qwen3-Next."""
