// The filter alone: without it the page reads the same, and all subjects and lines are there.
"use strict";
const form = document.getElementById("filter");
const summary = document.getElementById("filtered");
const seen = (list) => [...document.querySelectorAll(list)];
const lower = (node) => node.textContent.toLowerCase();
const subjects = seen("tr[data-subject]").map((row) => {
  const own = document.getElementById(row.dataset.subject).closest("details");
  return {row, own, ...row.dataset, found: row.dataset.found.split(" "), text: lower(own)};
});
const lines = seen(".line").map((item) => ({
  item, ...item.dataset, text: lower(item), names: [...item.querySelectorAll("[data-of]")],
}));
const filter = () => {
  const asked = Object.fromEntries(new FormData(form));
  const words = asked.text.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (text) => words.every((word) => text.includes(word));
  const fits = (name, value) => !asked[name] || asked[name] === value;
  const of = (found) => {
    const at = found.indexOf(":");
    return found && fits("severity", found.slice(0, at)) && fits("rule", found.slice(at + 1));
  };
  const any = !asked.severity && !asked.rule;
  const chosen = new Set();
  let shown = 0, shownLines = 0;
  for (const one of subjects) {
    const right = ["verdict", "framework", "oracle"].every((name) => fits(name, one[name]));
    if (right) chosen.add(one.subject);
    const hidden = !(right && (any || one.found.some(of)) && has(one.text));
    one.row.hidden = one.own.hidden = hidden;
    shown += !hidden;
  }
  for (const line of lines) {
    let left = 0;
    for (const name of line.names) left += !(name.hidden = !chosen.has(name.dataset.of));
    const right = fits("rule", line.rule) && fits("severity", line.severity) && has(line.text);
    line.item.hidden = !(left && right);
    shownLines += !line.item.hidden;
  }
  summary.textContent =
    `${shown} of ${subjects.length} subjects, ${shownLines} of ${lines.length} findings shown`;
};
form.hidden = false;
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", filter);
form.addEventListener("reset", () => setTimeout(filter));
filter();
