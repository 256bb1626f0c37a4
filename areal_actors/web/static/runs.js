// The runs of a folder: a list, and several of them side by side.

import { compose, parse } from "./address.js";
import { Comparison } from "./compare.js";
import { fetched } from "./data.js";
import { count, counted, duration, element, empty, replace, table } from "./dom.js";
import { followTheme } from "./theme.js";

const EVERY_MS = 5000, MOST = 6;
const at = id => document.getElementById(id);
const course = values => (values ?? []).map(value => value === null ? "–" : value.toFixed(3)).join(" → ") || "–";
const when = seconds => seconds ? new Date(1000 * seconds).toISOString().slice(0, 16).replace("T", " ") : "–";

const list = element("section", { id: "view-runs", aria: { label: "runs" } }), beside = element("section", { id: "view-compare", hidden: true, aria: { label: "runs side by side" } });
at("main").append(list, beside);
const filter = element("input", { type: "search", placeholder: "name, model or data", aria: { label: "Show runs of this name, model or data" } });
const button = element("button", { textContent: "compare" }), body = element("div", { className: "scroll" }), total = element("span", { className: "dim" });
list.append(element("div", { className: "bar" }, element("h2", { textContent: "Runs" }), filter, button, total), body);
const comparison = new Comparison(beside);

let runs = null;
const chosen = new Set();
const names = () => { const { view, values } = parse(location.hash); return view === "compare" ? (values.runs ?? "").split(" ").filter(Boolean).map(decodeURIComponent) : []; };

const row = run => {
  const box = element("input", { type: "checkbox", checked: chosen.has(run.run), aria: { label: `compare ${run.run}` } });
  box.addEventListener("change", () => { if (box.checked) chosen.add(run.run); else chosen.delete(run.run); drawButton(); });
  const held = run.held_out?.length ? element("span", { title: run.change }, `${course(run.held_out)}${run.held_out_metric === "loss" ? " loss" : ""}`, run.change ? element("span", { className: "dim", textContent: ` ${run.change}` }) : "") : "–";
  return [box, element("a", { className: "run-name", href: `run/${encodeURIComponent(run.run)}/`, textContent: run.run }), element("span", { className: `badge ${run.status.replace(" ", "-")}`, textContent: run.status }), run.of_steps ? `${count(run.steps)} of ${count(run.of_steps)}` : "–", held, course(run.reward), when(run.started), run.seconds ? duration(run.seconds) : "–", run.algorithm ?? "–", [run.model, run.data].filter(Boolean).join(" · "), run.error || run.limit || ""];
};

const drawButton = () => {
  button.disabled = chosen.size < 2 || chosen.size > MOST;
  button.textContent = chosen.size < 2 ? "compare (choose two)" : `compare ${counted(chosen.size, "run")}`;
};

const draw = () => {
  const wanted = names(), compared = wanted.length > 1;
  list.hidden = compared;
  beside.hidden = !compared;
  document.title = compared ? `${wanted.join(", ")} · areal` : "runs · areal";
  if (compared) return comparison.show(wanted);
  drawButton();
  if (!runs) return replace(body, empty("The folder is being read …"));
  const text = filter.value.trim(), found = runs.filter(run => !text || [run.run, run.model, run.data, run.algorithm].some(one => one?.includes(text)));
  total.textContent = counted(found.length, "run");
  replace(body, found.length ? table("Runs, the latest first", ["compare", "run", "status", "steps", "held out", "reward", "started (UTC)", "took", "algorithm", "model and data", "limit"], found.map(row)) : empty("No run matches."));
};

const load = async () => {
  try {
    const found = await fetched("api/runs"), before = JSON.stringify(runs);
    at("name").textContent = found.folder.split("/").slice(-2).join("/");
    at("name").title = found.folder;
    runs = found.runs;
    at("status").textContent = counted(runs.filter(run => run.status === "live").length, "live run");
    at("notice").hidden = true;
    if (JSON.stringify(runs) !== before && !body.contains(document.activeElement)) draw();
  } catch {
    at("notice").textContent = "The process that serves this page does not answer: start `areal-actors view` again if it has ended.";
    at("notice").hidden = false;
  }
  setTimeout(load, EVERY_MS);
};

const toggle = followTheme(() => draw());
at("theme").addEventListener("click", toggle);
document.addEventListener("keydown", event => { if (event.key === "d" && !event.target.matches("input[type=search], select") && !event.ctrlKey && !event.metaKey && !event.altKey) toggle(); });
filter.addEventListener("input", draw);
button.addEventListener("click", () => { location.hash = compose("compare", { runs: [...chosen].map(encodeURIComponent).join(" ") }); });
addEventListener("hashchange", draw);
addEventListener("resize", () => { if (!beside.hidden) comparison.draw(); });
load();
