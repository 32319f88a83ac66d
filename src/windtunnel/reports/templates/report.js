"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const COLOURS = ["kernel", "copy", "collective", "wait", "host", "launch"];
  const PHASES = ["data", "forward", "backward", "optimizer"];
  const MOST_BORDERS = 12; // of steps in view: more are no borders but a hatching
  // From what stays to what comes and goes: the outline of a short peak has the colour of what made it.
  const CATEGORIES = ["parameter", "optimizer", "workspace", "autocast", "input", "communication", "gradient", "retained", "activation", "temporary"];
  const MEMORY_COLOURS = ["#3d7edb", "#e08a1e", "#2a9d6f", "#9b5de5", "#c9463d", "#5b6abf", "#c2a83e", "#8a5a44", "#4fb3bf", "#b5739d", "#7a8796"];
  const MOST_BARS = 2500; // more and the page becomes slow: then stretches of time are drawn instead of operations
  const STRETCHES = 500;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function unpack(text, count) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return bytes.length === 2 * count ? new Uint16Array(bytes.buffer) : new Uint32Array(bytes.buffer);
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
    starts: unpack(lane.starts, lane.count), durations: unpack(lane.durations, lane.count), whats: unpack(lane.whats, lane.count),
  }));
  const MS = line.unit_ns / 1e6; // milliseconds a unit
  const LENGTH_MS = Math.max(line.length_ns / 1e6, 1e-6);
  const timelineChart = document.getElementById("timeline-chart");
  const STEP = line.step_ns ? line.step_ns.map((ns) => ns / 1e6) : [0, LENGTH_MS];
  let shown = STEP.slice();

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
      kind: "bar", name, colour: COLOURS[number], base: [], x: [], y: [], opacity: [], tips: [], names: [],
    }));
  }

  function push(traces, kind, lane, start, length, strength, words, name = "") {
    const trace = traces[kind];
    trace.names.push(name);
    trace.base.push(start); trace.x.push(length); trace.y.push(lane.label);
    trace.opacity.push(strength); trace.tips.push(words);
  }

  function addOperations(traces, lane, first, last) {
    for (let i = first; i < last; i++) {
      const [kind, name, where] = line.whats[lane.whats[i]];
      const start = lane.starts[i] * MS, length = lane.durations[i] * MS;
      const text = `${name}\n${where}\nat ${words(start * 1e6)}, for ${words(length * 1e6)}`;
      push(traces, kind, lane, start, length, 1, text, name.replace("aten::", ""));
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
      const text = `${counts[k]} operations, busy ${(100 * share).toPrecision(2)} %\nmostly ${line.classes[kind]}\nat ${words((from + k * width) * 1e6)}`;
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
    return [...phaseTraces(from, to), ...traces.filter((trace) => trace.x.length)];
  }

  function phaseTraces(from, to) {
    return PHASES.map((name) => {
      const here = line.phases.filter(([start, length, phase]) => phase === name && (start + length) / 1e6 > from && start / 1e6 < to);
      return {
        kind: "bar", name, unlisted: true, colour: name, base: here.map(([start]) => start / 1e6), x: here.map(([, length]) => length / 1e6),
        y: here.map(() => PHASE), names: here.map(() => name), tips: here.map(([, length]) => `${name}, ${words(length)}`),
      };
    }).filter((trace) => trace.x.length);
  }

  const PHASE = "phase";
  const laneNames = () => [...(line.phases.length ? [PHASE] : []), ...lanes.map((lane) => lane.label)];
  const timelineHeight = () => 86 + 34 * Math.max(1, laneNames().length);

  // Where a step ends on the devices, the next one begins.
  function borders(from, to) {
    const inside = line.steps.filter(([end]) => end / 1e6 >= from && end / 1e6 < to);
    return inside.length <= MOST_BORDERS ? inside.map(([end, number]) => ({ x: end / 1e6, words: `step ${number + 1}` })) : [];
  }

  function drawTimeline() {
    drawChart(timelineChart, timelineTraces(shown), {
      height: timelineHeight(), onZoom: (from, to) => (from === null ? look(0, LENGTH_MS) : look(from, to)),
      marks: borders(...shown),
      xaxis: { title: "time since the first operation (ms)", range: shown.slice() }, yaxis: { range: [0, 1], lanes: laneNames() },
    });
  }

  function look(from, to) {
    const width = Math.min(LENGTH_MS, Math.max(to - from, 10 * MS));
    from = Math.min(Math.max(0, from), LENGTH_MS - width);
    shown = [from, from + width];
    drawTimeline();
  }

  function onButton(event) {
    const { zoom, move } = event.target.dataset;
    const [from, to] = shown, width = to - from, middle = (from + to) / 2;
    if (zoom === "all") look(0, LENGTH_MS);
    else if (zoom === "step") look(...STEP);
    else if (zoom) look(middle - width * zoom / 2, middle + width * zoom / 2);
    else if (move) look(from + width * move, to + width * move);
  }

  // ------------------------------------------------------------------ memory and roofline

  // What the chart shows of the peak: its size, and who held most of it.
  function peakWords(device, size) {
    const held = device.holders.length ? device.holders : device.owners.map((one) => ({ place: one.line, size: sizeWords(one.size_bytes) }));
    const names = held.slice(0, 3).map((one) => `${one.place} ${one.size}`);
    return [`peak ${sizeWords(size)}`, ...(size >= 0.98 * device.peak_bytes ? names : [])];
  }

  function memoryLayout(device, unit, more) {
    const capacity = device.capacity_bytes, near = capacity && capacity <= 2.5 * device.peak_bytes;
    const of = capacity && !near ? ` of ${sizeWords(capacity)}` : "";
    return {
      height: 320, levels: near ? [{ y: capacity / unit[0], words: `${sizeWords(capacity)} for tensors` }] : [],
      yaxis: { title: `memory of cuda:${device.device} (${unit[1]}${of})` }, ...more,
    };
  }

  function memoryAreas(part, times, unit) {
    const known = CATEGORIES.filter((name) => name in part.categories);
    const names = [...known, ...Object.keys(part.categories).filter((name) => !CATEGORIES.includes(name))];
    const tint = (name) => MEMORY_COLOURS.at(CATEGORIES.indexOf(name)); // the last is everything else's
    return names.map((name) => ({
      kind: "area", name, colour: tint(name), x: times, y: part.categories[name].map((size) => size / unit[0]),
      tips: part.categories[name].map(sizeWords),
    }));
  }

  function drawMemory(chart) {
    const device = data.memory[chart.dataset.index];
    const unit = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].find(([size]) => device.peak_bytes >= 2 * size) || [1, "B"];
    const step = device.step;
    if (step && chart.dataset.shows !== "whole") {
      const peak = { x: step.peak.at, lines: peakWords(device, step.peak.size_bytes), strong: true };
      drawChart(chart, memoryAreas(step, step.times, unit), memoryLayout(device, unit, {
        marks: [...step.borders.map(({ at, words }) => ({ x: at, words })), peak],
        xaxis: { title: `allocations and frees of step ${step.number}, in order`, range: [0, Math.max(1, step.times.at(-1))] },
      }));
      return;
    }
    const long = device.by_time && device.times.at(-1) >= 1e4; // milliseconds
    const at = (time) => (long ? time / 1e3 : time), times = device.times.map(at);
    const marks = device.peaks.map((peak) => ({ x: at(peak.at), lines: peakWords(device, peak.size_bytes), strong: true }));
    drawChart(chart, memoryAreas(device, times, unit), memoryLayout(device, unit, {
      marks,
      xaxis: {
        title: device.by_time ? `host's time since the first operation (${long ? "s" : "ms"})` : "allocation or free, by its number",
        unit: device.by_time ? (long ? "s" : "ms") : "", range: [times[0], Math.max(at(device.by_time ? LENGTH_MS : 1), times.at(-1))],
      },
    }));
  }

  function onMemoryButton(event) {
    const { shows, chart } = event.target.dataset;
    if (!shows) return;
    const element = document.querySelector(`.memory-chart[data-index="${chart}"]`);
    element.dataset.shows = shows;
    drawMemory(element);
  }

  function drawRoofline(chart) {
    const { points, peaks, bandwidth_bytes_per_s: bandwidth, gpu } = data.roofline;
    const intensities = points.map((point) => point.intensity);
    const low = Math.min(0.05, ...intensities) / 2, high = Math.max(100, ...intensities) * 2;
    const traces = Object.entries(peaks).map(([name, peak]) => {
      const ridge = bandwidth ? peak / bandwidth : low;
      return {
        kind: "line", name: `${name} peak`, colour: name, dash: "4 3", x: [low, Math.max(low, ridge), Math.max(high, ridge)],
        y: [bandwidth ? low * bandwidth / 1e12 : peak / 1e12, peak / 1e12, peak / 1e12],
      };
    });
    traces.push({
      kind: "points", name: "kernels", colour: "kernel", x: intensities, y: points.map((point) => point.flops_per_s / 1e12),
      sizes: points.map((point) => 7 + 16 * Math.sqrt(point.duration_ns / points[0].duration_ns)),
      tips: points.map((point) => `${point.name}\n${point.times} times, ${words(point.duration_ns)}\n${(point.flops_per_s / 1e12).toPrecision(3)} TFLOP/s at ${point.intensity.toPrecision(3)} FLOP per byte`),
    });
    const furthest = Math.max(high, ...traces.flatMap((trace) => trace.x));
    drawChart(chart, traces, {
      height: 360, xaxis: { type: "log", title: `arithmetic per byte on ${gpu} (FLOP per byte)`, range: [low, furthest] },
      yaxis: { type: "log", title: "speed (TFLOP/s)" },
    });
  }

  // ------------------------------------------------------------------ drawing, when a chart comes into view

  const charts = new Map();
  if (timelineChart) charts.set(timelineChart, drawTimeline);
  document.querySelectorAll(".memory-chart").forEach((chart) => charts.set(chart, drawMemory));
  document.querySelectorAll("#roofline-chart").forEach((chart) => charts.set(chart, drawRoofline));
  const drawn = new Set();

  function draw(chart) {
    drawn.add(chart);
    charts.get(chart)(chart);
  }

  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { watch.unobserve(entry.target); draw(entry.target); }
  }, { rootMargin: "400px" });

  if (timelineChart) timelineChart.style.height = timelineHeight() + "px";
  charts.forEach((_, chart) => watch.observe(chart));
  document.querySelector("#timeline .buttons")?.addEventListener("click", onButton);
  document.querySelector("#memory")?.addEventListener("click", onMemoryButton);
  const open = (details) => { if (details) details.open = true; };
  addEventListener("beforeprint", () => {
    document.querySelectorAll("main > details").forEach(open);
    charts.forEach((_, chart) => draw(chart));
  });
  const unfold = () => open(location.hash.length > 1 ? document.getElementById(location.hash.slice(1))?.closest("details") : null);
  addEventListener("hashchange", unfold);
  unfold();
  const again = () => drawn.forEach((chart) => charts.get(chart)(chart));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; again(); } });
})();
