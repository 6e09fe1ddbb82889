// The charts of all pages: lines with marks and intervals as SVG, and similarities as squares.
// Every text goes in as text. A line is one stop of the Tab key; arrows walk its points, Enter picks one.
"use strict";

oddlm.charts = (() => {
  const { el, svg } = oddlm;
  const MARGIN = { left: 46, right: 14 };
  const REACH = 24; // pixels from the pointer to a point that it means

  const polygon = (...corners) => (x, y, r) => svg("polygon", { class: "mark", points: corners.map(([a, b]) => `${x + a * r},${y + b * r}`).join(" ") });
  const MARKS = [
    (x, y, r) => svg("circle", { class: "mark", cx: x, cy: y, r: 0.9 * r }),
    polygon([-0.85, -0.85], [0.85, -0.85], [0.85, 0.85], [-0.85, 0.85]),
    polygon([0, -1.2], [1.2, 0], [0, 1.2], [-1.2, 0]),
    polygon([0, -1.1], [1.1, 0.9], [-1.1, 0.9]),
    polygon([0, 1.1], [1.1, -0.9], [-1.1, -0.9]),
    polygon([-1, -0.4], [-0.4, -0.4], [-0.4, -1], [0.4, -1], [0.4, -0.4], [1, -0.4], [1, 0.4], [0.4, 0.4], [0.4, 1], [-0.4, 1], [-0.4, 0.4], [-1, 0.4]),
    polygon([0, -1.2], [1.1, -0.2], [0.7, 1.1], [-0.7, 1.1], [-1.1, -0.2]),
  ];

  const mark = (slot, x, y) => MARKS[Math.max(0, slot) % MARKS.length](x, y, 4);

  // A slot has a colour, a mark and a dash of its own; -1 is the ink of the page.
  const look = ({ slot, dashed }) => `series ${slot < 0 ? "ink" : `s${slot % 6}`}${dashed ? " dashed" : slot > 5 ? " dotted" : ""}`;

  // An axis over these values, with a little room around them but not beyond `floor` and `ceiling`.
  function range(values, { floor = -Infinity, ceiling = Infinity, ticks = 5 } = {}) {
    const least = Math.min(...values), most = Math.max(...values);
    const spare = (most - least || Math.abs(most) || 1) * 0.06;
    const low = Math.max(floor, least - spare), high = Math.min(ceiling, most + spare);
    const rough = (high - low) / ticks, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].find((one) => one * power >= rough) * power;
    const named = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) {
      const value = Number((i * step).toPrecision(8));
      named.push([value, String(value)]);
    }
    return { low, high, ticks: named };
  }

  // An axis with these values named, [value, words]; `log` spaces them by their logarithm.
  function stops(ticks, { log = false } = {}) {
    const values = ticks.map(([value]) => value), low = Math.min(...values), high = Math.max(...values);
    return low === high ? { low: low - 1, high: high + 1, ticks, inset: 14 } : { low, high, ticks, log, inset: 14 };
  }

  // Whole numbers from 1 to `most`: the ends and the quarters are named.
  const counts = (most) => stops([...new Set([1, ...[1, 2, 3].map((i) => Math.round((i * most) / 4)), most])].filter((k) => k > 0).map((k) => [k, String(k)]));

  function scale({ low, high, log, inset = 0 }, from, to) {
    const along = log ? Math.log2 : (value) => value;
    const start = from + Math.sign(to - from) * inset, size = to - from - 2 * Math.sign(to - from) * inset;
    return (value) => start + (size * (along(value) - along(low))) / (along(high) - along(low));
  }

  let tip = null;
  function say(words, place) {
    if (!tip && !words) return;
    if (!tip) document.body.append(tip = el("div", { id: "tip", role: "status", hidden: true }));
    tip.hidden = !words;
    if (!words) return;
    tip.textContent = words;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(place.left + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${place.top + box.height + 24 > innerHeight ? place.top - box.height - 8 : place.top + 16}px`;
  }

  // title: words above it, or none. label: what it is, for those who cannot see it. x and y: axes, x with a label.
  // lines: {name, slot, dashed, thick, marks, band, summary, points}; a point: {x, y, low, high, mark, words}.
  // pick(point): what a click or Enter does. across: the nearest point is looked for along x alone, however far.
  class LineChart {
    constructor({ width, height, title, label, x, y, lines, pick, across = false }) {
      this.box = { left: MARGIN.left, right: width - MARGIN.right, top: title ? 24 : 10, bottom: height - (x.label ? 36 : 22) };
      const { left, right, top, bottom } = this.box;
      this.x = scale(x, left, right);
      this.y = scale(y, bottom, top);
      this.pick = pick;
      this.across = across;
      this.size = { width, height };
      this.cursor = svg("line", { class: "cursor", y1: top, y2: bottom, visibility: "hidden" });
      this.ring = svg("circle", { class: "ring", r: 6, visibility: "hidden" });
      this.lines = lines.filter((line) => line.points.length).map((line) => this.line(line));
      this.element = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label },
        this.axes(x, y), title ? svg("text", { class: "title", x: left, y: 14 }, title) : null, this.cursor, this.lines.map((line) => line.group), this.ring);
      say(""); // it may be of the chart that this one replaces
      this.element.addEventListener("pointermove", (event) => this.point(this.nearest(event)));
      this.element.addEventListener("pointerleave", () => this.point(null));
      this.element.addEventListener("click", (event) => {
        const found = this.nearest(event);
        if (found && pick) pick(found.line.points[found.at]);
      });
    }

    axes(x, y) {
      const { left, right, bottom } = this.box;
      const text = (px, py, anchor, words) => svg("text", { x: px, y: py, "text-anchor": anchor }, words);
      return [
        y.ticks.map(([value, words]) => [svg("line", { class: "grid", x1: left, x2: right, y1: this.y(value), y2: this.y(value) }), text(left - 6, this.y(value) + 4, "end", words)]),
        x.ticks.map(([value, words]) => text(this.x(value), bottom + 15, "middle", words)),
        svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
        x.label ? text((left + right) / 2, bottom + 31, "middle", x.label) : null,
      ];
    }

    line(given) {
      const points = given.points.map((point) => ({ ...point, px: this.x(point.x), py: this.y(point.y) }));
      const known = points.filter(({ low, high }) => low !== null && low !== undefined && high !== null && high !== undefined);
      const path = (some, value) => some.map((point) => `${point.px},${value(point)}`).join(" ");
      const band = given.band && known.length > 1 && svg("polygon", { class: "band", points: `${path(known, (p) => this.y(p.high))} ${path([...known].reverse(), (p) => this.y(p.low))}` });
      const spans = given.band ? [] : known.map((point) => svg("line", { class: "span", x1: point.px, x2: point.px, y1: this.y(point.low), y2: this.y(point.high) }));
      const marks = given.marks ? points.filter((point) => point.mark !== false).map((point) => mark(given.slot, point.px, point.py)) : [];
      const group = svg("g", {
        class: look(given), tabindex: 0, role: this.pick ? "button" : "img",
        "aria-label": `${given.name}: ${given.summary || points.map((point) => point.words).join("; ")}`,
      }, band || null, svg("polyline", { class: "line", points: path(points, (p) => p.py) }), spans, marks);
      group.style.setProperty("--thick", String(given.thick ?? 1));
      const line = { name: given.name, group, points, at: points.length - 1 };
      group.addEventListener("focus", () => this.point({ line, at: line.at }));
      group.addEventListener("blur", () => this.point(null));
      group.addEventListener("keydown", (event) => this.key(event, line));
      return line;
    }

    key(event, line) {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by) this.point({ line, at: Math.max(0, Math.min(line.points.length - 1, line.at + by)) });
      else if ((event.key === "Enter" || event.key === " ") && this.pick) this.pick(line.points[line.at]);
      else if (event.key === "Escape") this.point(null);
      else return;
      event.preventDefault();
      event.stopPropagation();
    }

    // The point that the pointer means, {line, at}; null where it is far from all.
    nearest(event) {
      const edge = this.element.getBoundingClientRect();
      const x = ((event.clientX - edge.left) / edge.width) * this.size.width, y = ((event.clientY - edge.top) / edge.height) * this.size.height;
      let found = null, least = this.across ? Infinity : REACH ** 2;
      for (const line of this.lines) {
        line.points.forEach((point, at) => {
          const far = (point.px - x) ** 2 * (this.across ? 1e6 : 1) + (point.py - y) ** 2;
          if (far < least) { found = { line, at }; least = far; }
        });
      }
      return found;
    }

    point(found) {
      for (const line of this.lines) line.group.classList.toggle("near", found !== null && line === found.line);
      this.element.classList.toggle("picks", found !== null && Boolean(this.pick));
      this.ring.setAttribute("visibility", found ? "visible" : "hidden");
      if (!found) { say(""); return; }
      found.line.at = found.at;
      const point = found.line.points[found.at], edge = this.element.getBoundingClientRect();
      this.ring.setAttribute("cx", point.px);
      this.ring.setAttribute("cy", point.py);
      say(`${found.line.name}\n${point.words}`, {
        left: edge.left + (point.px * edge.width) / this.size.width, top: edge.top + (point.py * edge.height) / this.size.height,
      });
    }

    // A dashed line at this x.
    moveCursor(value) {
      for (const name of ["x1", "x2"]) this.cursor.setAttribute(name, this.x(value));
      this.cursor.setAttribute("visibility", "visible");
    }
  }

  // What the lines are: {name, slot, dashed, marks}; a hint may follow.
  function legend(entries, hint) {
    return el("ul", { class: "key" }, entries.map((entry) => el("li", {},
      svg("svg", { viewBox: "0 0 34 12", "aria-hidden": "true" },
        svg("g", { class: look(entry) }, svg("polyline", { class: "line", points: "1,6 33,6" }), entry.marks ? mark(entry.slot, 17, 6) : null)),
      entry.name)), hint ? el("li", { class: "quiet" }, hint) : null);
  }

  // How similar every two samples are, as squares: the darker, the more.
  class Matrix {
    constructor(title) {
      this.canvas = el("canvas", { tabindex: "0", role: "img", width: 384, height: 384 });
      this.words = el("p", { class: "quiet", "aria-live": "polite" });
      this.element = el("figure", { class: "figure matrix" }, el("figcaption", {}, el("b", {}, title), " similarity of each pair of samples"), this.canvas, this.words);
      this.picked = null;
      this.canvas.addEventListener("pointermove", (event) => {
        const edge = this.canvas.getBoundingClientRect();
        this.pick(Math.floor(((event.clientX - edge.left) / edge.width) * this.n), Math.floor(((event.clientY - edge.top) / edge.height) * this.n));
      });
      this.canvas.addEventListener("pointerleave", () => this.pick(null));
      this.canvas.addEventListener("keydown", (event) => {
        const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
        if (!by) return;
        event.preventDefault();
        event.stopPropagation();
        const [a, b] = this.picked || [0, 0];
        this.pick(a + by[0], b + by[1]);
      });
      document.addEventListener("theme", () => this.values && this.draw());
    }

    // similarity(a, b): from 0 to 1, of two of the n samples.
    show(n, similarity) {
      this.n = n;
      this.values = Array.from({ length: n }, () => new Float32Array(n).fill(1));
      let sum = 0;
      for (let a = 0; a < n; a++) {
        for (let b = 0; b < a; b++) sum += this.values[a][b] = this.values[b][a] = similarity(a, b);
      }
      this.mean = n > 1 ? sum / ((n * (n - 1)) / 2) : 1;
      this.canvas.setAttribute("aria-label", `Similarity of ${n} samples, ${oddlm.percent(this.mean)} on average; arrow keys move between pairs`);
      this.draw();
      this.pick(null);
    }

    draw() {
      const pen = this.canvas.getContext("2d"), side = this.canvas.width / this.n;
      const style = getComputedStyle(this.canvas);
      pen.globalAlpha = 1;
      pen.fillStyle = style.backgroundColor;
      pen.fillRect(0, 0, this.canvas.width, this.canvas.height);
      pen.fillStyle = style.color;
      this.values.forEach((row, a) => row.forEach((value, b) => {
        pen.globalAlpha = 0.06 + 0.94 * value;
        const [left, top, right, bottom] = [b, a, b + 1, a + 1].map((i) => Math.floor(i * side));
        pen.fillRect(left, top, Math.max(1, right - left - 2), Math.max(1, bottom - top - 2));
      }));
    }

    pick(a, b) {
      const inside = (i) => Number.isInteger(i) && i >= 0 && i < this.n;
      if (a !== null && (!inside(a) || !inside(b))) return;
      this.picked = a === null ? null : [a, b];
      this.words.textContent = a === null
        ? `on average, two samples share ${oddlm.percent(this.mean)} of their tokens`
        : `samples ${a + 1} and ${b + 1} share ${oddlm.percent(this.values[a][b])} of their tokens`;
    }
  }

  return { LineChart, Matrix, legend, range, stops, counts };
})();
