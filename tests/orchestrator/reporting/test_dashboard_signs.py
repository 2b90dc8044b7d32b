"""The colours and markers of backends on the dashboard: told apart, and readable on its light and its dark background."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pyarrow.parquet as pq
import pytest

from orchestrator import ROOT
from orchestrator.analysis.names import shown
from tests.helpers.datasets import RESULTS

LINEAR_TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]])
WHITE = np.array([0.95047, 1, 1.08883])
STATIC = ROOT / "orchestrator" / "reporting" / "dashboard" / "static"
THEME = (STATIC / "theme.js").read_text()


def words(name: str) -> list[str]:
    """The strings of an array of theme.js."""
    (array,) = re.findall(rf"^const {name} = (\[.*?\]);", THEME, re.MULTILINE | re.DOTALL)
    return re.findall(r'"([^"]+)"', array)


def places() -> dict[str, int]:
    """The place of each backend that theme.js names, which is its sign."""
    (later,) = re.findall(r"^const PLACES = \{(.*?)\};", THEME, re.MULTILINE)
    backends = words("BACKENDS")
    assert len(set(backends)) == len(backends)
    found = {name: int(place) for name, place in re.findall(r"(\w+): (\d+)", later)}
    assert min(found.values()) >= len(backends) and not set(found) & set(backends)
    return {name: place for place, name in enumerate(backends)} | found


def linear(colour: str) -> np.ndarray:
    """An sRGB colour such as #0090d8 in linear light."""
    c = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, contrast ratio."""
    low, high = sorted(float(LINEAR_TO_XYZ[1] @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(colour: str) -> tuple[float, float, float]:
    """CIELAB under D65."""
    xyz = LINEAR_TO_XYZ @ linear(colour) / WHITE
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


def ciede2000(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    """The distance of two colours in CIELAB. Sharma, Wu, Dalal, "The CIEDE2000 color-difference formula", 2005."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    g = 0.5 * (1 - np.sqrt((c := (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2) ** 7 / (c**7 + 25**7)))
    c1, c2 = np.hypot((1 + g) * a1, b1), np.hypot((1 + g) * a2, b2)
    h1, h2 = (np.degrees(np.arctan2(b, (1 + g) * a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180
    hue = (h1 + turn / 2) % 360
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    waves = ((-0.17, 1, -30), (0.24, 2, 0), (0.32, 3, 6), (-0.20, 4, -63))
    t = 1 + sum(share * np.cos(np.radians(n * hue + shift)) for share, n, shift in waves)
    dl = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2))
    dc = (c2 - c1) / (1 + 0.045 * chroma)
    dh = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2)) / (1 + 0.015 * chroma * t)
    turned = -2 * np.sqrt(chroma**7 / (chroma**7 + 25**7)) * np.sin(np.radians(60 * np.exp(-(((hue - 275) / 25) ** 2))))
    return float(np.sqrt(dl**2 + dc**2 + dh**2 + turned * dc * dh))


def test_at_least_sixteen_colours_differ_and_are_readable_in_light_and_dark():
    # Pairs 1, 7 and 17 of the published test data.
    assert ciede2000((50, 2.6772, -79.7751), (50, 0, -82.7485)) == pytest.approx(2.0425, abs=1e-4)
    assert ciede2000((50, 0, 0), (50, -1, 2)) == pytest.approx(2.3669, abs=1e-4)
    assert ciede2000((50, 2.5, 0), (73, 25, -18)) == pytest.approx(27.1492, abs=1e-4)
    colours = words("COLOURS")
    grounds = re.findall(r"--back: (#[0-9a-f]{6})", (STATIC / "style.css").read_text())

    assert len(colours) >= 16 and len(set(grounds)) == 2
    assert min(contrast(colour, ground) for colour in colours for ground in grounds) >= 3
    assert min(ciede2000(lab(one), lab(other)) for one, other in itertools.combinations(colours, 2)) >= 18


def test_backends_of_one_dataset_never_share_a_colour_or_a_marker():
    colours, markers, place = words("COLOURS"), words("MARKERS"), places()
    assert len(set(markers)) == len(markers) >= 16
    datasets = [file for file in sorted(RESULTS.glob("*/*.parquet")) if not file.stem.endswith("_check_power")]
    for file in datasets:
        rows = pq.read_table(file, columns=["backend", "status"]).to_pandas().query("status == 'ok'")
        of = [place[shown(name)] for name in rows["backend"].unique() if not set(name) & set("@+/")]  # nor flags of an engine
        for signs in (colours, markers):
            assert len({n % len(signs) for n in of}) == len(of), file
    assert len(datasets) > 20
