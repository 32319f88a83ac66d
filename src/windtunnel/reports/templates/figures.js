"use strict";
// Draws the page's figures, which are whole before: element.dataset.figure is the number of one in the data.
(() => {
  const figures = JSON.parse(document.getElementById("data").textContent);
  const charts = document.querySelectorAll("[data-figure]");

  function draw(chart) {
    const { traces, layout } = figures[chart.dataset.figure];
    drawChart(chart, traces, { ...layout, xaxis: { ...layout.xaxis }, yaxis: { ...layout.yaxis } });
  }

  const all = () => charts.forEach(draw);
  let width = innerWidth;
  all();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; all(); } });
})();
