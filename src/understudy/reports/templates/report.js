"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const COLOURS = ["#3d7edb", "#e08a1e", "#9b5de5", "#c9463d", "#7a8796"];
  // From what stays to what comes and goes: the outline of a short peak has the colour of what made it.
  const CATEGORIES = ["parameter", "optimizer", "workspace", "autocast", "input", "gradient", "activation", "temporary"];
  const MEMORY_COLOURS = ["#3d7edb", "#e08a1e", "#2a9d6f", "#9b5de5", "#c9463d", "#c2a83e", "#4fb3bf", "#b5739d", "#7a8796"];
  const MOST_BARS = 2500; // more and the page becomes slow: then stretches of time are drawn instead of operations
  const STRETCHES = 500;
  const CONFIG = {
    displaylogo: false, responsive: true, modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
    displayModeBar: matchMedia("(max-width: 640px)").matches ? false : "hover", // it would lie on a phone's legend
  };

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Plotly reads a little HTML in its texts; what comes from the program must stay text.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function layout(more) {
    const axis = { gridcolor: colour("--grid"), zerolinecolor: colour("--grid"), linecolor: colour("--rule") };
    const { xaxis, yaxis, ...rest } = more;
    return {
      paper_bgcolor: colour("--back"), plot_bgcolor: colour("--back"),
      font: { color: colour("--ink"), family: "system-ui, sans-serif", size: 12 },
      hoverlabel: { align: "left" }, margin: { l: 10, r: 10, t: 30, b: 40 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, automargin: true, ...yaxis }, ...rest,
    };
  }

  function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return new Uint32Array(bytes.buffer);
  }

  function words(ns) {
    if (ns >= 1e9) return (ns / 1e9).toPrecision(3) + " s";
    if (ns >= 1e6) return (ns / 1e6).toPrecision(3) + " ms";
    if (ns >= 1e3) return (ns / 1e3).toPrecision(3) + " µs";
    return Math.round(ns) + " ns";
  }

  function sizeWords(bytes) {
    for (const [size, name] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
      if (bytes >= size) return (bytes / size).toPrecision(3) + " " + name;
    return bytes + " B";
  }

  // ------------------------------------------------------------------ timeline

  const line = data.timeline;
  const lanes = line.lanes.map((lane) => ({
    label: lane.label, count: lane.count,
    starts: unpack(lane.starts), durations: unpack(lane.durations), whats: unpack(lane.whats),
  }));
  const MS = line.unit_ns / 1e6; // milliseconds a unit
  const LENGTH_MS = Math.max(line.length_ns / 1e6, 1e-6);
  const timelineChart = document.getElementById("timeline-chart");
  let shown = [0, LENGTH_MS];

  function firstAtOrAfter(starts, unit) {
    let low = 0, high = starts.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (starts[middle] < unit) low = middle + 1; else high = middle;
    }
    return low;
  }

  function visible(lane, from, to) {
    // One operation more on the left: it may reach into the view.
    return [Math.max(0, firstAtOrAfter(lane.starts, from / MS) - 1), firstAtOrAfter(lane.starts, to / MS)];
  }

  function emptyTraces() {
    return line.classes.map((name, number) => ({
      type: "bar", orientation: "h", name, base: [], x: [], y: [], customdata: [], width: 0.7,
      marker: { color: COLOURS[number], opacity: [], line: { width: 0 } }, hovertemplate: "%{customdata}<extra></extra>",
    }));
  }

  function push(traces, kind, lane, start, length, strength, text) {
    const trace = traces[kind];
    trace.base.push(start); trace.x.push(length); trace.y.push(lane.label);
    trace.marker.opacity.push(strength); trace.customdata.push(text);
  }

  function addOperations(traces, lane, first, last) {
    for (let i = first; i < last; i++) {
      const [kind, name, where] = line.whats[lane.whats[i]];
      const start = lane.starts[i] * MS, length = lane.durations[i] * MS;
      const text = `${plain(name)}<br>${plain(where)}<br>at ${words(start * 1e6)}, for ${words(length * 1e6)}`;
      push(traces, kind, lane, start, length, 1, text);
    }
  }

  function addStretches(traces, lane, first, last, from, to) {
    const width = (to - from) / STRETCHES;
    const busy = line.classes.map(() => new Float64Array(STRETCHES));
    const counts = new Uint32Array(STRETCHES);
    for (let i = first; i < last; i++) {
      const kind = line.whats[lane.whats[i]][0];
      const start = lane.starts[i] * MS, end = start + lane.durations[i] * MS;
      const one = Math.max(0, Math.floor((start - from) / width));
      const other = Math.min(STRETCHES - 1, Math.floor((end - from) / width));
      for (let k = one; k <= other; k++) {
        counts[k]++;
        busy[kind][k] += Math.max(0, Math.min(end, from + (k + 1) * width) - Math.max(start, from + k * width));
      }
    }
    for (let k = 0; k < STRETCHES; k++) {
      let kind = -1, total = 0;
      for (let c = 0; c < busy.length; c++) {
        total += busy[c][k];
        if (busy[c][k] > 0 && (kind < 0 || busy[c][k] > busy[kind][k])) kind = c;
      }
      if (kind < 0) continue;
      const share = Math.min(1, total / width);
      const text = `${counts[k]} operations, busy ${(100 * share).toPrecision(2)} %<br>mostly ${line.classes[kind]}<br>at ${words((from + k * width) * 1e6)}`;
      push(traces, kind, lane, from + k * width, width, 0.2 + 0.8 * share, text);
    }
  }

  function timelineTraces([from, to]) {
    const traces = emptyTraces();
    const ranges = lanes.map((lane) => visible(lane, from, to));
    const total = ranges.reduce((sum, [first, last]) => sum + last - first, 0);
    lanes.forEach((lane, number) => {
      const [first, last] = ranges[number];
      if (total <= MOST_BARS) addOperations(traces, lane, first, last);
      else addStretches(traces, lane, first, last, from, to);
    });
    return traces.filter((trace) => trace.x.length);
  }

  const timelineHeight = () => 110 + 40 * Math.max(1, lanes.length);

  function drawTimeline() {
    Plotly.react(timelineChart, timelineTraces(shown), layout({
      barmode: "overlay", bargap: 0, showlegend: true, dragmode: "zoom", height: timelineHeight(),
      xaxis: { title: { text: "ms" }, range: shown.slice() },
      yaxis: { categoryorder: "array", categoryarray: lanes.map((lane) => lane.label).reverse(), fixedrange: true },
    }), CONFIG);
  }

  function look(from, to) {
    const width = Math.min(LENGTH_MS, Math.max(to - from, 10 * MS));
    from = Math.min(Math.max(0, from), LENGTH_MS - width);
    shown = [from, from + width];
    drawTimeline();
  }

  function onZoom(change) {
    if (change["xaxis.autorange"]) look(0, LENGTH_MS);
    else if ("xaxis.range[0]" in change) look(change["xaxis.range[0]"], change["xaxis.range[1]"]);
  }

  function onButton(event) {
    const { zoom, move } = event.target.dataset;
    const [from, to] = shown, width = to - from, middle = (from + to) / 2;
    if (zoom === "all") look(0, LENGTH_MS);
    else if (zoom) look(middle - width * zoom / 2, middle + width * zoom / 2);
    else if (move) look(from + width * move, to + width * move);
  }

  // ------------------------------------------------------------------ memory and roofline

  function drawMemory(chart) {
    const device = data.memory[chart.dataset.index];
    const known = CATEGORIES.filter((name) => name in device.categories);
    const names = [...known, ...Object.keys(device.categories).filter((name) => !CATEGORIES.includes(name))];
    const tint = (name) => MEMORY_COLOURS.at(CATEGORIES.indexOf(name)); // the last is everything else's
    const unit = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].find(([size]) => device.peak_bytes >= 2 * size) || [1, "B"];
    const traces = names.map((name) => ({
      type: "scatter", mode: "lines", name, x: device.times_ms, y: device.categories[name].map((size) => size / unit[0]),
      stackgroup: "all", line: { shape: "hv", width: 1 }, fillcolor: tint(name), marker: { color: tint(name) },
      text: device.categories[name].map(sizeWords), hovertemplate: `${plain(name)} %{text} at %{x:.3f} ms<extra></extra>`,
    }));
    Plotly.react(chart, traces, layout({
      showlegend: true, xaxis: { title: { text: "ms" }, range: [0, Math.max(LENGTH_MS, device.times_ms.at(-1))] },
      yaxis: { title: { text: `cuda:${device.device} ${unit[1]}` }, rangemode: "tozero" },
    }), CONFIG);
  }

  function drawRoofline(chart) {
    const { points, peaks, bandwidth_bytes_per_s: bandwidth, gpu } = data.roofline;
    const intensities = points.map((point) => point.intensity);
    const low = Math.min(0.05, ...intensities) / 2, high = Math.max(100, ...intensities) * 2;
    const traces = [{
      type: "scatter", mode: "markers", name: "kernels", x: intensities, y: points.map((point) => point.flops_per_s / 1e12),
      marker: { color: COLOURS[0], size: points.map((point) => 7 + 16 * Math.sqrt(point.duration_ns / points[0].duration_ns)), opacity: 0.75 },
      text: points.map((point) => `${plain(point.name)}<br>${point.times} times, ${words(point.duration_ns)}`),
      hovertemplate: "%{text}<br>%{y:.3g} TFLOP/s at %{x:.3g} FLOP/byte<extra></extra>",
    }];
    Object.entries(peaks).forEach(([name, peak], number) => {
      const ridge = bandwidth ? peak / bandwidth : low;
      traces.push({
        type: "scatter", mode: "lines", name: `${name} peak`, x: [low, Math.max(low, ridge), Math.max(high, ridge)],
        y: [bandwidth ? low * bandwidth / 1e12 : peak / 1e12, peak / 1e12, peak / 1e12],
        line: { color: MEMORY_COLOURS[number + 1], width: 1.5, dash: "dot" }, hoverinfo: "name",
      });
    });
    Plotly.react(chart, traces, layout({
      showlegend: true, margin: { l: 10, r: 10, t: 30, b: 50 },
      xaxis: { type: "log", title: { text: `FLOP per byte (${plain(gpu)})` } }, yaxis: { type: "log", title: { text: "TFLOP/s" } },
    }), CONFIG);
  }

  // ------------------------------------------------------------------ drawing, when a chart comes into view

  const charts = new Map();
  if (timelineChart) charts.set(timelineChart, drawTimeline);
  document.querySelectorAll(".memory-chart").forEach((chart) => charts.set(chart, drawMemory));
  document.querySelectorAll("#roofline-chart").forEach((chart) => charts.set(chart, drawRoofline));
  const drawn = new Set();

  // A third of a second of script that a reader of the findings does not need: it runs before the first chart is drawn.
  function startPlotly() {
    if (window.Plotly) return;
    const script = document.createElement("script");
    script.textContent = document.getElementById("plotly").textContent;
    document.head.append(script);
  }

  function draw(chart) {
    if (drawn.has(chart)) return;
    startPlotly();
    drawn.add(chart);
    charts.get(chart)(chart);
    if (chart === timelineChart) chart.on("plotly_relayout", onZoom);
  }

  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { watch.unobserve(entry.target); draw(entry.target); }
  }, { rootMargin: "400px" });

  if (timelineChart) timelineChart.style.height = timelineHeight() + "px";
  charts.forEach((_, chart) => watch.observe(chart));
  document.querySelector(".buttons").addEventListener("click", onButton);
  addEventListener("beforeprint", () => charts.forEach((_, chart) => draw(chart)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((chart) => charts.get(chart)(chart)));
})();
