// Small charts, drawn here: lines over the steps, and which samples are alike.
"use strict";

// Lines over steps with a cursor. series: {name, className, values}.
oddlm.LineChart = class {
  static SIZE = { height: 120, left: 38, right: 8, top: 8, bottom: 24 };

  constructor(title, words, choose) {
    const { el, svg } = oddlm;
    this.drawing = svg("svg", { role: "img" });
    this.width = 320;
    this.drawing.addEventListener("click", (event) => this.choose(event, choose));
    this.key = el("p", { class: "key" });
    this.element = el("figure", { class: "chart" }, el("figcaption", {}, el("b", {}, title), ` ${words}`), this.drawing, this.key);
    this.title = title;
    this.total = 1;
  }

  x(step) {
    const { left, right } = oddlm.LineChart.SIZE;
    return left + ((this.width - left - right) * step) / Math.max(1, this.total - 1);
  }

  choose(event, choose) {
    const { left, right } = oddlm.LineChart.SIZE, { width } = this;
    const box = this.drawing.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * width;
    choose(Math.round(((at - left) / (width - left - right)) * (this.total - 1)) + 1);
  }

  show(series, total) {
    const { svg, el } = oddlm;
    const { height, left, right, top, bottom } = oddlm.LineChart.SIZE;
    const width = this.width = this.drawing.clientWidth || this.width; // pixels of the screen: words keep their size
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.total = total;
    const most = Math.max(1e-9, ...series.flatMap((one) => one.values));
    const y = (value) => top + (height - top - bottom) * (1 - value / most);
    const label = (x, at, anchor, words) => svg("text", { x, y: at, "text-anchor": anchor }, words);
    const short = (value) => (value >= 100 ? value.toFixed(0) : value.toPrecision(2));
    this.cursor = svg("line", { class: "cursor", y1: top, y2: height - bottom });
    this.drawing.replaceChildren(
      svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
      svg("line", { class: "axis", x1: left, x2: left, y1: top, y2: height - bottom }),
      label(left - 4, top + 8, "end", most > 1e-9 ? short(most) : ""), label(left - 4, height - bottom, "end", "0"),
      label(left, height - 6, "start", "step 1"), label(width - right, height - 6, "end", `step ${total}`),
      ...series.map((one) => svg("polyline", { class: `line ${one.className}`, points: one.values.map((value, i) => `${this.x(i)},${y(value)}`).join(" ") })),
      this.cursor,
    );
    this.key.replaceChildren(...series.map((one) => el("span", { class: `name ${one.className}` }, one.name)));
    const last = series.map((one) => `${one.name} from ${(one.values[0] || 0).toFixed(2)} to ${(one.values.at(-1) || 0).toFixed(2)}`);
    this.drawing.setAttribute("aria-label", `${this.title} over ${total} steps: ${last.join("; ")}`);
  }

  at(steps) {
    const x = this.x(Math.max(0, steps - 1));
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
  }
};

// How alike every two samples are, as squares: the darker, the more.
oddlm.Matrix = class {
  static SIDE = 192;

  constructor(title) {
    const { el } = oddlm;
    this.canvas = el("canvas", { tabindex: "0", role: "img", width: 384, height: 384 });
    this.words = el("p", { class: "key", "aria-live": "polite" });
    this.element = el("figure", { class: "chart matrix" }, el("figcaption", {}, el("b", {}, title), " how alike two samples are"), this.canvas, this.words);
    this.picked = null;
    this.canvas.addEventListener("pointermove", (event) => {
      const box = this.canvas.getBoundingClientRect();
      this.pick(Math.floor(((event.clientX - box.left) / box.width) * this.n), Math.floor(((event.clientY - box.top) / box.height) * this.n));
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
    document.addEventListener("theme", () => this.run && this.draw());
  }

  show(run, steps) {
    this.run = run;
    this.n = run.n;
    this.values = Array.from({ length: run.n }, () => new Float32Array(run.n).fill(1));
    let sum = 0;
    for (let a = 0; a < run.n; a++) {
      for (let b = 0; b < a; b++) sum += this.values[a][b] = this.values[b][a] = run.similarity(a, b, steps);
    }
    const pairs = (run.n * (run.n - 1)) / 2;
    this.mean = pairs ? sum / pairs : 1;
    this.canvas.setAttribute("aria-label", `Similarity of ${run.n} samples, ${oddlm.percent(this.mean)} on average; arrows go from pair to pair`);
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
      ? `${oddlm.percent(this.mean)} of the tokens alike, on average`
      : `samples ${a + 1} and ${b + 1}: ${oddlm.percent(this.values[a][b])} of the tokens alike`;
  }
};
