"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const style = getComputedStyle(document.documentElement);
const color = (name) => style.getPropertyValue(name).trim();

function trace(points, name, mark, line) {
  const error = (axis) => ({
    type: "data", symmetric: false, thickness: 1, width: 0, color: color("--dim"),
    array: points.map((point) => point[axis][2] - point[axis][1]),
    arrayminus: points.map((point) => point[axis][1] - point[axis][0]),
  });
  return {
    type: "scatter", mode: line ? "lines+markers+text" : "markers+text", name,
    x: points.map((point) => point.x[1]), y: points.map((point) => point.y[1]),
    text: points.map((point) => point.name), textposition: "top right", cliponaxis: false, textfont: { size: 11 },
    error_x: error("x"), error_y: error("y"),
    marker: { size: 10, color: mark }, line: { color: mark, dash: "dot" },
    hovertemplate: "%{text}<br>" + data.x + " %{x:.3g}<br>" + data.y + " %{y:.3g}<extra></extra>",
  };
}

function draw() {
  const axis = (title) => ({ title: { text: title }, type: "log", gridcolor: color("--grid"), zeroline: false });
  const best = data.points.filter((point) => point.frontier);
  const others = data.points.filter((point) => !point.frontier);
  Plotly.react("frontier-chart",
    [trace(others, "others", color("--dim"), false), trace(best, "frontier", color("--accent"), true)], {
      margin: { l: 70, r: 90, t: 20, b: 50 }, paper_bgcolor: color("--back"), plot_bgcolor: color("--back"),
      font: { color: color("--ink"), size: 12 }, xaxis: axis(data.x), yaxis: axis(data.y), showlegend: others.length > 0,
      legend: { orientation: "h", y: 1.1 },
    }, { displaylogo: false, responsive: true });
}

draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
