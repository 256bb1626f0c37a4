// The page: its seven views, the slider that takes all of them to an event of the log, keys and colours.

import { Actors } from "./actors.js";
import { Batches } from "./batches.js";
import { RunData } from "./data.js";
import { count, element, moment } from "./dom.js";
import { Episode } from "./episode.js";
import { Events } from "./events.js";
import { Groups } from "./groups.js";
import { Lanes } from "./lanes.js";
import { Overview } from "./overview.js";

const VIEWS = [["overview", Overview], ["episodes", Lanes], ["groups", Groups], ["episode", Episode], ["batches", Batches], ["actors", Actors], ["events", Events]];
const at = id => document.getElementById(id);

const data = new RunData();
const views = new Map();
const openEpisode = row => { go("episode"); views.get("episode").view.show(row); };

VIEWS.forEach(([name, View], index) => {
  const root = element("section", { id: `view-${name}`, hidden: true, aria: { label: name } });
  at("main").append(root);
  const link = element("a", { href: `#${name}`, title: `${name} (${index + 1})` }, element("kbd", { textContent: index + 1 }), ` ${name}`);
  at("nav").append(link);
  views.set(name, { view: new View(data, root, openEpisode), root, link });
});

const shown = () => views.has(location.hash.slice(1)) ? location.hash.slice(1) : "overview";
const go = name => { if (shown() === name) draw(); else location.hash = name; };

let waiting = false;
let searching = false; // the search box gets the focus once its view is drawn
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
  });
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

const theme = name => { document.documentElement.dataset.theme = name; draw(); };
const preferred = matchMedia("(prefers-color-scheme: dark)");
const toggle = () => { const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark"; localStorage.setItem("theme", next); theme(next); };
preferred.addEventListener("change", () => theme(preferred.matches ? "dark" : "light"));
theme(localStorage.getItem("theme") ?? (preferred.matches ? "dark" : "light"));

const openHelp = () => { if (!at("keys").open) at("keys").showModal(); };
const typing = target => target.matches("input:not([type=range]):not([type=radio]):not([type=checkbox]), select, textarea");
document.addEventListener("keydown", event => {
  if (typing(event.target) || event.ctrlKey || event.metaKey || event.altKey || at("keys").open) return;
  const view = VIEWS[Number(event.key) - 1];
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
addEventListener("hashchange", draw);
data.addEventListener("change", draw);
data.open().catch(error => { data.lost = true; at("notice").textContent = error.message; draw(); });
