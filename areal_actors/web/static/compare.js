// Runs side by side: where their settings differ, their results, and their curves in one chart each.

import { Chart } from "./charts.js";
import { fetched } from "./data.js";
import { colour, element, empty, replace, table } from "./dom.js";

const COLOURS = ["line1", "held1", "held2", "over1", "held3", "over2"], DASHES = [undefined, [8, 4], [2, 3], [10, 3, 2, 3], [5, 5], [14, 4]];
const shown = value => typeof value === "string" ? value : JSON.stringify(value);

export class Comparison {
  constructor(root) {
    Object.assign(this, { key: "", found: null, charts: [] });
    this.title = element("h2");
    this.body = element("div");
    root.append(element("div", { className: "bar" }, element("a", { href: "#", textContent: "‹ all runs" }), this.title), this.body);
  }

  async show(names) {
    const key = names.join("\n");
    if (key === this.key) return this.draw();
    this.key = key;
    this.title.textContent = names.join(", ");
    replace(this.body, empty("The runs are being read …"));
    const found = await fetched(`api/compare?${new URLSearchParams(names.map(name => ["run", name]))}`).catch(error => ({ error: error.message }));
    if (key !== this.key) return;
    if (found.error) { this.key = ""; return replace(this.body, empty(found.error)); }
    this.found = found;
    const recipe = Object.entries(found.recipe), links = found.runs.map((name, index) => element("a", { href: `run/${encodeURIComponent(names[index])}/`, textContent: name }));
    const curves = element("div", { className: "charts" }), metrics = Object.keys(found.curves);
    const held = Object.keys(found.held_out).filter(mode => found.held_out[mode].some(points => points.length));
    this.charts = [...held.map(mode => [`held out, ${mode}`, found.held_out[mode], true]), ...metrics.map(name => [name, found.curves[name], false])].map(([title, points, dots]) => {
      const box = element("div", { className: "chart" });
      curves.append(box);
      return new Chart(box, () => ({ title, unit: "", series: points.map((one, index) => ({ label: found.runs[index], colour: colour(COLOURS[index]), dashes: DASHES[index], dots, points: one })) }));
    });
    replace(this.body,
      element("p", {}, "Each run: ", ...links.flatMap(link => [link, " "])),
      element("h3", { textContent: "Results" }), element("div", { className: "scroll" }, table("Results", ["result", ...found.runs], found.results.map(([label, values]) => [label.trim(), ...values]))),
      element("h3", { textContent: recipe.length ? "Settings that differ" : "The settings are equal" }), recipe.length ? element("div", { className: "scroll" }, table("Settings that differ", ["setting", ...found.runs], recipe.map(([name, values]) => [name, ...values.map(shown)]))) : "",
      element("h3", { textContent: "Curves" }), curves);
    this.draw();
  }

  draw() { for (const chart of this.charts) if (chart.parent.clientWidth) chart.draw("step"); }
}
