// The address holds what is shown, as in #episode?name=12.3&at=340, so that it can be shared and opened afresh.

export const compose = (view, values) => {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return `#${view}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
};

export const parse = hash => {
  const [view, query = ""] = hash.slice(1).split("?");
  return { view, values: Object.fromEntries(new URLSearchParams(query)) };
};
