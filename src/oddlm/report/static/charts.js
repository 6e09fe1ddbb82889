"use strict";
// Line charts as SVG. Every text goes in as text; a series is one stop of the Tab key, arrows walk its points, Enter picks one.
const Charts = (() => {
  const SPACE = "http://www.w3.org/2000/svg";
  const MARGIN = { left: 44, right: 12, top: 24, bottom: 36 };
  const tip = document.getElementById("tip");

  function draw(tag, attributes = {}, ...children) {
    const node = document.createElementNS(SPACE, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  function mark(slot, x, y, r = 4) {
    const polygon = (...points) =>
      draw("polygon", { class: "mark", points: points.map(([a, b]) => `${x + a * r},${y + b * r}`).join(" ") });
    const shapes = [
      () => draw("circle", { class: "mark", cx: x, cy: y, r: r * 0.9 }),
      () => polygon([-0.85, -0.85], [0.85, -0.85], [0.85, 0.85], [-0.85, 0.85]),
      () => polygon([0, -1.2], [1.2, 0], [0, 1.2], [-1.2, 0]),
      () => polygon([0, -1.1], [1.1, 0.9], [-1.1, 0.9]),
      () => polygon([0, 1.1], [1.1, -0.9], [-1.1, -0.9]),
      () =>
        polygon(
          [-1, -0.4],
          [-0.4, -0.4],
          [-0.4, -1],
          [0.4, -1],
          [0.4, -0.4],
          [1, -0.4],
          [1, 0.4],
          [0.4, 0.4],
          [0.4, 1],
          [-0.4, 1],
          [-0.4, 0.4],
          [-1, 0.4],
        ),
      () => polygon([0, -1.2], [1.1, -0.2], [0.7, 1.1], [-0.7, 1.1], [-1.1, -0.2]),
    ];
    return shapes[slot < 0 ? 0 : slot % shapes.length]();
  }

  const look = (slot, dashed) => `series ${slot < 0 ? "p" : "s" + (slot % 6)}${dashed ? " dashed" : slot > 5 ? " dotted" : ""}`;

  // What an axis spans, with a little room beyond the data but not beyond the floor and the ceiling.
  function range(values, floor = -Infinity, ceiling = Infinity) {
    const least = Math.min(...values),
      most = Math.max(...values);
    const spare = (most - least || Math.abs(most) || 1) * 0.06;
    const low = Math.max(floor, least - spare),
      high = Math.min(ceiling, most + spare);
    const rough = (high - low) / 5,
      power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].find((one) => one * power >= rough) * power;
    const ticks = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i += 1)
      ticks.push(Number((i * step).toPrecision(8)));
    return { low, high, ticks };
  }

  function say(words, place) {
    tip.hidden = !words;
    if (!words) return;
    tip.textContent = words;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(place.left + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${place.top + box.height + 24 > innerHeight ? place.top - box.height - 8 : place.top + 16}px`;
  }

  function axes(svg, box, x, y, labels) {
    for (const value of y.ticks) {
      svg.append(draw("line", { class: "grid", x1: box.left, x2: box.right, y1: y.at(value), y2: y.at(value) }));
      svg.append(draw("text", { x: box.left - 6, y: y.at(value) + 4, "text-anchor": "end" }, String(value)));
    }
    for (const [value, words] of x.ticks) {
      svg.append(draw("text", { x: x.at(value), y: box.bottom + 14, "text-anchor": "middle" }, words));
    }
    svg.append(draw("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    svg.append(draw("text", { x: (box.left + box.right) / 2, y: box.bottom + 30, "text-anchor": "middle" }, labels.x));
    svg.append(draw("text", { class: "title", x: box.left, y: 14 }, labels.title));
  }

  function series(one, x, y, pick) {
    const points = one.points.map((point) => ({ ...point, px: x.at(point.x), py: y.at(point.y) }));
    const group = draw("g", {
      class: look(one.slot, one.dashed),
      tabindex: 0,
      role: "button",
      "aria-label": `${one.name}: ${points.map((p) => p.words).join("; ")}`,
    });
    group.style.setProperty("--thick", String(one.thick ?? 1));
    group.append(draw("polyline", { class: "line", points: points.map((p) => `${p.px},${p.py}`).join(" ") }));
    for (const point of points) {
      if (point.low != null && point.high != null)
        group.append(draw("line", { class: "span", x1: point.px, x2: point.px, y1: y.at(point.low), y2: y.at(point.high) }));
      if (one.marks) group.append(mark(one.slot, point.px, point.py));
    }
    let at = points.length - 1;
    const tell = (point, place) => say(`${one.name}\n${point.words}`, place);
    const placed = (node) => {
      const box = node.getBoundingClientRect();
      return { left: box.left, top: box.top };
    };
    const spots = points.map((point, i) => {
      const spot = draw("circle", { class: "touch", cx: point.px, cy: point.py, r: 9 });
      spot.addEventListener("pointerenter", () => {
        at = i;
        tell(point, placed(spot));
      });
      spot.addEventListener("pointerleave", () => say(""));
      spot.addEventListener("click", () => pick(point));
      return spot;
    });
    group.append(...spots);
    group.addEventListener("focus", () => tell(points[at], placed(spots[at])));
    group.addEventListener("blur", () => say(""));
    group.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) {
        at = Math.max(0, Math.min(points.length - 1, at + step));
        tell(points[at], placed(spots[at]));
        event.preventDefault();
      }
      if (event.key === "Enter" || event.key === " ") {
        pick(points[at]);
        event.preventDefault();
      }
      if (event.key === "Escape") say("");
    });
    return group;
  }

  // y is a range; so is x, unless `marked` gives the values to name along it as [value, words].
  function chart({ width, height, labels, lines, marked, x: wide, y, pick }) {
    const box = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
    const svg = draw("svg", {
      class: "chart",
      viewBox: `0 0 ${width} ${height}`,
      role: "group",
      "aria-label": `${labels.title}, over ${labels.x}`,
    });
    const xs = (marked || []).map(([value]) => value);
    const across = marked
      ? { low: Math.min(...xs), high: Math.max(...xs), ticks: marked }
      : { ...wide, ticks: wide.ticks.map((value) => [value, String(value)]) };
    if (across.low === across.high) {
      across.low -= 1;
      across.high += 1;
    }
    const inset = marked ? 14 : 0;
    const x = {
      ...across,
      at: (v) => box.left + inset + ((v - across.low) / (across.high - across.low)) * (box.right - box.left - 2 * inset),
    };
    const scale = { ...y, at: (v) => box.bottom - ((v - y.low) / (y.high - y.low)) * (box.bottom - box.top) };
    axes(svg, box, x, scale, labels);
    for (const line of lines) svg.append(series(line, x, scale, pick));
    return svg;
  }

  function legend(entries, hint) {
    const list = document.createElement("ul");
    list.className = "legend";
    for (const { name, slot, dashed, marks } of entries) {
      const key = draw("svg", { viewBox: "0 0 34 12", "aria-hidden": "true" });
      const group = draw("g", { class: look(slot, dashed) }, draw("polyline", { class: "line", points: "1,6 33,6" }));
      if (marks) group.append(mark(slot, 17, 6));
      key.append(group);
      const item = document.createElement("li");
      item.append(key, name);
      list.append(item);
    }
    if (hint) list.append(Object.assign(document.createElement("li"), { className: "hint", textContent: hint }));
    return list;
  }

  return { chart, legend, range };
})();
