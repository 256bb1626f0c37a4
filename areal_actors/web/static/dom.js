// Elements and texts. All text from a run becomes a text node: nothing here parses HTML.

export const element = (name, properties = {}, ...children) => {
  const { data, aria, ...plain } = properties;
  const made = Object.assign(document.createElement(name), plain);
  Object.assign(made.dataset, data ?? {});
  for (const [key, value] of Object.entries(aria ?? {})) made.setAttribute(key === "role" ? "role" : `aria-${key}`, value);
  made.append(...children.filter(child => child !== null && child !== undefined && child !== ""));
  return made;
};

export const svg = (name, attributes = {}, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

export const replace = (parent, ...children) => parent.replaceChildren(...children.filter(child => child !== null && child !== ""));

export const count = number => number.toLocaleString("en-US");
export const counted = (number, thing) => `${count(number)} ${thing}${number === 1 ? "" : "s"}`;

// A number with four digits that matter: 0.7312, 12.4, 1,204, 3.1e-7.
export const short = value => {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size < 1e-3 || size >= 1e7) return value.toExponential(1);
  if (Number.isInteger(value)) return count(value);
  return size >= 1000 ? count(Math.round(value)) : String(Number(value.toPrecision(4)));
};

export const duration = seconds => {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")} h`;
};

// A moment of the run: 2:33.4 is two minutes and 33.4 seconds after its first event.
export const moment = seconds => {
  const whole = Math.floor(seconds / 60), rest = (seconds - 60 * whole).toFixed(1).padStart(4, "0");
  return whole < 60 ? `${whole}:${rest}` : `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}:${rest}`;
};

export const bytes = size => size >= 2 ** 30 ? `${(size / 2 ** 30).toFixed(1)} GiB` : `${Math.round(size / 2 ** 20)} MiB`;

// A table with a caption for screen readers; cells are texts, numbers or elements.
export const table = (caption, headings, rows) => element("table", {},
  element("caption", { textContent: caption }),
  element("thead", {}, element("tr", {}, ...headings.map(text => element("th", { textContent: text, scope: "col" })))),
  element("tbody", {}, ...rows.map(cells => element("tr", {}, ...cells.map((cell, column) =>
    element("td", { data: { heading: headings[column] } }, typeof cell === "number" ? short(cell) : cell ?? ""))))),
);

export const empty = sentence => element("p", { className: "empty", textContent: sentence });

// A value of the style sheet, as canvases and plots need it.
export const colour = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// Colour of a weight version: neighbours differ clearly, and the order goes round the wheel.
export const versionColour = (version, alpha = 1) => {
  const light = document.documentElement.dataset.theme === "dark" ? 62 : 46;
  return version < 0 ? colour("dim") : `hsl(${(210 + version * 47) % 360} 65% ${light}% / ${alpha})`;
};

// Background and readable text of a weight version: black or white, whichever has more contrast (WCAG 2, relative luminance).
export const paintVersion = (node, version) => {
  node.style.background = versionColour(version);
  const [hue, light] = [((210 + version * 47) % 360) / 30, document.documentElement.dataset.theme === "dark" ? 0.62 : 0.46];
  const channel = shift => { const place = (shift + hue) % 12; return light - 0.65 * Math.min(light, 1 - light) * Math.max(-1, Math.min(place - 3, 9 - place, 1)); };
  const [red, green, blue] = [0, 8, 4].map(channel).map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  node.style.color = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
};
