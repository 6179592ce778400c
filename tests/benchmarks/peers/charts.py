"""The charts of docs/benchmarks.md: bars as SVG, readable in light and dark, the same for the same figures."""

from collections.abc import Mapping
from pathlib import Path

from django.template import Context, Engine

from tests.benchmarks.peers.figures import MEASURES, OWN, Measure, label, shown

TITLES = {
    "enqueue": "Enqueue, messages/s",
    "consume": "Consume, messages/s",
    "latency": "Latency, ms (less is better)",
    "statements": "Statements or commands a message (less is better)",
}
LEFT, WIDTH, BAR, GAP, RIGHT = 170, 430, 14, 6, 90
TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{ width }} {{ height }}" width="{{ width }}" \
height="{{ height }}" role="img" aria-label="{{ title }}">
<style>
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-size: 15px; font-weight: 600 }
.part { font-weight: 600 }
.name { text-anchor: end }
.own { fill: #0969da }
.peer { fill: #8c959f }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.own { fill: #4493f8 }
.peer { fill: #768390 }
}
</style>
<text class="title" x="8" y="22">{{ title }}</text>
{% for part in parts %}<text class="part" x="8" y="{{ part.y }}">{{ part.title }}</text>
{% for bar in part.bars %}<text class="name" x="{{ bar.name_x }}" y="{{ bar.text_y }}">{{ bar.name }}</text>\
<rect class="{{ bar.kind }}" x="{{ bar.x }}" y="{{ bar.y }}" width="{{ bar.width }}" height="{{ bar.height }}" rx="2"/>\
<text x="{{ bar.value_x }}" y="{{ bar.text_y }}">{{ bar.value }}</text>
{% endfor %}{% endfor %}</svg>
"""


def write(folder: Path, medians: Mapping[str, Mapping[str, float | None]]) -> list[tuple[str, Path]]:
    """Write the charts; return the title and the file of each."""
    made = []
    for name, title in TITLES.items():
        file = folder / f"peers-{name}.svg"
        file.write_text(drawn(title, [measure for measure in MEASURES if measure.chart == name], medians))
        made.append((title, file))
    return made


def drawn(title: str, measures: list[Measure], medians: Mapping[str, Mapping[str, float | None]]) -> str:
    """Return a chart with a part for each measure, the best bar first; bars are to the scale of their part."""
    parts, y = [], 34
    for measure in measures:
        values = {name: one[measure.key] for name, one in medians.items() if one.get(measure.key) is not None}
        if not values:
            continue
        y += 18
        parts.append({"title": measure.title, "y": y, "bars": []})
        y += 8
        longest = max(values.values()) or 1
        for name in sorted(values, key=values.__getitem__, reverse=not measure.less_is_better):
            width = max(1, round(WIDTH * values[name] / longest, 1))
            bar = {
                "name": label(name),
                "kind": "own" if name.startswith(OWN) else "peer",
                "value": shown(measure, values[name]),
            }
            places = {"x": LEFT, "name_x": LEFT - 8, "y": y, "text_y": y + 11, "value_x": LEFT + width + 6}
            parts[-1]["bars"].append({**bar, **places, "width": width, "height": BAR})
            y += BAR + GAP
        y += 6
    context = {"title": title, "parts": parts, "width": LEFT + WIDTH + RIGHT, "height": y + 4}
    return Engine().from_string(TEMPLATE).render(Context(context, use_l10n=False))
