// Failures: attempts that ended without a reward and trajectories that nothing trained, by reason; actors that failed.

import { count, counted, element, empty, moment, replace, table } from "./dom.js";

const LATEST = 6;
const KINDS = [
  ["abandoned", "Attempts abandoned", "An attempt that failed; the episode is tried again while attempts are left."],
  ["rejected", "Attempts rejected", "The agent or the reward asked for no training with them."],
  ["dropped", "Trajectories dropped", "They were complete, and no step trained them."],
];

export class Failures {
  constructor(data, root, goTo) {
    Object.assign(this, { data, goTo });
    this.list = element("div", { className: "scroll" });
    root.append(element("div", { className: "bar" }, element("h2", { textContent: "Failures" })), this.list);
  }

  draw() {
    const episodes = this.data.episodes().map(row => [row, this.data.station(row)]), shown = KINDS.flatMap(([station, title, meaning]) => this.kind(title, meaning, episodes.filter(([, at]) => at === station).map(([row]) => row)));
    const actors = this.data.before("actors").filter(row => row.change === "failed"), tried = counted(episodes.length, "attempt");
    const failed = actors.length ? [element("h3", { textContent: `Actors that failed: ${count(actors.length)}` }), table("Actors that failed", ["actor", "event", "after", "details"], actors.slice(-50).reverse().map(row => [row.actor, element("button", { className: "link", textContent: count(row.position), onclick: () => this.goTo.view("events", { event: row.position }) }), moment(row.at), row.detail]))] : [];
    replace(this.list, ...(shown.length || failed.length ? [...shown, ...failed] : [empty(`Nothing has failed at this event: ${tried}, none abandoned, rejected or dropped, and no actor failed.`)]));
  }

  // The reasons of one kind, the most common first, with the latest episodes of each.
  kind(title, meaning, rows) {
    if (!rows.length) return [];
    const reasons = new Map();
    for (const row of rows) {
      const [reason] = row.reason.split(": "), found = reasons.get(reason) ?? [];
      found.push(row);
      reasons.set(reason, found);
    }
    const lines = [...reasons].sort(([, one], [, other]) => other.length - one.length).map(([reason, found]) => [reason || "none given", count(found.length), found.at(-1).reason.slice(reason.length + 2) || "–", element("span", {}, ...found.slice(-LATEST).reverse().flatMap(row => [element("button", { className: "link", textContent: row.name + (row.attempt > 1 ? ` (${row.attempt})` : ""), onclick: () => this.goTo.episode(row) }), " "]))]);
    return [element("h3", { textContent: `${title}: ${count(rows.length)}` }), element("p", { className: "legend", textContent: meaning }), table(title, ["reason", "number", "the latest, as a sentence", "latest episodes"], lines)];
  }
}
