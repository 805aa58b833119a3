// Line icons, 20 by 20.

import { svg } from "/dashboard/dom.js";

const PATHS = {
  cluster: "M10 6.2v2.3M7.2 12.6l1.6-1.9M12.8 12.6l-1.6-1.9M10 2.2a2 2 0 1 1 0 4 2 2 0 0 1 0-4ZM5.6 12.4a2.3 2.3 0 1 1 0 4.6 2.3 2.3 0 0 1 0-4.6ZM14.4 12.4a2.3 2.3 0 1 1 0 4.6 2.3 2.3 0 0 1 0-4.6Z",
  scaling: "M3 16.500h14M5 16v-4M10 16V9M15 16V4M3.500 8.500 8 5l2.500 1.500",
  topics: "M3 5h14M3 10h14M3 15h9",
  consumers: "M3 6h7v8H3zM10 10h7m0 0-3-3m3 3-3 3",
  messages: "M3 5h14v10H3zM3.5 5.5 10 11l6.5-5.5",
  clients: "M7 4.2a2.4 2.4 0 1 1 0 4.8 2.4 2.4 0 0 1 0-4.8ZM2.5 16c.3-3 2-4.6 4.5-4.6s4.200 1.600 4.500 4.600M13.500 5.200a2 2 0 1 1 0 4M13.800 11.700c2.100.1 3.400 1.500 3.700 4.300",
  accounts: "M10 2.500 16.500 5v4.500c0 4-2.600 6.700-6.500 8-3.900-1.300-6.500-4-6.500-8V5Zm-2.600 7.300 1.900 1.900 3.500-3.700",
  events: "M10 3a7 7 0 1 1 0 14 7 7 0 0 1 0-14Zm0 3v4.2l2.8 1.8",
  history: "M3 16.500h14M3.500 13l4-5 3.500 3 5.500-7",
  search: "M9 3.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11Zm4 9.5 4 4",
};

export const icon = (name) =>
  svg("svg", { viewBox: "0 0 20 20", class: "icon", "aria-hidden": "true", focusable: "false" },
    svg("path", { d: PATHS[name], fill: "none", stroke: "currentColor", "stroke-width": "1.6", "stroke-linecap": "round", "stroke-linejoin": "round" }));
