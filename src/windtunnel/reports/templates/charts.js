"use strict";
// A few hundred lines instead of a library of megabytes: bars on lanes or beside names, stacked areas, lines and points,
// as SVG. A colour is a CSS colour or one of TINTS, which mean the same on every page.
// drawChart(element, traces, layout) draws anew; element.data and element.layout hold what is shown.
const drawChart = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const LETTER = 6.6; // pixels of a letter at 12 px, on average
  const WIDE = 560; // pixels from which on points have their names beside them
  const TINTS = {
    kernel: "#3d7edb", copy: "#e08a1e", collective: "#9b5de5", wait: "#c9463d", host: "#7a8796", launch: "#2a9d6f",
    data: "#a8651a", forward: "#2f7f8a", backward: "#6a5aa8", optimizer: "#8a6d1f", gpu: "#3d7edb", cpu: "#7a8796",
    fp64: "#c9463d", fp32: "#2a9d6f", tf32: "#9b5de5", fp16: "#e08a1e", bf16: "#4fb3bf", fp8: "#b5739d",
    first: "#3d7edb", second: "#e08a1e", third: "#2a9d6f", fourth: "#9b5de5", fifth: "#c9463d", sixth: "#c2a83e", seventh: "#4fb3bf", eighth: "#b5739d",
  };
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // "reference" is what is compared with, "best" what is recommended; both follow the reader's theme.
  const tint = (name) => TINTS[name] || (name === "reference" ? css("--dim") : name === "best" ? css("--accent") : name);

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
    for (let k = Math.ceil(from / step - 1e-9); k * step <= to + step * 1e-9; k++) ticks.push(k * step + 0); // not -0
    const digits = Math.max(0, Math.min(9, -Math.floor(Math.log10(step) + 1e-9)));
    return ticks.map((value) => [value, value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })]);
  }

  function logTicks(from, to, most) {
    const low = Math.ceil(Math.log10(from) - 1e-9), high = Math.floor(Math.log10(to) + 1e-9);
    const each = Math.max(1, Math.ceil((high - low + 1) / most));
    const ticks = [], words = (value) => value.toLocaleString("en", { maximumSignificantDigits: 3, maximumFractionDigits: 9 });
    if (high - low < 2) {
      for (let power = low - 1; power <= high; power++)
        for (const digit of [1, 2, 5]) ticks.push(Number(`${digit}e${power}`));
      return thinned(ticks.filter((value) => value >= from && value <= to), most).map((value) => [value, words(value)]);
    }
    for (let power = low; power <= high; power += each) ticks.push([10 ** power, words(Number(`1e${power}`))]);
    return ticks;
  }

  const thinned = (ticks, most) => {
    const each = Math.max(1, Math.ceil(ticks.length / Math.max(1, most)));
    return ticks.filter((_, i) => i % each === 0);
  };

  function ticksOf(axis, most) {
    if (!axis.ticks) return (axis.type === "log" ? logTicks : niceTicks)(...axis.range, most);
    const [from, to] = axis.range, slack = axis.type === "log" ? 0 : 1e-9 * (to - from);
    return thinned(axis.ticks.filter(([value]) => value >= from - slack && value <= to + slack), most);
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
    const levels = (layout.levels || []).map((level) => level.y);
    for (const value of [...sums, ...others, ...levels]) if (value !== null) { high = Math.max(high, value); low = Math.min(low, value); }
    return layout.yaxis.type === "log" ? [low / 2, high * 2] : [0, 1.08 * high || 1];
  };

  function legend(element, traces) {
    const list = document.createElement("ul");
    list.className = "legend";
    for (const trace of traces) {
      if (!trace.name || trace.unlisted) continue;
      const item = document.createElement("li"), swatch = document.createElement("span");
      swatch.style.background = tint(trace.colour);
      if (trace.kind === "line") {
        swatch.className = "stroke";
        swatch.style.background = "none";
        swatch.style.borderTop = `2px ${trace.dash ? "dashed" : "solid"} ${tint(trace.colour)}`;
      }
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
        height: 0.7 * each, fill: tint(trace.colour), "fill-opacity": trace.opacity?.[i] ?? 1, "data-tip": trace.tips[i],
      };
      if (right >= left) make("rect", attributes, plot);
      const name = trace.names?.[i] || "", room = Math.floor((right - left - 8) / LETTER);
      if (name && room >= Math.min(4, name.length)) {
        const words = name.length <= room ? name : `${name.slice(0, room - 1)}…`;
        text(plot, words, left + 4, attributes.y + 0.35 * each + 4, { fill: "#ffffff", "pointer-events": "none", class: "inside" });
      }
    });
  }

  function areas(plot, traces, x, y) {
    const below = traces.length ? traces[0].x.map(() => 0) : [];
    for (const trace of traces) {
      const above = below.map((value, i) => value + trace.y[i]);
      const path = (values) => values.map((value, i) => `${i ? `H${x(trace.x[i]).toFixed(1)}V` : `M${x(trace.x[0]).toFixed(1)},`}${y(value).toFixed(1)}`).join("");
      const back = below.map((value, i) => [x(trace.x[i]).toFixed(1), y(value).toFixed(1)]).reverse();
      const floor = back.map(([at, height], i) => `${i ? `H${at}` : `L${at},${height}`}${i + 1 < back.length ? `V${back[i + 1][1]}` : ""}`).join("");
      make("path", { d: `${path(above)}${floor}Z`, fill: tint(trace.colour), "fill-opacity": 0.85, class: "area" }, plot);
      above.forEach((value, i) => { below[i] = value; });
    }
    if (traces.length) make("path", { d: outline(traces[0].x.map(x), below.map(y)), fill: "none", stroke: css("--dim"), class: "total" }, plot);
  }

  // The highest point of each column of pixels, so that a peak narrower than one is seen and a dense stretch stays light.
  function outline(lefts, tops) {
    const columns = new Map();
    lefts.forEach((left, i) => {
      const column = Math.round(left);
      columns.set(column, { top: Math.min(tops[i], columns.get(column)?.top ?? Infinity), last: tops[i] });
    });
    let path = "", before = null;
    for (const [column, { top, last }] of columns) {
      if (before && column > before.column + 1) path += `V${before.last.toFixed(1)}`;
      path += before ? `H${column}V${top.toFixed(1)}` : `M${column},${top.toFixed(1)}`;
      before = { column, last };
    }
    return path;
  }

  function others(plot, trace, x, y) {
    const colour = tint(trace.colour), there = trace.x.map((_, i) => i).filter((i) => trace.y[i] !== null);
    if (trace.kind === "line") {
      const d = there.map((i, k) => {
        const [left, height] = [x(trace.x[i]).toFixed(1), y(trace.y[i]).toFixed(1)];
        if (!k || there[k - 1] !== i - 1) return `M${left},${height}`; // a gap is not drawn over
        return trace.stepped ? `H${left}V${height}` : `L${left},${height}`;
      }).join("");
      make("path", { d, fill: "none", stroke: colour, "stroke-width": 1.8, "stroke-dasharray": trace.dash || "none" }, plot);
      if (!trace.marks) return;
    }
    for (const i of there) {
      errors(plot, trace, i, x, y);
      make("circle", {
        cx: x(trace.x[i]), cy: y(trace.y[i]), r: (trace.sizes?.[i] ?? (trace.marks ? 7 : 8)) / 2, fill: colour,
        "fill-opacity": trace.marks ? 1 : 0.75, "data-tip": trace.tips?.[i] ?? "",
      }, plot);
    }
  }

  // Bands, given as [from, to] along each axis.
  function errors(plot, trace, i, x, y) {
    const line = (x1, x2, y1, y2) => make("line", { x1, x2, y1, y2, stroke: tint(trace.colour), "stroke-opacity": 0.55, "stroke-width": 1.2 }, plot);
    if (trace.spanX) line(...trace.spanX[i].map(x), y(trace.y[i]), y(trace.y[i]));
    if (trace.spanY) line(x(trace.x[i]), x(trace.x[i]), ...trace.spanY[i].map(y));
  }

  // Names of points, those of the later traces first, where they cover neither one another nor other points.
  function nameThem(plot, traces, x, y, box) {
    const taken = [], points = traces.filter((trace) => trace.labels);
    const free = (area) => taken.every(([l, r, t, b]) => area[1] < l || area[0] > r || area[3] < t || area[2] > b);
    for (const trace of points) trace.x.forEach((value, i) => taken.push([x(value) - 4, x(value) + 4, y(trace.y[i]) - 4, y(trace.y[i]) + 4]));
    for (const trace of [...points].reverse())
      trace.labels.forEach((words, i) => {
        const at = x(trace.x[i]), height = y(trace.y[i]), length = words.length * LETTER;
        for (const [left, anchor] of [[at + 8, "start"], [at - 8 - length, "end"]])
          for (const lift of [-6, 14]) {
            const area = [left, left + length, height + lift - 11, height + lift + 3];
            if (left < box.left || left + length > box.right || area[2] < box.top || area[3] > box.bottom || !free(area)) continue;
            taken.push(area);
            text(plot, words, anchor === "start" ? left : at - 8, height + lift, { "text-anchor": anchor, fill: css("--ink"), class: "label" });
            return;
          }
      });
  }

  // Bars beside names: the name on a line of its own above them, so that a phone has room for both.
  const NAME = 20, BAR = 16, BETWEEN = 10;

  function named(element, traces, layout) {
    const width = Math.max(240, element.clientWidth), each = NAME + BAR * traces.length + BETWEEN;
    const height = each * layout.names.length + 46, axis = layout.xaxis;
    const svg = make("svg", { width, height, class: "plot-container", "aria-hidden": "true" }, element);
    const box = { left: 2, right: width - 74, top: 2, bottom: height - 46 };
    const x = scale(axis, box.left, box.right);
    for (const [value, words] of ticksOf(axis, (box.right - box.left) / 80)) {
      make("line", { x1: x(value), x2: x(value), y1: box.top, y2: box.bottom, stroke: css("--grid") }, svg);
      text(svg, words, x(value), box.bottom + 16, { "text-anchor": x(value) < 20 ? "start" : "middle" });
    }
    text(svg, axis.title, (box.left + box.right) / 2, box.bottom + 36, { "text-anchor": "middle", class: "axis-title" });
    layout.names.forEach((name, row) => {
      const top = box.top + each * row;
      text(svg, name, box.left, top + 15, { fill: css("--ink") });
      traces.forEach((trace, number) => {
        const value = trace.values[row];
        if (value === null) return;
        const end = Math.max(box.left + 1, x(value)), from = top + NAME + BAR * number;
        make("rect", { x: box.left, y: from, width: end - box.left, height: BAR - 3, fill: tint(trace.colour), "data-tip": trace.tips[row] }, svg);
        text(svg, trace.texts[row], end + 6, from + 11, { fill: css("--ink"), class: "label" });
      });
    });
    tips(element, svg, layout, box, [], 0, 1);
  }

  function frame(svg, layout, box, x, y, lanes) {
    const grid = css("--grid"), { left, right, top, bottom } = box;
    for (const [value, words] of ticksOf(layout.xaxis, (right - left) / 75)) {
      make("line", { x1: x(value), x2: x(value), y1: top, y2: bottom, stroke: grid }, svg);
      text(svg, words, x(value), bottom + 16, { "text-anchor": "middle" });
    }
    text(svg, layout.xaxis.title, (left + right) / 2, bottom + 36, { "text-anchor": "middle", class: "axis-title" });
    if (lanes) {
      const each = (bottom - top) / lanes.length;
      lanes.forEach((name, i) => text(svg, name, left - 8, top + each * (i + 0.5) + 4, { "text-anchor": "end" }));
    } else {
      for (const [value, words] of ticksOf(layout.yaxis, (bottom - top) / 44)) {
        make("line", { x1: left, x2: right, y1: y(value), y2: y(value), stroke: grid }, svg);
        text(svg, words, left - 8, y(value) + 4, { "text-anchor": "end" });
      }
      text(svg, layout.yaxis.title, 0, 0, { "text-anchor": "middle", class: "axis-title", transform: `translate(12 ${(top + bottom) / 2}) rotate(-90)` });
    }
  }

  // Borders have their names above the plot, as far as there is room; a strong mark has lines of words beside it.
  function marks(svg, layout, box, x, y) {
    let free = -Infinity;
    for (const mark of layout.marks || []) {
      const at = x(mark.x);
      if (at < box.left - 1 || at > box.right + 1) continue;
      make("line", { x1: at, x2: at, y1: mark.strong ? box.top : box.top - 16, y2: box.bottom, stroke: css(mark.strong ? "--ink" : "--dim"), "stroke-dasharray": mark.strong ? "3 3" : "1 3" }, svg);
      if (!mark.strong && at >= free && at + mark.words.length * LETTER <= box.right + 10) {
        text(svg, mark.words, at + 4, box.top - 6, { class: "border" });
        free = at + (mark.words.length + 2) * LETTER;
      }
      if (mark.strong) beside(svg, mark.lines, at, box);
    }
    for (const level of layout.levels || []) {
      const at = y(level.y);
      make("line", { x1: box.left, x2: box.right, y1: at, y2: at, stroke: css("--error"), "stroke-width": 1.5, class: "level" }, svg);
      text(svg, level.words, box.left + 6, at - 5, { fill: css("--error"), class: "level-name" });
    }
  }

  function beside(svg, lines, at, box) {
    const end = at > (box.left + box.right) / 2, longest = Math.max(...lines.map((words) => words.length)) * LETTER;
    const room = end ? at - box.left - 6 : box.right - at - 6, most = Math.floor(room / LETTER);
    const width = Math.min(longest, room) + 8;
    make("rect", { x: end ? at - 4 - width : at + 4, y: box.top + 2, width, height: 15 * lines.length + 6, rx: 3, fill: css("--back"), "fill-opacity": 0.85, "pointer-events": "none" }, svg);
    lines.forEach((words, i) => {
      const shown = words.length <= most ? words : `${words.slice(0, Math.max(1, most - 1))}…`;
      text(svg, shown, at + (end ? -8 : 8), box.top + 15 + 15 * i, { "text-anchor": end ? "end" : "start", fill: css("--ink"), "pointer-events": "none", class: "mark" });
    });
  }

  function tips(element, svg, layout, box, traces, from, to) {
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    element.append(tip);
    const stacked = traces.filter((trace) => trace.kind === "area");
    const show = (event) => {
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
    };
    svg.addEventListener("pointermove", show);
    svg.addEventListener("pointerdown", show); // a finger touches, and does not move
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

  const draw = (element, traces, layout) => {
    element.data = traces;
    element.layout = layout;
    element.replaceChildren();
    if (traces.length > 1) legend(element, traces);
    if (layout.names) return named(element, traces, layout);
    const width = Math.max(240, element.clientWidth), height = layout.height;
    layout.yaxis.range = yRange(traces, layout);
    const lanes = layout.yaxis.lanes;
    const labels = lanes || ticksOf(layout.yaxis, (height - 60) / 44).map(([, words]) => words);
    const left = Math.max(...labels.map((words) => words.length), 2) * LETTER + (lanes ? 14 : 34);
    const bordered = (layout.marks || []).some((mark) => !mark.strong);
    const box = { left, right: width - 14, top: bordered ? 26 : 10, bottom: height - 46 };
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
    if (width >= WIDE) nameThem(svg, traces, x, y, box);
    marks(svg, layout, box, x, y);
    tips(element, svg, layout, box, traces, from, to);
    zooming(element, svg, layout, box, from, to);
  };
  draw.tint = tint;
  return draw;
})();
