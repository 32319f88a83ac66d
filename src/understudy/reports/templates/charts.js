"use strict";
// A few hundred lines instead of a library of megabytes: bars on lanes, stacked areas, lines and points, as SVG.
// drawChart(element, traces, layout) draws anew; element.data and element.layout hold what is shown.
const drawChart = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const LETTER = 6.6; // pixels of a letter at 12 px, on average
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function make(name, attributes, parent) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent.append(element);
    return element;
  }

  function text(parent, words, x, y, more = {}) {
    const element = make("text", { x, y, fill: css("--dim"), "font-size": 12, ...more }, parent);
    element.textContent = words;
    return element;
  }

  function niceTicks(from, to, most) {
    const rough = (to - from) / Math.max(1, most) || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough);
    const ticks = [];
    for (let k = Math.ceil(from / step - 1e-9); k * step <= to + step * 1e-9; k++) ticks.push(k * step);
    const digits = Math.max(0, Math.min(9, -Math.floor(Math.log10(step) + 1e-9)));
    return ticks.map((value) => [value, value.toFixed(digits)]);
  }

  function logTicks(from, to, most) {
    const low = Math.ceil(Math.log10(from) - 1e-9), high = Math.floor(Math.log10(to) + 1e-9);
    const each = Math.max(1, Math.ceil((high - low + 1) / most));
    const ticks = [];
    for (let power = low; power <= high; power += each) ticks.push([10 ** power, Number(`1e${power}`).toLocaleString("en", { maximumSignificantDigits: 3, maximumFractionDigits: 9 })]);
    return ticks;
  }

  function scale(axis, low, high) {
    const change = axis.type === "log" ? Math.log10 : (value) => value;
    const [from, to] = axis.range.map(change);
    return (value) => low + (high - low) * (change(value) - from) / (to - from || 1);
  }

  const yRange = (traces, layout) => {
    if (layout.yaxis.range) return layout.yaxis.range;
    const stacked = traces.filter((trace) => trace.kind === "area");
    const sums = stacked.length ? stacked[0].y.map((_, i) => stacked.reduce((sum, trace) => sum + trace.y[i], 0)) : [];
    const others = traces.filter((trace) => trace.kind !== "area" && trace.kind !== "bar").flatMap((trace) => trace.y);
    let high = 0, low = Infinity;
    for (const value of [...sums, ...others]) { high = Math.max(high, value); low = Math.min(low, value); }
    return layout.yaxis.type === "log" ? [low / 2, high * 2] : [0, 1.08 * high || 1];
  };

  function legend(element, traces) {
    const list = document.createElement("ul");
    list.className = "legend";
    for (const trace of traces) {
      if (!trace.name) continue;
      const item = document.createElement("li"), swatch = document.createElement("span");
      swatch.style.background = trace.colour;
      item.append(swatch, trace.name);
      list.append(item);
    }
    element.append(list);
  }

  function bars(plot, trace, x, lanes, top, each, from, to) {
    trace.x.forEach((length, i) => {
      const left = x(Math.max(from, trace.base[i])), right = x(Math.min(to, trace.base[i] + length));
      const attributes = {
        x: left, y: top + each * lanes.indexOf(trace.y[i]) + 0.15 * each, width: Math.max(0.5, right - left),
        height: 0.7 * each, fill: trace.colour, "fill-opacity": trace.opacity[i], "data-tip": trace.tips[i],
      };
      if (right >= left) make("rect", attributes, plot);
    });
  }

  function areas(plot, traces, x, y) {
    const below = traces.length ? traces[0].x.map(() => 0) : [];
    for (const trace of traces) {
      const above = below.map((value, i) => value + trace.y[i]);
      const path = (values) => values.map((value, i) => `${i ? `H${x(trace.x[i]).toFixed(1)}V` : `M${x(trace.x[0]).toFixed(1)},`}${y(value).toFixed(1)}`).join("");
      const back = below.map((value, i) => [x(trace.x[i]).toFixed(1), y(value).toFixed(1)]).reverse();
      const floor = back.map(([at, height], i) => `${i ? `H${at}` : `L${at},${height}`}${i + 1 < back.length ? `V${back[i + 1][1]}` : ""}`).join("");
      make("path", { d: `${path(above)}${floor}Z`, fill: trace.colour, "fill-opacity": 0.85, class: "area" }, plot);
      above.forEach((value, i) => { below[i] = value; });
    }
  }

  function others(plot, trace, x, y) {
    if (trace.kind === "line") {
      const d = trace.x.map((value, i) => `${i ? "L" : "M"}${x(value).toFixed(1)},${y(trace.y[i]).toFixed(1)}`).join("");
      make("path", { d, fill: "none", stroke: trace.colour, "stroke-width": 1.5, "stroke-dasharray": trace.dash || "none" }, plot);
      return;
    }
    trace.x.forEach((value, i) => make("circle", {
      cx: x(value), cy: y(trace.y[i]), r: (trace.sizes?.[i] ?? 8) / 2, fill: trace.colour, "fill-opacity": 0.75, "data-tip": trace.tips?.[i] ?? "",
    }, plot));
  }

  function frame(svg, layout, box, x, y, lanes) {
    const grid = css("--grid"), { left, right, top, bottom } = box;
    const across = (right - left) / 90, log = layout.xaxis.type === "log";
    for (const [value, words] of (log ? logTicks : niceTicks)(...layout.xaxis.range, across)) {
      make("line", { x1: x(value), x2: x(value), y1: top, y2: bottom, stroke: grid }, svg);
      text(svg, words, x(value), bottom + 16, { "text-anchor": "middle" });
    }
    text(svg, layout.xaxis.title, (left + right) / 2, bottom + 36, { "text-anchor": "middle", class: "axis-title" });
    if (lanes) {
      const each = (bottom - top) / lanes.length;
      lanes.forEach((name, i) => text(svg, name, left - 8, top + each * (i + 0.5) + 4, { "text-anchor": "end" }));
    } else {
      for (const [value, words] of ticksOf(layout.yaxis, bottom - top)) {
        make("line", { x1: left, x2: right, y1: y(value), y2: y(value), stroke: grid }, svg);
        text(svg, words, left - 8, y(value) + 4, { "text-anchor": "end" });
      }
      text(svg, layout.yaxis.title, 0, 0, { "text-anchor": "middle", class: "axis-title", transform: `translate(12 ${(top + bottom) / 2}) rotate(-90)` });
    }
  }

  const ticksOf = (axis, height) => (axis.type === "log" ? logTicks : niceTicks)(...axis.range, height / 44);

  function marks(svg, layout, box, x, y) {
    for (const mark of layout.marks || []) {
      const at = x(mark.x), end = at > (box.left + box.right) / 2;
      make("line", { x1: at, x2: at, y1: box.top, y2: box.bottom, stroke: css("--ink"), "stroke-dasharray": "3 3" }, svg);
      text(svg, mark.words, at + (end ? -6 : 6), box.top + 12, { "text-anchor": end ? "end" : "start", fill: css("--ink"), class: "mark" });
    }
  }

  function tips(element, svg, layout, box, traces, from, to) {
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    element.append(tip);
    const stacked = traces.filter((trace) => trace.kind === "area");
    svg.addEventListener("pointermove", (event) => {
      const place = element.getBoundingClientRect(), left = event.clientX - place.left;
      let words = event.target.dataset?.tip || "";
      if (!words && stacked.length && left >= box.left && left <= box.right) {
        const value = from + (left - box.left) / (box.right - box.left) * (to - from);
        let i = stacked[0].x.findIndex((one) => one > value);
        i = Math.max(0, (i < 0 ? stacked[0].x.length : i) - 1);
        words = `at ${value.toPrecision(4)} ${layout.xaxis.unit || ""}\n` + stacked.map((trace) => `${trace.name} ${trace.tips[i]}`).reverse().join("\n");
      }
      tip.hidden = !words;
      tip.textContent = words;
      tip.style.left = `${Math.min(left + 12, place.width - tip.offsetWidth - 4)}px`;
      tip.style.top = `${event.clientY - place.top + 14}px`;
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; });
  }

  function zooming(element, svg, layout, box, from, to) {
    if (!layout.onZoom) return;
    let start = null, band = null;
    const clamp = (event) => Math.min(box.right, Math.max(box.left, event.clientX - svg.getBoundingClientRect().left));
    const value = (at) => from + (at - box.left) / (box.right - box.left) * (to - from);
    svg.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch") return; // a finger scrolls the page; the buttons zoom
      start = clamp(event);
      band = make("rect", { x: start, y: box.top, width: 0, height: box.bottom - box.top, fill: css("--accent"), "fill-opacity": 0.15, "pointer-events": "none" }, svg);
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => {
      if (start === null) return;
      band.setAttribute("x", Math.min(start, clamp(event)));
      band.setAttribute("width", Math.abs(clamp(event) - start));
    });
    svg.addEventListener("pointerup", (event) => {
      if (start === null) return;
      const [low, high] = [start, clamp(event)].sort((one, other) => one - other);
      start = null;
      band.remove();
      if (high - low > 4) layout.onZoom(value(low), value(high));
    });
    svg.addEventListener("dblclick", () => layout.onZoom(null));
  }

  return (element, traces, layout) => {
    element.data = traces;
    element.layout = layout;
    element.replaceChildren();
    legend(element, traces);
    const width = Math.max(240, element.clientWidth), height = layout.height;
    layout.yaxis.range = yRange(traces, layout);
    const lanes = layout.yaxis.lanes;
    const labels = lanes || ticksOf(layout.yaxis, height - 60).map(([, words]) => words);
    const left = Math.max(...labels.map((words) => words.length), 2) * LETTER + (lanes ? 14 : 34);
    const box = { left, right: width - 14, top: 10, bottom: height - 46 };
    const svg = make("svg", { width, height, class: "plot-container", "aria-hidden": "true" }, element);
    make("rect", { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top, fill: "transparent", class: "surface" }, svg);
    const x = scale(layout.xaxis, box.left, box.right), y = scale(layout.yaxis, box.bottom, box.top);
    const [from, to] = layout.xaxis.range;
    frame(svg, layout, box, x, y, lanes);
    const each = lanes ? (box.bottom - box.top) / lanes.length : 0;
    areas(svg, traces.filter((trace) => trace.kind === "area"), x, y);
    for (const trace of traces)
      if (trace.kind === "bar") bars(svg, trace, x, lanes, box.top, each, from, to);
      else if (trace.kind !== "area") others(svg, trace, x, y);
    marks(svg, layout, box, x, y);
    tips(element, svg, layout, box, traces, from, to);
    zooming(element, svg, layout, box, from, to);
  };
})();
