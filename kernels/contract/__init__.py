"""What an adapter gives: compiled modules with their toolchain, prepared calls, and rules for some releases of a library."""
