// What the tokens of an episode are coloured by: each mode scales to the episode, and has a legend. Underlines repeat the colour.

import { element, short, versionColour } from "./dom.js";

export const MODES = ["log-probability", "weight version", "advantage", "trained", "engine – trainer"];
const STEPS = [0, 0.25, 0.5, 0.75, 1];
const tint = (name, share) => `rgb(var(--${name}) / ${(0.1 + 0.42 * Math.min(share, 1)).toFixed(4)})`;
const line = share => share < 0.25 ? "" : share < 0.6 ? "dotted" : "solid";
const PLAIN = { background: "", line: "" };

// `tokens` are {call, place}; `trace` returns the call with masks and advantages, or undefined.
export class TokenColours {
  constructor(tokens, trace) {
    this.trace = trace;
    this.lowest = Math.max(1e-3, tokens.reduce((most, { call, place }) => Math.max(most, -call.logprobs[place]), 0));
    this.largest = tokens.reduce((most, one) => Math.max(most, Math.abs(this.advantage(one) ?? 0)), 0);
    this.versions = [...new Set(tokens.map(({ call, place }) => call.weight_versions[place]))].sort((one, other) => one - other);
  }

  advantage({ call, place }) { return this.trace(call)?.advantages[place] ?? null; }

  // Background and underline of a token.
  style(mode, one) {
    const { call, place } = one;
    if (mode === "log-probability") return this.unlikely(-call.logprobs[place] / this.lowest);
    if (mode === "weight version") return { background: versionColour(call.weight_versions[place], 0.4), line: this.versions.indexOf(call.weight_versions[place]) % 2 ? "dotted" : "solid" };
    if (mode === "trained") return this.trace(call)?.trained[place] ? { background: tint("high", 0.5), line: "solid" } : PLAIN;
    if (mode === "advantage") return this.signed(this.largest ? (this.advantage(one) ?? 0) / this.largest : 0);
    return PLAIN;
  }

  unlikely(share) { return share > 0.004 ? { background: tint("low", share), line: line(share) } : PLAIN; }

  signed(share) { return share ? { background: tint(share < 0 ? "low" : "high", Math.abs(share)), line: share < 0 ? "wavy" : "solid" } : PLAIN; }

  // Swatches with the values of their colours.
  legend(mode) {
    const scale = {
      "log-probability": () => STEPS.map(share => [this.unlikely(share), `${short(-share * this.lowest)}${share === 1 ? " nats" : ""}`]),
      "weight version": () => this.versions.map((version, index) => [{ background: versionColour(version, 0.4), line: index % 2 ? "dotted" : "solid" }, `v${version}`]),
      "advantage": () => this.largest ? [-1, -0.5, 0, 0.5, 1].map(share => [this.signed(share), short(share * this.largest)]) : [],
      "trained": () => [[{ background: tint("high", 0.5), line: "solid" }, "in the loss"], [PLAIN, "masked"]],
      "engine – trainer": () => [],
    }[mode]();
    return scale.map(([style, text]) => { const swatch = element("span", { className: "swatch", textContent: "abc" }); paint(swatch, style); return element("span", { className: "step" }, swatch, ` ${text}`); });
  }
}

export const paint = (node, { background, line: underline }) => {
  node.style.background = background;
  node.style.textDecoration = underline ? `underline ${underline}` : "";
};
