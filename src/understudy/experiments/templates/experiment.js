"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("data").textContent);
  const COLOURS = ["#3d7edb", "#e08a1e", "#2a9d6f", "#c9463d", "#9b5de5", "#7a8796", "#c2a83e", "#4fb3bf"];
  const CONFIG = { displaylogo: false, responsive: true, modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]] };

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function draw(chart) {
    const { data, layout } = figures[chart.dataset.index];
    const axis = { gridcolor: colour("--grid"), zerolinecolor: colour("--grid"), linecolor: colour("--rule"), automargin: true };
    Plotly.react(chart, data, {
      paper_bgcolor: colour("--back"), plot_bgcolor: colour("--back"), colorway: COLOURS,
      font: { color: colour("--ink"), family: "system-ui, sans-serif", size: 12 },
      margin: { l: 10, r: 10, t: 30, b: 50 }, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      ...layout, xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis },
    }, CONFIG);
  }

  const drawAll = () => document.querySelectorAll(".plot").forEach(draw);
  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
})();
