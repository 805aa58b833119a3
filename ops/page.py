"""Layout of a report as a self-contained HTML file, in light and dark, also on a phone."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

STYLE = """
:root{color-scheme:light dark;--ink:#1c2733;--soft:#5b6b7b;--line:#dde4ea;--page:#f5f7f9;
  --card:#fff;--ok:#157f3f;--vague:#c77d00;--bad:#d73027;--blue:#3b6cb0;--violet:#6a51a3}
@media (prefers-color-scheme:dark){:root{--ink:#e3e9ef;--soft:#9aa9b8;--line:#34414d;
  --page:#12181e;--card:#1b232b;--ok:#4cc07e;--vague:#f0ab3c;--bad:#ff6b5e;--blue:#7da7e0;
  --violet:#b29ce0}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
  font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1100px;margin:0 auto;padding:20px 14px 48px}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 4px}
h2{font-size:1.08rem;margin:0 0 10px}
p{margin:0 0 8px}.soft{color:var(--soft)}
.badge{display:inline-block;border-radius:99px;padding:2px 12px;color:#fff;font-weight:600}
.pass{background:#157f3f}.fail{background:#c62a22}.unknown{background:#9a6206}
.invalid{background:#6a51a3}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(132px,1fr));gap:10px;
  margin:18px 0}
.tile,section{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tile{padding:10px 14px}.tile b{display:block;font-size:1.3rem;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:.86rem}
section{padding:16px;margin:14px 0;overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:7px 10px 7px 0;border-top:1px solid var(--line);
  vertical-align:top}
thead th{border-top:0;color:var(--soft);font-weight:500;font-size:.86rem}
td small{color:var(--soft);display:block;overflow-wrap:anywhere}
pre{background:#1c2733;color:#e8eef3;border-radius:8px;padding:12px;overflow-x:auto;
  font-size:.86rem;margin:0}
svg{display:block;width:100%;min-width:640px;height:auto;margin-bottom:8px;
  font:12px system-ui,sans-serif}
svg .head{font-weight:600;font-size:13px;fill:var(--ink)}svg .axis{fill:var(--soft);font-size:11px}
svg .grid{stroke:var(--line);stroke-width:1}
svg polyline{fill:none;stroke-width:1.8}svg .dot{stroke-width:4;stroke-linecap:round;opacity:.55}
svg .ok{stroke:var(--ok)}svg .vague{stroke:var(--vague)}svg .bad{stroke:var(--bad)}
svg .consumed{stroke:var(--blue);stroke-dasharray:3 3}svg .median{stroke:var(--blue)}
svg rect.fault{fill:var(--bad);opacity:.16}svg rect.leads{fill:var(--violet);opacity:.8}
svg text.fault{fill:var(--bad)}svg text.leads{fill:var(--violet)}
svg .of0{fill:var(--ok)}svg .of1{fill:var(--blue)}svg .of2{fill:var(--bad)}
svg .of3{fill:var(--vague)}svg .of4{fill:var(--violet)}svg .of5{fill:var(--soft)}
svg .bar{fill:var(--blue);opacity:.55}svg .round{stroke:var(--ink);opacity:.9}
.key span{display:inline-block;margin-right:16px}
.key i{display:inline-block;width:14px;height:4px;margin:0 5px 3px 0;border-radius:2px}
"""


def document(title: str, body: str, own_style: str = "") -> str:
    """Return the file's content; `body` is HTML, `own_style` CSS in addition to STYLE."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}{own_style}</style></head>"
        f"<body><main>{body}</main></body></html>"
    )


def chart_sections(charts: Sequence[str]) -> str:
    return "".join(section(chart) for chart in charts)


def section(content: str) -> str:
    """Put HTML in a section, which the keyboard reaches, since it may scroll sideways."""
    return f'<section tabindex="0">{content}</section>'


def key(entries: Iterable[tuple[str, str]]) -> str:
    """Return a picture's key of (symbol as HTML, label) pairs, which do not break."""
    spans = (f"<span>{drawn}{html.escape(label)}</span>" for drawn, label in entries)
    return f'<p class="key soft">{" ".join(spans)}</p>'
