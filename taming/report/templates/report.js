"use strict";
// charts are drawn when they come into view, and follow light and dark
const dark = matchMedia("(prefers-color-scheme: dark)");
function theme() {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink"), line = style.getPropertyValue("--line");
  const axes = {};
  for (const axis of ["xaxis", "yaxis"]) {
    axes[axis + ".gridcolor"] = line;
    axes[axis + ".zerolinecolor"] = line;
    axes[axis + ".linecolor"] = line;
  }
  return {"font.color": ink, "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", ...axes};
}
function draw(plot) {
  const {data, layout} = JSON.parse(plot.nextElementSibling.textContent);
  const common = {
    font: {size: 11}, legend: {orientation: "h", y: 1.02, yanchor: "bottom", font: {size: 11}}, autosize: true,
    hovermode: "closest", showlegend: data.length > 1,
  };
  const settings = {responsive: true, displaylogo: false, displayModeBar: "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]};
  Plotly.newPlot(plot, data, {...common, ...layout}, settings).then(() => Plotly.relayout(plot, theme()));
}
const seen = new IntersectionObserver((entries) => {
  for (const {target, isIntersecting} of entries) {
    if (isIntersecting) { seen.unobserve(target); draw(target); }
  }
}, {rootMargin: "600px"});
document.querySelectorAll(".plot").forEach((plot) => seen.observe(plot));
dark.addEventListener("change", () => {
  document.querySelectorAll(".plot.js-plotly-plot").forEach((plot) => Plotly.relayout(plot, theme()));
});
// what is in a cell of a picture that is a grid
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
// a picture, larger; a grid with cells stays, for its cells
const dialog = document.querySelector("dialog");
document.querySelector("main").addEventListener("click", ({target}) => {
  if (!(target instanceof HTMLImageElement) || target.dataset.cells) return;
  dialog.replaceChildren(target.cloneNode());
  dialog.showModal();
});
dialog.addEventListener("click", () => dialog.close());
