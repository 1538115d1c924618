"use strict";
// Draw all charts now: a chart that is drawn when it comes into view would be missing in print.
for (const plot of document.querySelectorAll(".plot")) {
  const {data, layout} = JSON.parse(plot.nextElementSibling.textContent);
  Plotly.newPlot(plot, data, {...layout, autosize: true}, {responsive: true, displaylogo: false,
    displayModeBar: "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]});
}
// Print what is collapsed, too.
let collapsed = [];
addEventListener("beforeprint", () => {
  collapsed = [...document.querySelectorAll("details:not([open])")];
  for (const details of collapsed) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of collapsed) details.open = false;
});
// Show the tooltip of a cell in a picture of a grid.
const pointer = document.getElementById("pointer");
function point(event) {
  const image = event.target;
  if (!(image instanceof HTMLImageElement) || !image.dataset.cells) { pointer.hidden = true; return; }
  const cells = image.dataset.cells.split("\n"), columns = Number(image.dataset.columns);
  const rows = Math.ceil(cells.length / columns), box = image.getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left) / box.width * columns);
  const row = Math.floor((event.clientY - box.top) / box.height * rows);
  const text = cells[row * columns + column];
  pointer.hidden = text === undefined;
  pointer.textContent = text;
  pointer.style.left = Math.min(event.clientX + 12, innerWidth - pointer.offsetWidth - 8) + "px";
  pointer.style.top = event.clientY + 16 + "px";
}
document.addEventListener("pointermove", point);
document.addEventListener("pointerdown", point);
// Enlarge a picture on a click. A grid stays because its cells have tooltips.
const dialog = document.querySelector("dialog");
document.querySelector("main").addEventListener("click", ({target}) => {
  if (!(target instanceof HTMLImageElement) || target.dataset.cells) return;
  dialog.replaceChildren(target.cloneNode());
  dialog.showModal();
});
dialog.addEventListener("click", () => dialog.close());
