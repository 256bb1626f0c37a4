// Actors: the supervision tree with state and restarts, and mailboxes as heartbeats of a live run describe them.

import { bytes, count, counted, duration, element, empty, moment, replace, short, table } from "./dom.js";

export class Actors {
  constructor(data, root) {
    this.data = data;
    this.tree = element("div", { className: "tree" });
    this.mail = element("div", { className: "scroll" });
    this.changes = element("div", { className: "scroll" });
    root.append(element("div", { className: "bar" }, element("h2", { textContent: "Actors" })), element("h3", { textContent: "Supervision tree" }), this.tree, element("h3", { textContent: "Mailboxes" }), this.mail, element("h3", { textContent: "Starts, failures and stops" }), this.changes);
  }

  draw() {
    const found = new Map();
    for (const row of this.data.before("actors")) {
      const actor = found.get(row.actor) ?? { starts: 0, failures: 0, last: row };
      actor.starts += row.change === "started";
      actor.failures += row.change === "failed";
      actor.last = row;
      found.set(row.actor, actor);
    }
    this.drawTree(found);
    this.drawMail();
    const rows = this.data.before("actors").slice(-200).reverse();
    replace(this.changes, rows.length ? table("Starts, failures and stops", ["event", "after", "actor", "process", "change", "details"], rows.map(row => [element("button", { className: "link", textContent: count(row.position), onclick: () => this.data.goTo(row.position) }), moment(row.at), row.actor, row.process, element("span", { className: row.change, textContent: row.change }), row.detail])) : empty("No actor has started at this event."));
  }

  drawTree(found) {
    const supervisors = this.data.recipe?.supervisors ?? {}, children = new Set(Object.values(supervisors).flatMap(one => one.children)), roots = Object.keys(supervisors).filter(name => !children.has(name));
    if (!roots.length) return replace(this.tree, empty("The recipe with the supervision tree is not read yet."));
    const node = name => {
      const supervisor = supervisors[name];
      if (supervisor) return element("li", {}, element("b", { textContent: name }), element("span", { className: "dim", textContent: ` ${supervisor.restart.replaceAll("_", " ")}, at most ${counted(supervisor.max_restarts, "restart")} in ${duration(supervisor.window_seconds)}` }), element("ul", {}, ...supervisor.children.map(node).filter(Boolean)));
      const actors = [...found].filter(([actor]) => actor.replace(/-\d+$/, "") === name);
      if (!actors.length) return null;
      return element("li", {}, ...actors.map(([actor, { starts, failures, last }]) => element("span", { className: "actor" }, element("span", { className: `state ${last.change}`, textContent: last.change === "started" ? "serves" : last.change }), ` ${actor} `, element("span", { className: "dim", textContent: [`process ${last.process}`, starts > 1 ? counted(starts - 1, "restart") : "", failures ? counted(failures, "failure") : ""].filter(Boolean).join(", ") }))));
    };
    replace(this.tree, element("ul", {}, ...roots.map(node)));
  }

  drawMail() {
    const { beats, now } = this.data.telemetry;
    if (!beats.length || !this.data.follows) return replace(this.mail, empty(this.data.follows ? "Heartbeats are not in the log: this page shows those that arrive while the run is live, every few seconds." : "Heartbeats are not in the log, so they cannot be shown for an earlier event."));
    replace(this.mail, table("Mailboxes", ["actor", "in progress", "longest wait", "its figures", "CPU time", "peak memory", "last heartbeat"], beats.map(beat => [
      beat.actor,
      Object.entries(beat.handling).filter(([, number]) => number).map(([name, number]) => `${number} ${name}`).join(", ") || "idle",
      beat.waits[0] ? `${beat.waits[0].name}, ${duration(Math.max(beat.at - beat.waits[0].since, 0))}` : "–",
      Object.entries(beat.status).map(([name, value]) => `${name} ${typeof value === "number" ? short(value) : value}`).join(", "),
      duration(beat.cpu_seconds),
      bytes(beat.peak_memory_bytes),
      `${duration(Math.max(now - beat.at, 0))} ago`,
    ])));
  }
}
