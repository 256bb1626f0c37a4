// Curves with uPlot: one chart for each metric, with the held-out results and the curves of `areal-actors what-if` laid over.

import { colour, element, short } from "./dom.js";

const HEIGHT = 170;
const DASH = [5, 4];

export class Chart {
  // `describe` returns {title, unit, x: "step" | "time", series: [{label, colour, points: [[x, y], …], dashed, dots}]}.
  constructor(parent, describe) {
    this.parent = parent;
    this.describe = describe;
    this.plot = null;
    this.shape = "";
  }

  draw(axis) {
    const found = this.describe(axis);
    const series = found.series.filter(one => one.points.length);
    const shape = JSON.stringify([found.title, axis, series.map(one => [one.label, one.colour]), document.documentElement.dataset.theme, this.parent.clientWidth]);
    if (!series.length) return this.clear(found.title, "no value yet");
    const data = joined(series);
    if (this.plot && this.shape === shape) return this.plot.setData(data);
    this.clear();
    this.shape = shape;
    this.plot = new uPlot(options(found, series, axis, this.parent.clientWidth), data, this.parent);
    this.parent.querySelector("canvas")?.setAttribute("aria-label", `${found.title}: ${series.map(one => `${one.label} ${short(one.points.at(-1)[1])}`).join(", ")}`);
    this.parent.querySelector("canvas")?.setAttribute("role", "img");
    this.parent.append(element("button", { className: "save", textContent: "save picture", title: `the chart of ${found.title} as PNG`, aria: { label: `save picture of ${found.title}` }, onclick: () => savePicture(this.plot, found.title, series) }));
  }

  clear(title = "", sentence = "") {
    this.plot?.destroy();
    this.plot = null;
    this.shape = "";
    this.parent.replaceChildren();
    if (sentence) this.parent.append(element("h3", { textContent: title }), element("p", { className: "empty", textContent: sentence }));
  }
}

// Title, curves and legend as a PNG file, with the background of the page.
const savePicture = (plot, title, series) => {
  const source = plot.ctx.canvas, ratio = devicePixelRatio || 1, line = 18 * ratio, head = 30 * ratio, canvas = document.createElement("canvas");
  canvas.width = source.width;
  canvas.height = head + source.height + line * (series.length + 1);
  const pen = canvas.getContext("2d");
  pen.fillStyle = colour("page");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(source, 0, head);
  pen.fillStyle = colour("text");
  pen.font = `600 ${14 * ratio}px system-ui, sans-serif`;
  pen.fillText(title, 10 * ratio, 20 * ratio);
  pen.font = `${12 * ratio}px system-ui, sans-serif`;
  series.forEach((one, index) => {
    const y = head + source.height + line * (index + 1);
    pen.fillStyle = one.colour;
    pen.fillRect(10 * ratio, y - 7 * ratio, 18 * ratio, 4 * ratio);
    pen.fillStyle = colour("text");
    pen.fillText(`${one.label}: ${short(one.points.at(-1)[1])}`, 34 * ratio, y);
  });
  const link = element("a", { download: `${document.title} ${title}.png`.replace(/[^\w.-]+/g, "-"), href: canvas.toDataURL("image/png") });
  link.click();
};

// uPlot takes one column of x and one column per series.
const joined = series => {
  const places = [...new Set(series.flatMap(one => one.points.map(([x]) => x)))].sort((one, other) => one - other);
  const index = new Map(places.map((x, number) => [x, number]));
  return [places, ...series.map(one => {
    const column = new Array(places.length).fill(null);
    for (const [x, y] of one.points) column[index.get(x)] = y;
    return column;
  })];
};

const options = (found, series, axis, width) => {
  const lines = { stroke: colour("dim"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 }, font: "12px system-ui, sans-serif" };
  const seconds = axis === "time";
  return {
    title: found.title + (found.unit ? `, ${found.unit}` : ""),
    width: Math.max(width, 200),
    height: HEIGHT,
    scales: { x: { time: false, range: widened }, y: { range: (_, low, high) => padded(low, high) } },
    legend: { live: true },
    cursor: { points: { size: 6 }, drag: { x: true, y: false } },
    axes: [
      { ...lines, size: 34, label: seconds ? "minutes" : "step", labelSize: 16, labelGap: -2, labelFont: "12px system-ui, sans-serif", incrs: seconds ? undefined : WHOLE },
      { ...lines, size: 58, values: (_, splits) => splits.map(short) },
    ],
    series: [
      { label: seconds ? "minutes" : "step", value: (plot, value, _, place) => { const shown = place === null ? plot.data[0].at(-1) : value; return seconds ? shown.toFixed(2) : short(shown); } },
      ...series.map(one => ({
        label: one.label,
        stroke: one.colour,
        width: 1.75,
        dash: one.dashes ?? (one.dashed ? DASH : undefined),
        paths: one.dots && one.points.length < 3 ? () => null : undefined, // two results are no course
        spanGaps: true,
        points: { show: one.dots || one.points.length < 40, size: one.dots ? 7 : 4, fill: one.dots ? colour("page") : one.colour },
        value: (plot, value, number, place) => short(place === null ? plot.data[number].findLast(one => one !== null) : value),
      })),
    ],
  };
};

const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];
const widened = (_, low, high) => low === high ? [low - 1, high + 1] : [low, high];
const padded = (low, high) => {
  if (low === null || high === null) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [low - room, high + room];
};
