"""python -m benchmarks.findings [--check]    # --check writes nothing and ends with 1 if a page would change"""

from __future__ import annotations

import sys

from benchmarks.findings.pages import ROOT, pages

ELSEWHERE = tuple(
    f"docs/evidence/{name}.md" for name in ("correctness", "measurement", "timing")
)  # benchmarks/measurement.py writes these


def main(*args: str) -> int:
    made = pages()
    stale = [name for name, text in made.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != text]
    there = {f"docs/evidence/{page.name}" for page in (ROOT / "docs/evidence").glob("*.md")}
    stale += sorted(there - set(made) - set(ELSEWHERE))
    if "--check" in args:
        print("\n".join(f"{name} differs: type python -m benchmarks.findings" for name in stale))
        return int(bool(stale))
    for name, text in made.items():
        (ROOT / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
