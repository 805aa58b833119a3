// Line icons, 20 by 20.

import { svg } from "/dashboard/dom.js";

const PATHS = {
  cluster: "M10 6.2v2.3M7.2 12.6l1.6-1.9M12.8 12.6l-1.6-1.9M10 2.2a2 2 0 1 1 0 4 2 2 0 0 1 0-4ZM5.6 12.4a2.3 2.3 0 1 1 0 4.6 2.3 2.3 0 0 1 0-4.6ZM14.4 12.4a2.3 2.3 0 1 1 0 4.6 2.3 2.3 0 0 1 0-4.6Z",
  topics: "M3 5h14M3 10h14M3 15h9",
  consumers: "M3 6h7v8H3zM10 10h7m0 0-3-3m3 3-3 3",
  messages: "M3 5h14v10H3zM3.5 5.5 10 11l6.5-5.5",
  events: "M10 3a7 7 0 1 1 0 14 7 7 0 0 1 0-14Zm0 3v4.2l2.8 1.8",
  search: "M9 3.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11Zm4 9.5 4 4",
};

export const icon = (name) =>
  svg("svg", { viewBox: "0 0 20 20", class: "icon", "aria-hidden": "true", focusable: "false" },
    svg("path", { d: PATHS[name], fill: "none", stroke: "currentColor", "stroke-width": "1.6", "stroke-linecap": "round", "stroke-linejoin": "round" }));
