// The ring: the stations of a sample's path with the number of episodes at each, at the event shown.

import { count, element, svg } from "./dom.js";

const STATIONS = [
  ["granted", "granted", "their group may start; no call is completed"],
  ["sampling", "sampling", "at least one model call is completed"],
  ["scored", "scored", "the reward is known"],
  ["exported", "exported", "wait for the rest of their group, or for a batch"],
  ["in batch", "in batch", "in a batch whose weights are not published"],
  ["trained", "trained", "the weights of their step are published"],
];
const SIZE = 300, RADIUS = 104;

export const counts = data => {
  const found = {};
  for (const row of data.episodes()) {
    if (row.purpose !== "train") { found.evaluation = (found.evaluation ?? 0) + (row.ended && row.ended <= data.now ? 0 : 1); continue; }
    const station = data.station(row);
    found[station] = (found[station] ?? 0) + 1;
  }
  return found;
};

export const ring = data => {
  const found = counts(data), middle = SIZE / 2, parts = [];
  parts.push(svg("circle", { cx: middle, cy: middle, r: RADIUS, class: "path" }));
  STATIONS.forEach(([station, label, meaning], index) => {
    const angle = (index / STATIONS.length) * 2 * Math.PI - Math.PI / 2;
    const x = middle + RADIUS * Math.cos(angle), y = middle + RADIUS * Math.sin(angle), number = found[station] ?? 0;
    const title = svg("title"), value = svg("text", { x, y: y + 1, class: "value" }), name = svg("text", { x, y: y + 15, class: "label" });
    title.textContent = `${count(number)} episodes ${label}: ${meaning}`;
    value.textContent = count(number);
    name.textContent = label;
    const next = angle + Math.PI / STATIONS.length, ax = middle + RADIUS * Math.cos(next), ay = middle + RADIUS * Math.sin(next);
    parts.push(svg("path", { d: "M-5,-5 L4,0 L-5,5", class: "arrow", transform: `translate(${ax} ${ay}) rotate(${(next * 180) / Math.PI + 90})` }));
    parts.push(svg("g", { class: number ? "station" : "station none", "data-station": station }, title, svg("circle", { cx: x, cy: y, r: 36 }), value, name));
  });
  const version = svg("text", { x: middle, y: middle - 2, class: "value" }), under = svg("text", { x: middle, y: middle + 15, class: "label" });
  version.textContent = data.version() < 0 ? "–" : `v${data.version()}`;
  under.textContent = "weights";
  const text = `Episodes: ${STATIONS.map(([station, label]) => `${label} ${found[station] ?? 0}`).join(", ")}`;
  const drawing = svg("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, role: "img", "aria-label": text }, ...parts, version, under);
  const aside = [["dropped", found.dropped], ["abandoned", found.abandoned], ["rejected", found.rejected], ["surplus", found.surplus], ["evaluation in progress", found.evaluation]].filter(([, number]) => number);
  return element("div", {}, drawing, element("p", { className: "aside", textContent: aside.map(([name, number]) => `${name} ${count(number)}`).join(" · ") }));
};
