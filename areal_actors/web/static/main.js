// The page of a run: its views, the slider that takes them to an event of the log, keys, colours, and the address.

import { Actors } from "./actors.js";
import { compose, parse } from "./address.js";
import { Batches } from "./batches.js";
import { RunData } from "./data.js";
import { count, element, moment } from "./dom.js";
import { Episode } from "./episode.js";
import { Events } from "./events.js";
import { Failures } from "./failures.js";
import { Groups } from "./groups.js";
import { Lanes } from "./lanes.js";
import { Overview } from "./overview.js";
import { Summary } from "./summary.js";
import { followTheme } from "./theme.js";
import { WhatIf } from "./what_if.js";
import { Why } from "./why.js";

const VIEWS = [["overview", Overview], ["episodes", Lanes], ["groups", Groups], ["episode", Episode], ["batches", Batches], ["actors", Actors], ["events", Events], ["failures", Failures], ["why", Why], ["summary", Summary], ["what-if", WhatIf]];
const KEYS = "1234567890w";
const ADDRESS_MS = 250; // browsers refuse an address that changes all the time
const at = id => document.getElementById(id);

const data = new RunData();
const views = new Map();
const go = (name, values = {}) => {
  if (!Object.keys(values).length && shown() === name) return draw();
  const address = compose(name, values);
  if (location.hash === address) open(); else location.hash = address;
};
const goTo = { episode: row => go("episode", { name: row.name, attempt: row.attempt }), view: go };

VIEWS.forEach(([name, View], index) => {
  const root = element("section", { id: `view-${name}`, hidden: true, aria: { label: name } });
  at("main").append(root);
  const link = element("a", { href: `#${name}`, title: `${name} (${KEYS[index]})` }, element("kbd", { textContent: KEYS[index] }), ` ${name}`);
  at("nav").append(link);
  views.set(name, { view: new View(data, root, goTo), root, link });
});
if (location.pathname.startsWith("/run/")) at("name").before(element("a", { id: "list", href: "../../", textContent: "‹ all runs" }));

const shown = () => { const { view } = parse(location.hash); return views.has(view) ? view : "overview"; };

let waiting = false;
let searching = false; // the search box gets the focus once its view is drawn
let wanted = null; // what the address asks for and the log, which is being read, does not have yet
let keeping = 0;
const draw = () => {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    for (const [name, { root, link }] of views) {
      root.hidden = name !== shown();
      if (name === shown()) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    }
    drawFrame();
    views.get(shown()).view.draw();
    if (searching && shown() === "events") { searching = false; views.get("events").view.focus(); }
    keeping ||= setTimeout(keep, ADDRESS_MS);
  });
};

// Take over what the address asks for; what it does not name stays as it is.
const open = () => {
  wanted = parse(location.hash).values;
  apply();
  draw();
};

const apply = () => {
  const { at: position, ...values } = wanted, reading = data.head.state === "reading", { view } = views.get(shown());
  if (Number(position) > data.head.last && reading) return;
  wanted = null; // the views announce changes meanwhile
  if (position) data.goTo(Number(position) || null);
  if (Object.keys(values).length && view.open?.(values) === false && reading) wanted = values;
};

// Write into the address what is shown.
const keep = () => {
  keeping = 0;
  if (wanted) return;
  const name = shown(), address = compose(name, { ...views.get(name).view.state?.(), at: data.follows ? "" : data.now });
  if (address !== location.hash && !(name === "overview" && address === "#overview" && !location.hash)) history.replaceState(null, "", address);
};

const STATES = { reading: "reading the log", live: "live", ended: "ended" };
const drawFrame = () => {
  const { head } = data, slider = at("slider");
  at("name").textContent = data.name ?? "…";
  const progress = head.state === "reading" && head.total ? ` ${Math.floor((100 * head.last) / head.total)}%` : "";
  const ended = head.finished ? (head.error ? "ended early" : "finished") : "ended without a last event";
  at("status").textContent = data.lost ? "no connection to the page's process" : head.state === "ended" ? ended : STATES[head.state] + progress;
  at("status").className = data.lost || head.error ? "failed" : head.state;
  const sentence = [head.notice, head.error && `The run ended early: ${head.error}`, data.lost && "The process that serves this page does not answer: start `areal-actors view` again if it has ended."].filter(Boolean).join(" ");
  at("notice").textContent = sentence;
  at("notice").hidden = !sentence;
  slider.min = head.first || 1;
  slider.max = Math.max(head.last, 1);
  slider.value = data.now;
  at("moment").textContent = `${count(data.now)} of ${count(head.last)} · ${moment(data.time)} after the start`;
  at("follow").disabled = data.follows;
  document.documentElement.dataset.past = data.follows ? "" : "past";
};

// ---------------------------------------------------------------- colours and keys

const toggle = followTheme(() => draw());
const openHelp = () => { if (!at("keys").open) at("keys").showModal(); };
const typing = target => target.matches("input:not([type=range]):not([type=radio]):not([type=checkbox]), select, textarea");
document.addEventListener("keydown", event => {
  if (typing(event.target) || event.ctrlKey || event.metaKey || event.altKey || at("keys").open) return;
  const view = VIEWS[KEYS.indexOf(event.key)];
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (view) go(view[0]);
  else if (step && event.target.type !== "radio") data.goTo(data.now + step * (event.shiftKey ? 100 : 1));
  else if (event.key === "Home") data.goTo(data.head.first);
  else if (event.key === "End") data.goTo(null);
  else if (event.key === "/") { searching = true; go("events"); }
  else if (event.key === "d") toggle();
  else if (event.key === "?") openHelp();
  else return;
  event.preventDefault();
});

at("theme").addEventListener("click", toggle);
at("help").addEventListener("click", openHelp);
at("follow").addEventListener("click", () => data.goTo(null));
at("slider").addEventListener("input", () => data.goTo(Number(at("slider").value)));
at("link").addEventListener("click", async () => {
  keep();
  const done = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
  at("link").textContent = done ? "copied" : "it is in the address bar";
  setTimeout(() => { at("link").textContent = "copy link"; }, 2000);
});
addEventListener("hashchange", open);
data.addEventListener("change", () => {
  if (wanted) apply();
  draw();
});
wanted = parse(location.hash).values;
data.open().catch(error => { data.lost = true; at("notice").textContent = error.message; draw(); });
