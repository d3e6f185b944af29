// Before the first paint: the theme that was chosen. Nothing chosen: the system's.
try {
  const theme = localStorage.getItem("fathom.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // No store: the system's.
}
