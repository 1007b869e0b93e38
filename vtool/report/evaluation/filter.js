// The filter alone: without it the page reads the same, and all rows are there.
"use strict";
const form = document.getElementById("filter"), box = form.querySelector("input");
const rows = [...document.querySelectorAll(".asked-row")];
const summary = document.getElementById("filtered");
const texts = rows.map((row) => row.textContent.toLowerCase());
const filter = () => {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  rows.forEach((row, at) => {
    row.hidden = !words.every((word) => texts[at].includes(word));
    shown += !row.hidden;
  });
  summary.textContent = words.length ? `${shown} of ${rows.length} rows shown` : "";
};
form.hidden = false;
form.addEventListener("submit", (event) => event.preventDefault());
box.addEventListener("input", filter);
filter();
