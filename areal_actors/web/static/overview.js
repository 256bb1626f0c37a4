// The overview: the state of the run in one line, the ring with counts, and curves.

import { Chart } from "./charts.js";
import { colour, count, counted, duration, element, moment, replace, short } from "./dom.js";
import { ring } from "./ring.js";

const FIRST = ["reward_mean", "loss", "entropy", "mean_tokens", "token_staleness_mean", "masked_frac", "approx_kl", "grad_norm", "train_infer_logprob_diff_max"];
const UNITS = { mean_tokens: "tokens", entropy: "nats", approx_kl: "nats", train_infer_logprob_diff_max: "nats", token_staleness_mean: "weight versions", masked_frac: "share of tokens", clip_frac: "share of tokens" };
const TITLES = { reward_mean: "reward", train_infer_logprob_diff_max: "largest difference engine – trainer", token_staleness_mean: "staleness of tokens, mean", masked_frac: "masked tokens", mean_tokens: "sampled tokens per episode", approx_kl: "approx_kl", grad_norm: "gradient norm", "seconds per step": "time per step" };
const HELD_OUT = { reward_mean: "reward_mean", loss: "loss", accuracy: "accuracy", margin: "margin" };
const heldOut = name => HELD_OUT[name] ?? (isSource(name) ? name : undefined);
const isSource = name => /^source\/[^/]+$/.test(name);  // reward of one of the sources of a mixture
const OVERLAYS = ["over1", "over2", "over3"];

export class Overview {
  constructor(data, root) {
    this.data = data;
    this.axis = "step";
    this.metrics = null;
    this.charts = new Map();
    this.headline = element("div", { className: "headline" });
    this.facts = element("div", { className: "facts" });
    this.ringBox = element("div", { className: "ring" });
    this.notices = element("div", { className: "notices" });
    this.chartBox = element("div", { className: "charts" });
    this.chooser = element("select", { aria: { label: "Add a curve" } });
    this.chooser.addEventListener("change", () => { if (this.chooser.value) { this.metrics.push(this.chooser.value); this.chooser.value = ""; this.data.changed(); } });
    const axis = this.axisBox = element("select", { aria: { label: "Horizontal axis of the curves" } }, element("option", { value: "step", textContent: "by step" }), element("option", { value: "time", textContent: "by time" }));
    axis.addEventListener("change", () => { this.axis = axis.value; this.data.changed(); });
    root.append(
      this.headline,
      element("div", { className: "top" }, element("section", { aria: { label: "Where the episodes are" } }, this.ringBox), element("section", { className: "state-of-run", aria: { label: "State of the run" } }, this.facts, this.notices)),
      element("div", { className: "bar" }, element("h2", { textContent: "Curves" }), axis, this.chooser),
      this.chartBox,
    );
    new ResizeObserver(() => this.draw()).observe(this.chartBox);
  }

  state() { return { axis: this.axis === "step" ? "" : this.axis, curves: this.metrics?.slice(FIRST.length).join(" ") ?? "" }; }

  open({ axis, curves }) {
    if (axis) this.axis = this.axisBox.value = axis;
    if (curves) this.metrics = [...FIRST, ...curves.split(" ")];
    return true;
  }

  draw() {
    if (!this.chartBox.clientWidth) return;
    replace(this.ringBox, ring(this.data));
    replace(this.facts, ...this.rows());
    replace(this.headline, ...(this.data.follows ? this.data.head.headline ?? [] : []).map(sentence => element("p", { textContent: sentence })));
    replace(this.notices, ...this.data.before("notices").slice(-5).reverse().map(row => element("p", { className: "notice" }, element("button", { className: "link", textContent: `event ${count(row.position)}`, onclick: () => this.data.goTo(row.position) }), ` ${moment(row.at)} · ${row.sentence}`)));
    this.drawCharts();
  }

  rows() {
    const data = this.data, steps = data.steps(), wanted = data.recipe?.steps ?? 0, last = steps.at(-1);
    const times = steps.slice(-11).map(row => row.at), spans = times.slice(1).map((at, index) => at - times[index]).sort((one, other) => one - other);
    const pace = spans.length ? spans[Math.floor(spans.length / 2)] : null;
    const left = pace !== null && wanted > last.step && !data.head.finished ? pace * (wanted - last.step) : null;
    const held = data.before("evaluations"), engines = data.follows ? data.telemetry.engines : {};
    const list = [
      ["step", `${count(last?.step ?? 0)} of ${count(wanted)}`],
      ["weight version", data.version() < 0 ? "none yet" : count(data.version())],
      ["staleness bound", data.bound() === null ? "–" : counted(data.bound(), "version")],
      ["time", duration(data.time) + (left ? `, about ${duration(left)} left` : "")],
      ["time per step", pace === null ? "–" : `${duration(pace)} (median of the last ${spans.length})`],
      ["reward", last ? short(last.metrics.reward_mean) : "–"],
      ["held out", held.length ? held.slice(-2).map(row => `${row.mode} ${short(row.metrics.reward_mean ?? row.metrics.loss)}`).join(", ") : "–"],
      ...Object.entries(engines).map(([side, one]) => [side, `${count(Math.round(one.tokens_per_second))} tokens/s, busy ${Math.round(100 * one.busy_share)}% of the last 30 s`]),
      ["algorithm", data.recipe?.algorithm?.name ?? "–"],
      ["model", data.recipe?.model ?? "–"],
    ];
    return [element("dl", {}, ...list.flatMap(([name, value]) => [element("dt", { textContent: name }), element("dd", { textContent: value })]))];
  }

  drawCharts() {
    const steps = this.data.steps();
    const known = new Set([...steps.flatMap(row => Object.keys(row.metrics)), ...(this.data.whatIfs ?? []).flatMap(one => one.steps.flatMap(Object.keys))]);
    this.metrics ??= [...FIRST];
    const [first, ...others] = this.metrics;
    const wanted = [first, ...[...known].filter(isSource).sort(), ...others].filter(name => known.has(name));
    if (steps.length > 1) wanted.push("seconds per step");
    const rest = [...known].filter(name => !wanted.includes(name)).sort();
    if (this.chooser.length !== rest.length + 1) replace(this.chooser, element("option", { value: "", textContent: "add a curve …" }), ...rest.map(name => element("option", { value: name, textContent: name })));
    if (!wanted.length) {
      this.charts.clear();
      return replace(this.chartBox, element("p", { className: "empty", textContent: "No step is completed at this event. Curves begin with the first step." }));
    }
    if ([...this.charts.keys()].join() !== wanted.join()) {
      this.charts = new Map(wanted.map(name => [name, new Chart(element("div", { className: "chart", data: { metric: name } }), axis => this.describe(name, axis))]));
      replace(this.chartBox, ...[...this.charts.values()].map(chart => chart.parent));
    }
    for (const chart of this.charts.values()) chart.draw(this.axis);
  }

  describe(name, axis) {
    const steps = this.data.steps(), x = row => axis === "step" ? row.step : row.at / 60, at = new Map(steps.map(row => [row.step, row.at / 60]));
    const value = (row, index) => name === "seconds per step" ? (index ? row.at - steps[index - 1].at : undefined) : row.metrics[name];
    const points = steps.map((row, index) => [x(row), value(row, index)]).filter(([, y]) => y !== undefined && y !== null);
    const series = [{ label: "training", colour: colour("line1"), points }];
    if (heldOut(name)) for (const [index, mode] of ["sampled", "greedy", "examples"].entries()) {
      const held = this.data.before("evaluations").filter(row => row.mode === mode && row.metrics[heldOut(name)] !== undefined);
      series.push({ label: `held out, ${mode}`, colour: colour(`held${index + 1}`), dots: true, points: held.map(row => [axis === "step" ? row.weight_version : row.at / 60, row.metrics[heldOut(name)]]) });
    }
    for (const [index, one] of (this.data.whatIfs ?? []).entries()) {
      const over = one.steps.map((metrics, number) => [axis === "step" ? number + 1 : at.get(number + 1), metrics[name]]).filter(([place, y]) => place !== undefined && y !== undefined);
      series.push({ label: `what if ${one.label}`, colour: colour(OVERLAYS[index % OVERLAYS.length]), dashed: true, points: over });
    }
    return { title: TITLES[name] ?? (isSource(name) ? `reward, ${name.slice(7)}` : name), unit: UNITS[name] ?? (name === "seconds per step" ? "s" : ""), series };
  }
}
