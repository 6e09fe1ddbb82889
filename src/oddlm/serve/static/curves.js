// Pass@k over k, one line per setting, with its 95 % interval.
"use strict";

oddlm.curves = (() => {
  const { el, svg, visible, percent, count } = oddlm;
  const SIZE = { height: 300, left: 46, right: 12, top: 10, bottom: 34 };
  const MOST = 12; // lines that one chart can hold
  const DASHES = ["", "7 4", "2 3"];
  const SHAPES = [
    (x, y) => `M${x - 4},${y}a4,4 0 1,0 8,0a4,4 0 1,0 -8,0`,
    (x, y) => `M${x - 4},${y - 4}h8v8h-8z`,
    (x, y) => `M${x},${y - 5}l5,9h-10z`,
  ];

  const look = (i) => ({ colour: `c${i % 6}`, dash: DASHES[Math.floor(i / 6) % 3], shape: SHAPES[(i + Math.floor(i / 6)) % 3] });

  function name(cell, i) {
    const { colour, dash, shape } = look(i);
    const sample = svg("svg", { viewBox: "0 0 40 14", class: colour, "aria-hidden": "true" },
      svg("path", { class: "line", d: "M0,7H40", "stroke-dasharray": dash, "stroke-width": 2.2 }), svg("path", { class: "mark", d: shape(20, 7) }));
    const last = cell.passed.at(-1);
    const said = last ? `: Pass@${last.k} ${percent(last.mean)}${last.low === null ? "" : ` [${percent(last.low)}, ${percent(last.high)}]`}` : ": no Pass@k";
    return el("li", {}, sample, `${visible(cell.label)}${said}, ${count(cell.runs.length, "run")}`);
  }

  // In pixels of the screen, so that its words have the size of other words.
  function drawing(bench, cells, width) {
    const { height, left, right, top, bottom } = SIZE;
    const most = Math.max(2, ...cells.flatMap((cell) => cell.passed.map((share) => share.k)));
    const x = (k) => left + ((width - left - right) * Math.log2(k)) / Math.log2(most);
    const y = (share) => top + (height - top - bottom) * (1 - share);
    const text = (px, py, anchor, words) => svg("text", { x: px, y: py, "text-anchor": anchor }, words);
    const ticks = [];
    for (let k = 1; k <= most; k *= 2) ticks.push(text(x(k), height - 16, "middle", String(k)));
    const grid = [0, 0.25, 0.5, 0.75, 1].flatMap((share) => [
      svg("line", { class: "grid", x1: left, x2: width - right, y1: y(share), y2: y(share) }), text(left - 6, y(share) + 4, "end", `${100 * share} %`)]);
    const lines = cells.map((cell, i) => {
      const { colour, dash, shape } = look(i);
      const path = (shares, value) => shares.map((share) => `${x(share.k).toFixed(1)},${y(value(share)).toFixed(1)}`).join("L");
      const known = cell.passed.filter((share) => share.low !== null && share.high !== null);
      const band = known.length > 1 ? `M${path(known, (s) => s.high)}L${path([...known].reverse(), (s) => s.low)}z` : null;
      const marks = cell.passed.filter((share) => Number.isInteger(Math.log2(share.k)) || share.k === most).map((share) => shape(x(share.k), y(share.mean))).join("");
      return svg("g", { class: colour }, band ? svg("path", { class: "band", d: band }) : null,
        svg("path", { class: "line", d: `M${path(cell.passed, (s) => s.mean)}`, "stroke-dasharray": dash }), svg("path", { class: "mark", d: marks }));
    });
    const label = `Pass@k of ${bench.name}: ${cells.map((cell) => `${cell.label} ${cell.passed.length ? percent(cell.passed.at(-1).mean) : ""}`).join("; ")}`;
    return svg("svg", { width, height, role: "img", "aria-label": visible(label) }, grid, ticks,
      text((left + width) / 2, height - 2, "middle", "k, samples drawn"), lines.filter((_, i) => cells[i].passed.length));
  }

  let draw = () => {};
  window.addEventListener("resize", () => draw());

  function show(place, benchmarks, chosen) {
    if (!benchmarks.length) { place.replaceChildren(); return; }
    const bench = benchmarks[chosen] || benchmarks[0];
    const pick = el("select", { id: "bench", "aria-label": "Which problems" }, benchmarks.map((one, i) => el("option", { value: i, selected: one === bench }, visible(one.name))));
    pick.addEventListener("change", () => { show(place, benchmarks, Number(pick.value)); document.getElementById("bench").focus(); });
    const cells = bench.cells.slice(0, MOST);
    const rest = bench.cells.length > MOST ? el("p", { class: "quiet" }, `The first ${MOST} of ${bench.cells.length} settings; \`oddlm report\` draws them all.`) : null;
    const chart = el("div");
    place.replaceChildren(el("h2", {}, "Pass@k"),
      el("p", { class: "quiet" }, "Share of problems that the first k samples solve (at 1: share of right samples), with its 95 % interval. ", pick, ` ${visible(bench.model)}, ${count(bench.problems, "problem")}`),
      el("div", { class: "curve" }, chart, el("ul", { class: "names" }, cells.map(name)), rest));
    draw = () => chart.replaceChildren(drawing(bench, cells, Math.max(240, chart.clientWidth)));
    draw();
  }

  return { show };
})();
