// Pass@k or Maj@k over k, one line per setting, with its 95 % interval.
"use strict";

oddlm.curves = (() => {
  const { el, visible, percent, count } = oddlm;
  const { LineChart, legend, range, stops } = oddlm.charts;
  const MOST = 12; // lines that one chart can hold

  const MEASURES = {
    passed: { name: "Pass@", about: "Share of problems that at least one of k samples solves, with its 95 % interval; Pass@1 is the share of correct samples. " },
    voted: { name: "Maj@", about: "Share of problems for which the most common answer of k samples is right, with its 95 % interval. " },
  };
  let measure = "passed";

  const said = ({ k, mean, low, high }) => `${MEASURES[measure].name}${k} ${percent(mean)}${low === null ? "" : ` [${percent(low)}, ${percent(high)}]`}`;

  function line(cell, slot, most) {
    const points = cell[measure].map((share) => ({
      x: share.k, y: 100 * share.mean, low: share.low === null ? null : 100 * share.low, high: share.high === null ? null : 100 * share.high,
      mark: Number.isInteger(Math.log2(share.k)) || share.k === most, words: said(share),
    }));
    return { name: visible(cell.label), slot, marks: true, band: true, points };
  }

  function entry(cell, slot) {
    const last = cell[measure].at(-1);
    return { slot, marks: true, name: `${visible(cell.label)}: ${last ? said(last) : `no ${MEASURES[measure].name}k`}, ${count(cell.runs.length, "run")}` };
  }

  // In pixels of the screen, so that its words have the size of other words.
  function drawing(bench, cells, width) {
    const most = Math.max(2, ...cells.flatMap((cell) => cell[measure].map((share) => share.k)));
    const ticks = [];
    for (let k = 1; k <= most; k *= 2) ticks.push([k, String(k)]);
    const x = { ...stops(ticks, { log: true }), high: most, label: "k (samples)" };
    const y = { ...range([0, 100], { floor: 0, ceiling: 100, ticks: 4 }) };
    y.ticks = y.ticks.map(([value, words]) => [value, `${words} %`]);
    return new LineChart({ width, height: 300, label: visible(`${MEASURES[measure].name}k of ${bench.name}`), x, y, lines: cells.map((cell, i) => line(cell, i, most)) }).element;
  }

  let draw = () => {};
  window.addEventListener("resize", () => draw());

  function show(place, benchmarks, chosen) {
    if (!benchmarks.length) { place.replaceChildren(); return; }
    const bench = benchmarks[chosen] || benchmarks[0];
    const kind = el("select", { id: "measure", "aria-label": "Measure" }, Object.entries(MEASURES).map(([key, { name }]) => el("option", { value: key, selected: key === measure }, `${name}k`)));
    kind.addEventListener("change", () => { measure = kind.value; show(place, benchmarks, benchmarks.indexOf(bench)); document.getElementById("measure").focus(); });
    const pick = el("select", { id: "bench", "aria-label": "Benchmark" }, benchmarks.map((one, i) => el("option", { value: i, selected: one === bench }, visible(one.name))));
    pick.addEventListener("change", () => { show(place, benchmarks, Number(pick.value)); document.getElementById("bench").focus(); });
    const cells = bench.cells.slice(0, MOST);
    const rest = bench.cells.length > MOST ? el("p", { class: "quiet" }, `These are the first ${MOST} of ${bench.cells.length} settings; \`oddlm report\` plots all of them.`) : null;
    const chart = el("div");
    place.replaceChildren(el("h2", {}, `${MEASURES[measure].name}k`),
      el("p", { class: "quiet" }, MEASURES[measure].about, kind, " ", pick, ` ${visible(bench.model)}, ${count(bench.problems, "problem")}`),
      el("div", { class: "curve" }, chart, legend(cells.map(entry)), rest));
    draw = () => chart.replaceChildren(drawing(bench, cells, Math.max(240, chart.clientWidth)));
    draw();
  }

  return { show };
})();
