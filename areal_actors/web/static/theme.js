// Dark or light colours: those of the system until one is chosen, which this browser then keeps.

const preferred = matchMedia("(prefers-color-scheme: dark)");

export const followTheme = changed => {
  const apply = name => { document.documentElement.dataset.theme = name; changed(); };
  preferred.addEventListener("change", () => apply(preferred.matches ? "dark" : "light"));
  apply(localStorage.getItem("theme") ?? (preferred.matches ? "dark" : "light"));
  return () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem("theme", next);
    apply(next);
  };
};
