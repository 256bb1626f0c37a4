// Events: a search through the log, newest first, and one event with its whole message.

import { fetched } from "./data.js";
import { count, element, empty, moment, replace, table } from "./dom.js";

export class Events {
  constructor(data, root) {
    Object.assign(this, { data, found: [], before: 0, more: false, search: 0, began: false, event: "" });
    this.text = element("input", { type: "search", placeholder: "text, sender or id", aria: { label: "Search in messages, senders and ids" } });
    this.subject = element("input", { type: "search", placeholder: "subject, as in trajectory.", aria: { label: "Beginning of the subject" } });
    const form = element("form", {}, this.text, this.subject, element("button", { textContent: "search" }));
    form.addEventListener("submit", event => { event.preventDefault(); this.begin(); });
    this.status = element("p", { className: "legend", aria: { live: "polite" } });
    this.list = element("div", { className: "scroll" });
    this.next = element("button", { textContent: "search in earlier events", onclick: () => this.load() });
    this.detail = element("div", { className: "event" });
    root.append(element("div", { className: "bar" }, element("h2", { textContent: "Events" }), form), element("div", { className: "split wide" }, element("div", {}, this.status, this.list, this.next), this.detail));
  }

  focus() { this.text.focus(); }

  state() { return { text: this.text.value.trim(), subject: this.subject.value.trim(), event: this.event }; }

  open({ text, subject, event }) {
    if (event && Number(event) > this.data.head.last) return false;
    if (text !== undefined || subject !== undefined) {
      Object.assign(this.text, { value: text ?? "" });
      Object.assign(this.subject, { value: subject ?? "" });
      this.began = false;
    }
    if (event && event !== this.event) this.show(event);
    return true;
  }

  draw() {
    if (!this.began && this.data.head.last) this.begin();
    if (this.began && this.shownAt !== this.data.now && !this.text.value && !this.data.follows) this.begin();
  }

  begin() {
    Object.assign(this, { began: true, found: [], before: this.data.now + 1, shownAt: this.data.now, search: this.search + 1 });
    return this.load();
  }

  async load() {
    const search = this.search, query = new URLSearchParams({ text: this.text.value.trim(), subject: this.subject.value.trim(), before: this.before, limit: 100 });
    this.status.textContent = "searching …";
    const answer = await fetched(`api/events?${query}`);
    if (search !== this.search) return;
    this.found.push(...answer.events);
    Object.assign(this, { before: answer.before, more: answer.more });
    this.status.textContent = `${count(this.found.length)} found in events ${count(answer.before)} to ${count(this.shownAt)}, newest first`;
    this.next.hidden = !answer.more;
    const rows = this.found.map(one => [element("button", { className: "link", textContent: count(one.position), onclick: () => this.show(one.position) }), moment(Math.max(one.time - this.data.began, 0)), one.subject, one.sender]);
    replace(this.list, rows.length ? table("Events found", ["event", "after", "subject", "sender"], rows) : empty(answer.more ? "Nothing found in these events; search in earlier ones." : "No event matches. A subject is the beginning of a name, as in `episode.`; docs/events.md lists them all."));
  }

  async show(position) {
    this.event = String(position);
    this.data.changed();
    const found = await fetched(`api/event/${position}`);
    if (found.error) return replace(this.detail, empty(found.error));
    replace(this.detail, element("h3", { textContent: `event ${count(position)}: ${found.subject}` }), element("p", { className: "dim", textContent: `from ${found.sender} · id ${found.id}${found.cause ? ` · answers ${found.cause}` : ""}` }), element("button", { textContent: "show the run at this event", onclick: () => this.data.goTo(position) }), element("pre", { textContent: JSON.stringify(found.message, null, 2) }));
  }
}
