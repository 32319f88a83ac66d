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

// 1, 2 and 5 of each decade: Plotly's own labels of a logarithmic axis leave out the decade.
function ticks(values) {
  const low = Math.min(...values), high = Math.max(...values), found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const digit of [1, 2, 5]) found.push(Number((digit * 10 ** power).toPrecision(1)));
  }
  return found;
}

const narrow = matchMedia("(max-width: 600px)");

function draw() {
  const axis = (name) => {
    const places = ticks(data.points.flatMap((point) => point[name]));
    return {
      title: { text: data[name] }, type: "log", gridcolor: color("--grid"), zeroline: false, tickvals: places,
      ticktext: places.map((place) => place.toLocaleString("en", { maximumSignificantDigits: 3 })),
    };
  };
  const best = data.points.filter((point) => point.frontier);
  const others = data.points.filter((point) => !point.frontier);
  const traces = [trace(others, "others", color("--dim"), false), trace(best, "frontier", color("--accent"), true)];
  if (narrow.matches) for (const one of traces) one.mode = one.mode.replace("+text", ""); // their names show on touch
  Plotly.react("frontier-chart", traces, {
      margin: { l: 60, r: narrow.matches ? 10 : 120, t: 20, b: 50 },
      paper_bgcolor: color("--back"), plot_bgcolor: color("--back"),
      font: { color: color("--ink"), size: 12 }, xaxis: axis("x"), yaxis: axis("y"), showlegend: others.length > 0,
      legend: { orientation: "h", y: 1.1 },
    }, { displayModeBar: false, responsive: true });
}

narrow.addEventListener("change", draw);
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
